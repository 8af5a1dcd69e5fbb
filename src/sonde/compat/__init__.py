"""The five systems that sonde's interfaces come from: one address for each.

    compat.atorch       ATorch's loss spike recorder: TokenLossSpike and its files
    compat.dllogger     NVIDIA's DLLogger and TCAP_DLLogger: their names, defaults and lines
    compat.fairseq      fairseq's names for meters
    compat.msprobe      msprobe's PrecisionDebugger and its config files
    compat.nemo         NeMo's four callbacks

Each module says what its users find, and where the idea behind it is in sonde. Nothing below this
package imports it: somebody who knows none of the five never meets it.

Files of the five are read where ours are read, because a reader accepts both.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
