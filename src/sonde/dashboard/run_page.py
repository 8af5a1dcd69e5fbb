"""The pages of one run: its curves and events, checkpoints, log, settings."""

from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from sonde.checkpoint.folder import CheckpointFolder
from sonde.dashboard.folder import Row
from sonde.dashboard.frame import crumbs, document, run_address, tabs
from sonde.dashboard.open_runs import OpenRun
from sonde.errors import SondeError
from sonde.log.backend import LOG, METADATA
from sonde.log.screen import value_text
from sonde.log.steps import step_numbers
from sonde.records import layout
from sonde.records.checksums import verify_checksums
from sonde.records.layout import RunLayout
from sonde.records.manifest import checkpoint_place
from sonde.records.reader import read_last_records
from sonde.report import wording
from sonde.report.event_facts import EventFacts
from sonde.report.facts import RunFacts, gather
from sonde.report.html.events import COLUMNS, NUMBERS, event_row
from sonde.report.html.markup import Child, Markup, pairs, table, tag
from sonde.report.html.overview import figures, healing, notices, origin, settings, speed, tone

_HINT: Final = "Drag to zoom, shift and drag to move, double-click to see all. ▼ is an event: click it for its text."
_MAX_LISTED: Final = 500
_MAX_LINES: Final = 400
_MAX_METRICS: Final = 2000
_MAX_VERIFIED: Final = 256 << 20
"""So much of checkpoints is verified when they are looked at, the newest first; a gigabyte takes seconds."""


def frame(row: Row, part: str, *body: Child) -> str:
    """A page of the run, under its head."""
    summary = row.summary
    status = [tag("span", summary.status, class_=f"status {tone(summary.status)}")]
    if summary.manifest is not None and summary.manifest.reason:
        status.append(tag("span", summary.manifest.reason, class_="reason"))
    head = tag("header", crumbs(), tag("h1", row.name), tag("p", status, class_="state", id="state", data_live=True))
    return document(row.name, head, tabs(row.name, part), body, live=row.name)


def overview(row: Row, run: OpenRun) -> str:
    """Its curves and events. A great run that has to be read first is shown without what that tells: the script asks again."""
    ranks = [file.rank for file in RunLayout(run.path).record_files(layout.LOG)]
    facts = gather(run.path, run.curves(), run.spikes()) if run.is_ready else None
    names = run.curves().names if facts is not None else []
    return frame(
        row,
        "",
        tag("div", figures(facts) if facts else None, id="figures", data_live=True),
        tag("div", [notices(facts), healing(facts)] if facts else None, id="told", data_live=True),
        tag(
            "section",
            tag("div", _metric_picker(names), _rank_picker(ranks), class_="pickers"),
            tag("div", tag("p", "Reading the curves …", class_="none"), id="curves", data_run=row.name),
            tag("p", _HINT, class_="note hint"),
            id="loss",
            aria_label="curves",
        ),
        tag("div", events_table(row.name, facts.events) if facts else None, id="events", data_live=True),
        tag("div", _diagnosed(row.name, facts) if facts else None, id="verdicts", data_live=True),
    )


def events_table(name: str, events: tuple[EventFacts, ...]) -> Markup:
    """All events, the first column leading to their pages."""
    if not events:
        return tag("section", tag("h2", "Events"), tag("p", "No events were recorded.", class_="none"))
    rows: list[list[Child]] = []
    for facts in events[:_MAX_LISTED]:
        first, *rest = event_row(facts)
        rows.append([tag("a", first, href=run_address(name, "step", str(facts.spike.event.first_step))), *rest])
    more = len(events) - _MAX_LISTED
    return tag(
        "section",
        tag("h2", "Events"),
        table(COLUMNS, rows, right=NUMBERS, class_="narrow events"),
        tag("p", f"and {more:,} more", class_="note") if more > 0 else None,
    )


def checkpoints(row: Row, facts: RunFacts) -> str:
    """Its checkpoints with their state, and the samples that are left out."""
    place = checkpoint_place(row.summary.directory)
    # A page asks no server, whatever the manifest of a run says.
    folder = CheckpointFolder(place if isinstance(place, Path) else RunLayout(row.summary.directory).checkpoints)
    budget = _MAX_VERIFIED
    rows: list[list[Child]] = []
    for step in reversed(folder.steps()):
        size = folder.num_bytes(step)
        budget -= size
        rows.append(_checkpoint(folder, step, size, facts, verify=budget >= 0))
    columns = ("after updates", "size", "evaluation before it", "state")
    return frame(
        row,
        "checkpoints",
        table(columns, rows, right=columns[:2], class_="narrow events") if rows else tag("p", f"There are no checkpoints in {place}.", class_="none"),
        tag("section", tag("h2", "Samples left out"), tag("pre", facts.skip_list), id="skipped") if facts.skip_list else None,
    )  # fmt: skip


