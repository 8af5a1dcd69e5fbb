"""`sonde sync RUN URL`: copy what is missing of a run to another disk or an object store."""

from pathlib import Path

from sonde.errors import RunError
from sonde.records.copying import copy_run
from sonde.report import wording


def sync(run: Path, place: str, /) -> None:
    """Copy a run to another folder or an object store, sending only what is missing there.

    Files that were already sent are not sent again, even after an interrupted copy. Nothing is removed at the
    destination. Checkpoints stored outside the run directory are not copied.

    Parameters
    ----------
    run
        The run directory. It may still be training.
    place
        The destination: a folder, or a URL such as s3://bucket/run (pip install 'torchsonde[remote]').
    """
    try:
        copied = copy_run(run, place)
    except OSError as error:
        cause, hint = error.strerror or str(error), "do it again: it goes on from there"
        raise RunError(f"cannot copy {run} to {place}", cause=cause, hint=hint) from error
    sent = f"{copied.num_files} {'file' if copied.num_files == 1 else 'files'}, {wording.size(copied.num_bytes)}"
    print(f"{place}: {sent} sent, {copied.num_there} there already")
    for one in copied.left_out:
        print(f"  left out {one}")
