"""The pages of one run: curves and events, samples, checkpoints, check, audit, log, settings."""

import math
import shlex
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from sonde.checkpoint.folder import CheckpointFolder
from sonde.dashboard.compare_page import view_controls
from sonde.dashboard.folder import ListedRun, OpenRun
from sonde.dashboard.frame import (
    ago,
    choice,
    commands,
    crumbs,
    document,
    run_address,
    whole,
)
from sonde.dashboard.outliers import num_standing_out
from sonde.dashboard.results_page import audit_page, check_page
from sonde.errors import SondeError
from sonde.forensics.verdict import known_texts
from sonde.log.backend import LOG, METADATA
from sonde.log.backends.stdout import value_text
from sonde.records import layout
from sonde.records.checksums import verify_checksums
from sonde.records.layout import RunLayout
from sonde.records.reader import newest_records
from sonde.records.values import as_number, step_numbers
from sonde.report import wording
from sonde.report.facts import CheckpointFacts, RunFacts, gather
from sonde.report.html import sections
from sonde.report.html.events import event_list, worst_samples
from sonde.report.html.markup import Child, Markup, moment, note, pairs, section, tag
from sonde.report.html.verdicts import verdict_lines
from sonde.report.marks import Mark
from sonde.spikes.ledger_log import WorstSample, read_worst

Query: TypeAlias = Mapping[str, str]
_HINT: Final = (
    "Drag to zoom, shift and drag to move, double-click to see all, Ctrl and the wheel to zoom."
    " ▼ is an event: click it. ✕ is a value that is not a number."
)
_MAX_LINES: Final = 400
_MAX_RANKS: Final = 2000
_NUM_SAMPLES: Final = 30
_MAX_LEDGER: Final = 64 << 20
"""Ledgers larger than this many bytes are not loaded: the server would never give the memory
back.
"""
_MAX_VERIFIED: Final = 256 << 20
"""Checkpoints are verified up to this many bytes when viewed, newest first; a gigabyte takes
seconds.
"""


def page(row: ListedRun, run: OpenRun, part: str, query: Query) -> str:
    """Return the page of one part of the run, with its header."""
    head = tag("header", crumbs(), tag("h1", row.name), run_state(row, run))
    links = []
    for name in PARTS:
        title = name.capitalize() or "Overview"
        current = "page" if name == part else None
        links.append(tag("a", title, href=run_address(row.name, name), aria_current=current))
    tabs = tag("nav", links, class_="tabs", aria_label="parts of the run")
    return document(row.name, head, tabs, PARTS[part](row, run, query), live=row.name)


def run_state(row: ListedRun, run: OpenRun) -> Markup:
    """Render how the run stands: status, reason, how long it ran and will run, the last write."""
    summary = row.summary
    manifest = summary.manifest
    facts: list[Child] = []
    if not math.isnan(row.seconds_run):
        facts.append(f"ran {wording.duration(row.seconds_run)}")
    if manifest is not None and manifest.num_starts > 1:
        facts.append(f"{manifest.num_starts} starts")
    if not math.isnan(row.seconds_left):
        facts.append(f"{wording.duration(row.seconds_left)} left")
    if row.planned and row.step is not None and row.step < row.planned:
        facts.append(f"{row.step:,} of {row.planned:,} steps")
    if row.changed:
        facts.append(["last write ", ago(row.changed)])
    if manifest is not None:
        facts.append(["began ", moment(manifest.created)])
    num_damaged = sum(run.curves().num_bad.values()) if run.is_ready else 0
    shown = sections.state(summary.status, manifest, num_damaged=num_damaged)
    status = tag("span", shown, id="status")
    rest = [tag("span", fact, class_="fact") for fact in facts]
    return tag("p", status, rest, class_="state", id="state", data_live=True)


def mark_address(name: str, mark: Mark) -> str:
    """Return the URL of the page of a mark."""
    query = {"attempt": str(mark.attempt)} if mark.attempt else {}
    return run_address(name, "step", str(mark.step), **query)


