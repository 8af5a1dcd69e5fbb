"""`sonde sync RUN URL`: copy a run to another disk or to an object store, as far as it is not there yet."""

from pathlib import Path

from sonde.errors import RunError
from sonde.records.copying import copy_run
from sonde.report import wording


def sync(run: Path, place: str, /) -> None:
    """Copy a run to another place, as far as it is not there yet.

    What was sent before is not sent again, also after a copy that was cut off. Nothing is removed there. Checkpoints that the run keeps
    elsewhere stay where they are.

    Parameters
    ----------
    run
        The run directory. It may be in training.
    place
        A folder, or a URL such as s3://bucket/run (pip install 'torchsonde[remote]').
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
