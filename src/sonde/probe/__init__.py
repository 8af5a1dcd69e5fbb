"""The probe: save any value inside a network, forward and backward, and compare two dumps.

    from sonde import PrecisionDebugger, probe

    debugger = PrecisionDebugger(dump_path="dump")
    PrecisionDebugger.save(hidden, "hidden")                    # a tensor, or any nested value
    debugger.step()                                             # dump/step0/rank/debug.json

    with probe.watch(model, modules=["*.attention"]) as watch:  # inputs and outputs of modules
        train()
    watch.first_suspect                                         # the first module that went wrong

`sonde compare DUMP DUMP` names the first difference between two dumps, written by sonde or by
msprobe. Importing the probe imports no framework: which one it is follows from the type of the
first tensor.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