def overview(row: ListedRun, run: OpenRun, query: Query) -> Child:
    """Render curves and events. A large run that is not loaded yet is shown without them, and the
    script asks again.
    """
    ranks = [file.rank for file in RunLayout(run.path).record_files(layout.LOG)]
    facts = gather(run.path, run.curves(), run.spikes()) if run.is_ready else None
    find = tag(
        "input",
        type="search",
        id="filter",
        value=query.get("filter", ""),
        placeholder="filter metrics",
        aria_label="filter metrics",
        autocomplete="off",
    )
    pickers = tag("div", find, *view_controls(query), _rank_picker(ranks), class_="pickers")
    curves = tag("div", note("Reading the curves …", "none"), id="curves", data_run=row.name)
    missing = tag("p", "", class_="note bad", id="missing")
    more = tag("div", "", id="sections")
    drawn = tag(
        "section",
        pickers,
        missing,
        curves,
        note(_HINT, "note hint"),
        more,
        id="loss",
        aria_label="curves",
    )
    parts: dict[str, Child] = dict.fromkeys(("figures", "told", "verdicts", "events"))
    if facts is not None:
        parts = _about(row.name, facts)
    first, second, third, *rest = [
        tag("div", part, id=name, data_live=True) for name, part in parts.items()
    ]
    return [first, second, third, drawn, rest]


def _about(name: str, facts: RunFacts) -> dict[str, Child]:
    """Return what the overview says besides the curves, by the name of its part."""

    def address(mark: Mark) -> str:
        return mark_address(name, mark)

    listed: list[Child] = [section("Events", event_list(facts.marks, address))]
    if facts.earlier:
        listed.append(section("Earlier attempts", event_list(facts.earlier, address)))
    return {
        "figures": sections.figures(facts),
        "told": [sections.notices(facts), sections.healing(facts)],
        "verdicts": verdict_lines(facts.marks, address),
        "events": listed,
    }


def checkpoints(_: ListedRun, run: OpenRun, _query: Query) -> Child:
    """Render the checkpoints with their states, and the skipped samples."""
    facts = gather(run.path, run.curves(), run.spikes())
    budget = _MAX_VERIFIED
    states = {}
    for checkpoint in reversed(facts.checkpoints):
        budget -= checkpoint.num_bytes
        states[checkpoint.step] = _state(run.path, checkpoint, verify=budget >= 0)
    none = note("" if states else "There are no checkpoints in the run.", "none")
    kept = _kept_states(run.path)
    return [none, kept, sections.checkpoints(facts, states), sections.notices(facts)]


def _kept_states(run: Path) -> Markup | None:
    """Render the states that a recorder kept, from which steps can be replayed."""
    folder = RunLayout(run).kept_states
    try:
        steps = CheckpointFolder(folder).steps() if folder.is_dir() else []
    except (SondeError, OSError):
        steps = []
    if not steps:
        return None
    listed = ", ".join(f"{step:,}" for step in steps)
    sentence = f"The recorder kept states after {listed} updates, for replays."
    return tag("p", sentence, " They are in ", tag("code", str(folder)), ".")


def log_page(row: ListedRun, run: OpenRun, query: Query) -> Child:
    """Render the end of the log of one rank."""
    files = RunLayout(run.path).record_files(layout.LOG)
    rank = whole(query.get("rank"), 0)
    links = []
    for file in files[:256]:
        current = "true" if file.rank == rank else None
        address = run_address(row.name, "log", rank=str(file.rank))
        links.append(tag("a", f"rank {file.rank}", href=address, aria_current=current))
    found = [file.path for file in files if file.rank == rank]
    records = list(newest_records(found[0]))[::-1] if found else []
    written = [record for record in records if record.get("type") != METADATA][-_MAX_LINES:]
    lines: list[Child] = []
    for record in written:
        when = as_number(record.get("timestamp"))
        clock = moment(when, data_clock=True) if when else ""
        lines.append([clock, _log_line(record), "\n"])
    ranks = tag("nav", links, class_="ranks", aria_label="ranks") if len(files) > 1 else None
    shown = tag("pre", lines, class_="log", id="log-lines", data_live=True, tabindex="0")
    return [ranks, shown if lines else note("Nothing was logged.", "none")]


def settings_page(_: ListedRun, run: OpenRun, _query: Query) -> Child:
    """Render the settings and the machine of the run."""
    facts = gather(run.path, run.curves(), run.spikes())
    about = pairs(sections.origin(facts, facts.manifest)) if facts.manifest is not None else None
    return [
        tag("section", about),
        sections.speed(facts),
        sections.settings(facts),
        sections.notices(facts),
    ]


