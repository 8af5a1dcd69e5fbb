"""`sonde plot RUN loss lr`: draw curves of a run in the terminal, with its spikes marked."""

import shutil
import sys
from pathlib import Path
from typing import Annotated, Final

from cyclopts import Parameter

from sonde.cli.terminal import SafeConsole
from sonde.errors import SettingError
from sonde.records.manifest import read_manifest
from sonde.records.reader import damage_text
from sonde.report.run_curves import RunCurves
from sonde.report.terminal_plot import GUTTER
from sonde.report.terminal_plot import plot as draw
from sonde.spikes.spike_log import read_spikes

_MAX_WIDTH: Final = 160
_PIPED_WIDTH: Final = 100
_MIN_WIDTH: Final = GUTTER + 20


def plot(
    run: Path,
    /,
    *names: str,
    from_: Annotated[int | None, Parameter(name="--from")] = None,
    to: int | None = None,
) -> None:
    """Draw curves of a run in the terminal, with its spikes marked.

    Parameters
    ----------
    run
        The run directory.
    names
        What to draw: `loss`, `lr`, or any logged name; `bleu` finds `val.bleu` (default: `loss`).
    from_
        First step to draw.
    to
        Last step to draw.
    """
    if from_ is not None and to is not None and from_ > to:
        raise SettingError(f"--from {from_} comes after --to {to}")
    read_manifest(run)
    curves = RunCurves(run)
    found = [curves.find(name) for name in names or ("loss",)]
    events = [spike.event.first_step for spike in read_spikes(run).spikes]
    size = shutil.get_terminal_size((_PIPED_WIDTH, 24))
    width = max(min(size.columns, _MAX_WIDTH), _MIN_WIDTH)
    height = max(min(size.lines // len(found) - 5, 16), 6)
    console = SafeConsole(width=width if sys.stdout.isatty() else _MAX_WIDTH)
    for place, name in enumerate(found):
        if place:
            console.print()
        curve = curves.read(name).between(from_, to)
        console.print(draw(curve, events, width=width, height=height))
    for file, num_bad in curves.num_bad.items():
        if num_bad:
            console.print(f"{damage_text(num_bad)} in {file}", style="red")
