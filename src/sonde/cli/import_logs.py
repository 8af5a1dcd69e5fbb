"""`sonde import-log`, `import-tensorboard`, `import-wandb`, `import-trainer-state`: import the logs
of other tools as runs.
"""

import re
from collections.abc import Iterable
from pathlib import Path

from rich.text import Text

from sonde.cli.terminal import screen
from sonde.curves.event_logs import tensorboard_sources, wandb_sources
from sonde.curves.json_documents import trainer_state_source
from sonde.curves.points import Source
from sonde.curves.recognise import find_sources
from sonde.errors import RunNotFound, SettingError
from sonde.integrations.importing import write_run


def import_tensorboard(directory: Path, /, *, out: Path) -> None:
    """Import TensorBoard event files as runs.

    Parameters
    ----------
    directory
        A folder with event files, a folder above such folders, or a single event file.
    out
        The run directory to write. If there are several folders of event files, each becomes a run
            below it.
    """
    _import(directory, tensorboard_sources(directory), out)


def import_wandb(directory: Path, /, *, out: Path) -> None:
    """Import offline wandb runs.

    Parameters
    ----------
    directory
        A `wandb` folder, an `offline-run-…` folder in it, or a single `.wandb` file.
    out
        The run directory to write. If there are several runs, each becomes a run below it.
    """
    _import(directory, wandb_sources(directory), out)


def import_trainer_state(path: Path, /, *, out: Path) -> None:
    """Import the log of a Hugging Face Trainer as a run.

    Parameters
    ----------
    path
        A `trainer_state.json`, a `checkpoint-N` folder, or the output directory, whose newest
            checkpoint is used.
    out
        The run directory to write.
    """
    _import(path, [trainer_state_source(path)], out)


def import_log(path: Path, /, *, out: Path) -> None:
    """Import any log with numbers by step as a run.

    sonde recognises the format by the content.

    Parameters
    ----------
    path
        A log, or a folder of logs: whatever `sonde why` reads.
    out
        The run directory to write. If there are several runs, each becomes a run below it.
    """
    _import(path, find_sources(path), out)


def _import(given: Path, sources: Iterable[Source], out: Path) -> None:
    found = list(sources)
    if not found:
        raise RunNotFound(
            f"there is nothing to import in {given}",
            hint="`sonde help` lists the import verbs; docs/integrations.md has what each reads",
        )
    console = screen()
    refused = []
    for source in found:
        target = _target(source, given, out) if len(found) > 1 else out
        try:
            written = write_run(source, target)
        except SettingError as error:
            refused.append(error)
            continue
        sentence = f"{target}: {written.num_records:,} records from {source.path}"
        console.print(Text(f"{sentence}, {_counted(written.num_events)}"))
        for damage in source.damage:
            console.print(Text(f"  {damage}", style="red"))
    if len(refused) == len(found):
        raise refused[0]
    for refusal in refused:
        console.print(Text(str(refusal), style="red"))


def _target(source: Source, given: Path, out: Path) -> Path:
    """Return the run directory of one of several runs. A name in a file never leads out of it."""
    inside = source.path.relative_to(given)
    folder = out / given.name if inside == Path() else out / inside
    if not source.name:
        return folder
    return out / (re.sub(r"[^\w.-]+", "-", source.name).strip(".-")[:100] or "run")


def _counted(num_events: int) -> str:
    return "1 event" if num_events == 1 else f"{num_events:,} events"