def log_page(row: Row, rank: int) -> str:
    """The end of its log."""
    files = RunLayout(row.summary.directory).record_files(layout.LOG)
    links = [
        tag("a", f"rank {file.rank}", href=run_address(row.name, "log", rank=str(file.rank)), aria_current="true" if file.rank == rank else None)
        for file in files[:256]
    ]  # fmt: skip
    found = [file.path for file in files if file.rank == rank]
    records = read_last_records(found[0]) if found else []
    lines = [_log_line(record) for record in records if record.get("type") != METADATA][-_MAX_LINES:]
    return frame(
        row,
        "log",
        tag("nav", links, class_="ranks", aria_label="ranks") if len(files) > 1 else None,
        tag("pre", "\n".join(lines), class_="log", id="log-lines", data_live=True, tabindex="0")
        if lines
        else tag("p", "Nothing was logged.", class_="none"),
    )


def settings_page(row: Row, facts: RunFacts) -> str:
    """What it ran with, and on what."""
    manifest = facts.manifest
    about = pairs(origin(facts, manifest)) if manifest is not None else None
    return frame(row, "settings", tag("section", about), speed(facts), settings(facts), notices(facts))


def _metric_picker(names: list[str]) -> Markup:
    """Which metrics; the script fills in what the address says."""
    options = [tag("option", one, value=one) for one in names[:_MAX_METRICS]]
    picked = tag("select", tag("option", "the usual", value=""), options, id="metric", data_live=True)
    return tag("span", tag("label", "add a metric ", picked), tag("span", "", id="chosen"))


def _rank_picker(ranks: list[int]) -> Markup | None:
    if len(ranks) < 2:
        return None
    each = [tag("option", f"rank {rank}", value=str(rank)) for rank in ranks[:_MAX_METRICS]]
    return tag("label", "of ", tag("select", tag("option", "all ranks", value=""), each, id="rank"))


def _diagnosed(name: str, facts: RunFacts) -> Markup | None:
    rows = [
        tag("li", tag("a", f"Step {one.step:,}", href=run_address(name, "step", str(one.step))), ": ", one.causes[0].title)
        for one in facts.verdicts
        if one.causes
    ]  # fmt: skip
    return tag("section", tag("h2", "Verdicts"), tag("ul", rows, class_="plain")) if rows else None


def _checkpoint(folder: CheckpointFolder, step: int, size: int, facts: RunFacts, *, verify: bool) -> list[Child]:
    about = next((one for one in facts.checkpoints if one.step == step), None)
    problem = _problem(folder.path(step), (size, folder.path(step).stat().st_mtime_ns)) if verify else ""
    if about is None or problem:
        state: Child = tag("span", problem or "cannot be read", class_="bad")
    elif about.distrusted:
        state = tag("span", f"distrusted: {about.distrusted}", class_="bad")
    elif not verify:
        state = [tag("span", "not verified here: "), tag("code", "sonde checkpoints RUN --verify")]
    else:
        state = tag("span", "verified", class_="status good")
    told = (
        ", ".join(f"{key} {wording.number(value)}" for key, value in about.metrics.items() if key != "weight")
        if about
        else ""
    )
    return [wording.number(step), wording.size(size), told, state]


@lru_cache(maxsize=256)
def _problem(checkpoint: Path, _stamp: tuple[int, int]) -> str:
    """What is wrong with its bytes. Asked once for each size and time: a page that follows its run asks again and again."""
    try:
        return "; ".join(verify_checksums(checkpoint)[:1])
    except (SondeError, OSError) as error:
        return str(error)


def _log_line(record: dict[str, Any]) -> str:
    when, data = str(record.get("datetime") or "")[11:19], record.get("data")
    if record.get("type") != LOG or not isinstance(data, dict):
        return f"{when}  {value_text(data)}"
    values = "  ".join(
        f"{name} {wording.number(value)}" for name, value in data.items() if (name, value) != ("rank", -1)
    )
    step = record.get("step")
    return f"{when}  {'/'.join(map(str, step_numbers(step) or (step,))):>8}  {values}"
