"""The run directory: the interface between training, which writes records, and analysis, which
reads them. No torch.

    from sonde.records import RunLayout, read_manifest, read_records, read_steps

    read_manifest("runs/a").status                              # the status of the run
    read_steps("runs/a").by_number[1734].loss                   # the loss of a step
    for file in RunLayout(Path("runs/a")).record_files():       # the path of every file of a run
        # Survives torn tails and damaged lines
        for record in read_records(file.path):
            ...

Writers never raise into training, and files appear complete or not at all.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
