"""`sonde.show(run)`: the curves and events of a run in a notebook cell, or one line of text outside a notebook.

The page is in a sandboxed frame that may only run its own script and cannot reach the notebook.
"""

import os
from pathlib import Path
from typing import Final

from sonde.report import wording
from sonde.report.curve import sparkline
from sonde.report.facts import RunFacts, gather
from sonde.report.html.markup import tag
from sonde.report.html.page import render_short
from sonde.report.run_curves import LOSS
from sonde.run import Run

_HEIGHT: Final = 640


def show(run: "str | os.PathLike[str] | Run") -> "InlineRun":
    """Show a run, or the run in a directory, in its current state; a notebook displays it as a cell's last value."""
    return InlineRun(gather(run.directory if isinstance(run, Run) else Path(run)))


class InlineRun:
    """The facts about a run, displayable in a notebook."""

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        """The facts as plain data."""

    def _repr_html_(self) -> str:
        page = render_short(self.facts)
        # Not through `tag`, which would replace invisible characters: the page itself is already escaped.
        source = page.replace("&", "&amp;").replace('"', "&quot;")
        frame = tag("iframe", sandbox="allow-scripts", width="100%", height=_HEIGHT, title=f"run {self.facts.name}")
        return frame.replace("<iframe ", f'<iframe frameborder="0" srcdoc="{source}" ', 1)

    def __repr__(self) -> str:
        facts = self.facts
        loss = facts.curves.get(LOSS)
        drawn = f"loss {sparkline(loss)} {wording.number(float(loss.values[-1]))}" if loss else "no loss"
        told = f"{facts.status}, step {wording.number(facts.last_step)}, {len(facts.events)} events, {drawn}"
        return f"{facts.name}: {told}"
