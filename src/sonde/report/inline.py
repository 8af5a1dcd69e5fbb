"""`sonde.show(run)`: the curves and events of a run in a cell of a notebook; where there is no notebook, a line of text.

The page stands in a frame that may run its own script and nothing else: it cannot reach the notebook.
"""

import os
from pathlib import Path
from typing import Final, final

from sonde.report import wording
from sonde.report.curve import sparkline
from sonde.report.facts import RunFacts, gather
from sonde.report.html.markup import tag
from sonde.report.html.page import render_short
from sonde.run import Run

_HEIGHT: Final = 640


def show(run: "str | os.PathLike[str] | Run") -> "InlineRun":
    """A run, or the directory of one, as it is now; a notebook draws what a cell ends with."""
    return InlineRun(gather(run.directory if isinstance(run, Run) else Path(run)))


@final
class InlineRun:
    """What is known of a run, to look at."""

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        """All of it, as plain data."""

    def _repr_html_(self) -> str:
        page = render_short(self.facts)
        # Not through `tag`, which names what cannot be seen: the page is escaped already, once for itself.
        source = page.replace("&", "&amp;").replace('"', "&quot;")
        frame = tag("iframe", sandbox="allow-scripts", width="100%", height=_HEIGHT, title=f"run {self.facts.name}")
        return frame.replace("<iframe ", f'<iframe frameborder="0" srcdoc="{source}" ', 1)

    def __repr__(self) -> str:
        facts = self.facts
        loss = facts.loss
        last = "" if loss is None or not len(loss) else wording.number(float(loss.values[-1]))
        drawn = f"loss {sparkline(loss)} {last}" if loss is not None and last else "no loss"
        told = f"{facts.status}, step {wording.number(facts.last_step)}, {len(facts.events)} events, {drawn}"
        return f"{facts.name}: {told}"
