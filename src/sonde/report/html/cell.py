"""A run in a notebook cell (`sonde.show`): its name, status and verdict, then curves and events.

With `live`, a thread looks every two seconds and shows the run again if it has changed, until it
has ended. It only reads, and a failure ends it, never the training.
"""

import contextlib
import threading
import time
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, overload

from sonde.errors import SondeError
from sonde.records.manifest import RUNNING
from sonde.report import wording
from sonde.report.curve import sparkline
from sonde.report.facts import RunFacts, gather
from sonde.report.html import sections
from sonde.report.html.events import events
from sonde.report.html.markup import tag
from sonde.report.html.page import curves, document
from sonde.report.html.verdicts import verdict_lines
from sonde.report.run_curves import LOSS

if TYPE_CHECKING:
    from sonde.run import Run

SECONDS: Final = 2.0
"""How often a live cell looks at its run."""


@overload
def show(run: "str | PathLike[str] | Run", *, live: Literal[False] = False) -> "InlineRun": ...


@overload
def show(run: "str | PathLike[str] | Run", *, live: Literal[True]) -> "LiveRun": ...


def show(run: "str | PathLike[str] | Run", *, live: bool = False) -> "InlineRun | LiveRun":
    """Show a run, or the run in a directory; a notebook displays it as a cell's last value.

    It is shown in its current state; with `live`, it is followed until it has ended:
    `display(sonde.show(run, live=True))` before a training loop.
    """
    directory = Path(getattr(run, "directory", run))  # type: ignore[arg-type]
    if live:
        return LiveRun(directory)
    return InlineRun(gather(directory))


class InlineRun:
    """The facts about a run: its curves and events in a notebook, or one line of text elsewhere.

    The page is in a sandboxed frame that may only run its own script and save files that you ask
    for; it cannot reach the notebook.
    """

    def __init__(self, facts: RunFacts) -> None:
        self.facts = facts
        """The facts as plain data."""

    def _repr_html_(self) -> str:
        facts = self.facts
        page = document(
            facts.directory.name,
            sections.title(facts),
            sections.notices(facts),
            verdict_lines(facts.marks),
            curves(facts),
            events(facts.marks, facts.events),
            class_="cell",
        )
        # Not through `tag`, which would replace invisible characters: the page itself is already
        # escaped.
        source = page.replace("&", "&amp;").replace('"', "&quot;")
        title = f"run {facts.directory.name}"
        frame = tag(
            "iframe", sandbox="allow-scripts allow-downloads", width="100%", height=760, title=title
        )
        return frame.replace("<iframe ", f'<iframe frameborder="0" srcdoc="{source}" ', 1)

    def __repr__(self) -> str:
        facts = self.facts
        loss = facts.curves.get(LOSS)
        drawn = "no loss"
        if loss:
            drawn = f"loss {sparkline(loss)} {wording.number(float(loss.values[-1]))}"
        step = "no step yet" if facts.last_step is None else f"step {facts.last_step:,}"
        counted = wording.counted(len(facts.events), "event")
        return f"{facts.directory.name}: {facts.status}, {step}, {counted}, {drawn}"


class LiveRun:
    """A run that a notebook shows as it goes on; elsewhere, one line of text."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def _ipython_display_(self) -> None:
        # Only a notebook calls this, so that IPython is there.
        from IPython.display import display

        show: Any = display  # it has no types
        handle = show(InlineRun(gather(self._directory)), display_id=True)
        if handle is not None:
            follower = threading.Thread(target=self._follow, args=(handle,), daemon=True)
            follower.start()

    def __repr__(self) -> str:
        return repr(InlineRun(gather(self._directory)))

    def _follow(self, handle: Any) -> None:
        shown = ""
        with contextlib.suppress(SondeError, OSError):
            while True:
                time.sleep(SECONDS)
                facts = gather(self._directory)
                now = repr(InlineRun(facts))
                if now != shown:
                    shown = now
                    handle.update(InlineRun(facts))
                if facts.status != RUNNING:
                    return
