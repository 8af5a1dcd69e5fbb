"""msprobe's single-point save: `PrecisionDebugger`, its config files and its dumps.

    from sonde import PrecisionDebugger

    debugger = PrecisionDebugger("./config.json")
    PrecisionDebugger.save(hidden, "hidden")
    debugger.step()

Saving is the core idea of the probe, so the class is in `sonde.probe`. What exists only for msprobe
is in three modules there: `probe/config_file.py` reads its config files, with the keys that have no
effect on `save`; `probe/dump.py` names keys, files and folders as its versions do, and reads its
dumps; `probe/compare.py` compares them, in place of `msprobe compare`.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
