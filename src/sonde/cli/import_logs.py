"""`sonde import-tensorboard`, `import-wandb`, `import-trainer-state`: import the logs of other tools as runs."""

from collections.abc import Iterable
from pathlib import Path

from rich.text import Text

from sonde.cli.terminal import screen
from sonde.errors import RunNotFound, SettingError
from sonde.integrations.event_logs import tensorboard_sources, wandb_sources
from sonde.integrations.importing import Source, trainer_state_source, write_run


def import_tensorboard(directory: Path, /, *, out: Path) -> None:
    """Import TensorBoard event files as runs.

    Parameters
    ----------
    directory
        A folder with event files, a folder above such folders, or a single event file.
    out
        The run directory to write. If there are several folders of event files, each becomes a run below it.
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
        A `trainer_state.json`, a `checkpoint-N` folder, or the output directory, whose newest checkpoint is used.
    out
        The run directory to write.
    """
    _import(path, [trainer_state_source(path)], out)


def _import(given: Path, sources: Iterable[Source], out: Path) -> None:
    found = list(sources)
    if not found:
        raise RunNotFound(f"there is nothing to import in {given}", hint="see docs/integrations.md")
    console, refused = screen(), []
    for source in found:
        inside = source.path.relative_to(given) if len(found) > 1 else Path()
        target = out / given.name if len(found) > 1 and inside == Path() else out / inside
        try:
            num_records = write_run(source, target)
        except SettingError as error:
            refused.append(error)
            continue
        console.print(Text(f"{target}: {num_records:,} records from {source.path}"))
        for damage in source.damage:
            console.print(Text(f"  {damage}", style="red"))
    if len(refused) == len(found):
        raise refused[0]
    for one in refused:
        console.print(Text(str(one), style="red"))
