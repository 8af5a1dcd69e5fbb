"""The pages of one run: its curves and events, worst samples, checkpoints, log, settings."""

import shlex
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from sonde.dashboard.folder import Row
from sonde.dashboard.frame import commands, crumbs, document, run_address, tabs
from sonde.dashboard.open_runs import OpenRun
from sonde.errors import SondeError
from sonde.log.backend import LOG, METADATA
from sonde.log.screen import value_text
from sonde.log.steps import step_numbers
from sonde.records import layout
from sonde.records.checksums import verify_checksums
from sonde.records.layout import RunLayout
from sonde.records.reader import read_last_records
from sonde.report import wording
from sonde.report.facts import CheckpointFacts, RunFacts, gather
from sonde.report.html.events import event_list, sample_figure
from sonde.report.html.markup import Child, Markup, pairs, tag
from sonde.report.html.overview import checkpoints as listed_checkpoints
from sonde.report.html.overview import figures, healing, notices, origin, settings, speed, tone
from sonde.spikes.ledger_log import WorstSample, read_worst

_HINT: Final = "Drag to zoom, shift and drag to move, double-click to see all. ▼ is an event: click it for its text."
_MAX_LINES: Final = 400
_MAX_METRICS: Final = 2000
_NUM_SAMPLES: Final = 30
_MAX_TEXT: Final = 700
_MAX_LEDGER: Final = 64 << 20
"""A greater one takes the memory of a server for good."""
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
        tag("div", _events(row.name, facts) if facts else None, id="events", data_live=True),
        tag("div", _diagnosed(row.name, facts) if facts else None, id="verdicts", data_live=True),
    )


def checkpoints(row: Row, facts: RunFacts) -> str:
    """Its checkpoints with their state, and the samples that are left out."""
    budget, states = _MAX_VERIFIED, {}
    for one in reversed(facts.checkpoints):
        budget -= one.num_bytes
        states[one.step] = _state(one, verify=budget >= 0)
    none = tag("p", "There are no checkpoints in the run.", class_="none")
    return frame(row, "checkpoints", none if not states else None, listed_checkpoints(facts, states), notices(facts))


def samples_page(row: Row) -> str:
    """The page; a run that kept no ledger says so."""
    return frame(row, "samples", *_worst(row.summary.directory))


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


def _events(name: str, facts: RunFacts) -> Markup:
    listed = event_list(facts.events, lambda step: run_address(name, "step", str(step)))
    return tag("section", tag("h2", "Events"), listed)


def _diagnosed(name: str, facts: RunFacts) -> Markup | None:
    rows = [
        tag("li", tag("a", f"Step {one.step:,}", href=run_address(name, "step", str(one.step))), ": ", one.causes[0].title)
        for one in facts.verdicts
        if one.causes
    ]  # fmt: skip
    return tag("section", tag("h2", "Verdicts"), tag("ul", rows, class_="plain")) if rows else None


def _state(one: CheckpointFacts, *, verify: bool) -> Markup:
    if not verify:
        return tag("span", "not verified here: ", tag("code", "sonde checkpoints RUN --verify"))
    problem = _problem(one.path, (one.num_bytes, one.path.stat().st_mtime_ns))
    return tag("span", problem, class_="bad") if problem else tag("span", "verified", class_="status good")


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


def _worst(run: Path) -> list[Child]:
    command = f"sonde worst {shlex.quote(str(run))}"
    size = sum(path.stat().st_size for path in RunLayout(run).ledger.glob("rank*") if path.is_file())
    if size > _MAX_LEDGER:
        told = f"The ledger has {wording.size(size)}, too much for this page. On the command line:"
        return [tag("p", told), commands([("the worst samples", command)])]
    found = read_worst(run, _NUM_SAMPLES) if size else None
    if found is None or not found.entries:
        return [tag("p", "This run kept no ledger of its samples: their losses were not recorded.", class_="none")]
    told = f"The {len(found.entries)} worst of {found.num_samples:,} samples, by how far their loss was above that of others of their length over all epochs."
    return [
        tag("p", told),
        tag("p", f"{found.num_bad} parts of the ledger could not be read", class_="note") if found.num_bad else None,
        [_sample(place, entry) for place, entry in enumerate(found.entries, 1)],
        tag(
            "section",
            tag("h2", "What to do next"),
            commands([("leave them out", f"{command} --num {_NUM_SAMPLES} --skip")]),
        ),
    ]


def _sample(place: int, entry: WorstSample) -> Markup:
    history, decoded = entry.history, entry.decoded
    same = ", ".join(str(one.sample) for one in entry.duplicates[:20])
    told = [
        f"last {history.last:.1f}" if history.count > 1 else "",
        f"seen {history.count} times" if history.count > 1 else "seen once",
        history.trend,
        f"{history.dataset} {history.sample}".strip(),
        f"{decoded.file}:{decoded.line}" if decoded.line is not None else "",
        f"the same text: {same}" if same else "",
    ]
    text = wording.shortened(decoded.text, _MAX_TEXT)
    shown = tag("pre", text, class_="sample", tabindex="0") if text else None
    return sample_figure(f"{place}. {history.mean:.1f} deviations above", None, told, decoded, shown)