def _rank_picker(ranks: list[int]) -> Markup | None:
    if len(ranks) < 2:
        return None
    each = [(str(rank), f"rank {rank}") for rank in ranks[:_MAX_RANKS]]
    return choice("rank", "of ", [("", "all ranks"), *each], "", data_state="rank")


def _state(run: Path, checkpoint: CheckpointFacts, *, verify: bool) -> Markup:
    if not verify:
        command = f"sonde checkpoints {shlex.quote(str(run))} --verify"
        return tag("span", "not verified here: ", tag("code", command))
    stamp = (checkpoint.num_bytes, checkpoint.path.stat().st_mtime_ns)
    problem = _problem(checkpoint.path, stamp)
    if problem:
        return tag("span", problem, class_="bad")
    return tag("span", "verified", class_="status good")


@lru_cache(maxsize=256)
def _problem(checkpoint: Path, _stamp: tuple[int, int]) -> str:
    """Return what is wrong with a checkpoint's bytes. Cached by size and time, because live pages
    ask repeatedly.
    """
    try:
        return "; ".join(verify_checksums(checkpoint)[:1])
    except (SondeError, OSError) as error:
        return str(error)


def _log_line(record: dict[str, Any]) -> str:
    data = record.get("data")
    if record.get("type") != LOG or not isinstance(data, dict):
        return f"  {value_text(data)}"
    shown = {name: value for name, value in data.items() if (name, value) != ("rank", -1)}
    values = "  ".join(f"{name} {wording.number(value)}" for name, value in shown.items())
    step = record.get("step")
    return f"  {'/'.join(map(str, step_numbers(step) or (step,))):>8}  {values}"


def samples_page(_: ListedRun, run: OpenRun, _query: Query) -> Child:
    """Render the worst samples, or a note if the run kept no ledger."""
    command = f"sonde worst {shlex.quote(str(run.path))}"
    size = sum(
        path.stat().st_size for path in RunLayout(run.path).ledger.glob("rank*") if path.is_file()
    )
    if size > _MAX_LEDGER:
        sentence = (
            f"The ledger has {wording.size(size)}, too much for this page. On the command line:"
        )
        return [tag("p", sentence), commands([("the worst samples", command)])]
    found = read_worst(run.path, _NUM_SAMPLES) if size else None
    if found is None or not found.entries:
        return note(
            "This run kept no ledger of its samples: their losses were not recorded.", "none"
        )
    num_outlying = num_standing_out([entry.history.mean for entry in found.entries])
    sentence = (
        f"The {len(found.entries)} worst of {found.num_samples:,} samples, by how far their loss"
        " was above that of others of their length over all epochs."
    )
    bad = note(f"{found.num_bad} parts of the ledger could not be read" if found.num_bad else "")
    stands_out = (
        "None of them stands out: the highest of so many are expected to be as high. There is no"
        " reason to skip them."
    )
    skip = None
    if num_outlying:
        stand = "stands" if num_outlying == 1 else "stand"
        stands_out = f"{num_outlying} of them {stand} out from the others: in red."
        line = f"{command} --num {num_outlying} --skip"
        skip = section("What to do next", commands([("skip those that stand out", line)]))
    known = known_texts(run.path)
    entries = [_with_text(entry, known) for entry in found.entries]
    listed = worst_samples(entries, num_outlying=num_outlying)
    return [tag("p", f"{sentence} {stands_out}"), bad, listed, skip]


def _with_text(entry: WorstSample, known: Mapping[tuple[str, int], str]) -> WorstSample:
    """Return a sample with the text that a verdict has of it, if its data cannot be opened."""
    sample = entry.history.sample
    text = known.get((entry.history.dataset, sample), "") if isinstance(sample, int) else ""
    if entry.decoded.text or not text:
        return entry
    return replace(entry, decoded=replace(entry.decoded, text=text, problem=""))


PARTS: Final[dict[str, Callable[[ListedRun, OpenRun, Query], Child]]] = {
    "": overview,
    "samples": samples_page,
    "checkpoints": checkpoints,
    "check": check_page,
    "audit": audit_page,
    "log": log_page,
    "settings": settings_page,
}
"""The parts of a run, each with its own URL and tab."""
