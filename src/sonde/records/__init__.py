"""The run directory: the seam between training, which writes records, and analysis, which reads them.

    layout      the one map of file names inside a run directory
    files       the one way to open files of a run, and to write what a user named
    disk        the few system calls every writer goes through
    values      any Python value as one line of strictly valid JSON, and back
    append      append-only JSON Lines that never raise into the caller's step
    reader      reading them back: torn tails, corrupt lines, live files
    atomic      files and directories that appear whole or not at all, with checksums
    manifest    run.json: what the run is
    lock        one live run per directory
    host        the machine, the versions and the git state a run started from
    index       SQLite beside the JSON Lines: a series, a step or a spike in milliseconds
    catalog     listing runs and saying what one holds

Nothing here needs torch.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
