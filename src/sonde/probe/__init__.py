"""The probe: save any value in the middle of a network, forward and backward, and compare two such dumps.

    debugger      PrecisionDebugger: the way in
    watching      watch(model): inputs, outputs and gradients of chosen modules, and the first one that went wrong
    compare       two dumps against each other: the first divergence
    dump          reading a dump: ours or msprobe's, finished or killed

    settings      what a probe is told: arguments and config file
    recorder      gives values their keys and gradients their place
    walk          the walk over any nested value
    names         names that users give, made safe
    step_dump     one step on the disk
    place         which folder, which rank
    dump_format   the records, and debug.json from them

    moments       what is known of an array, and how it is written
    blocks        the moments of an array in memory
    hashing       hashes of its bytes
    frameworks    which framework a value belongs to
    torch_tensors, mindspore_tensors, numpy_arrays      one thin file per framework

Importing it imports no framework: that follows from the type of the first tensor.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
