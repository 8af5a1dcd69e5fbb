"""The pages of one run (curves, events, samples, checkpoints, log, settings) and of one event.

The page of an event shows the samples behind it with their text, the diagnosis, the tensors, and commands to run next.
"""

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final, TypeAlias

from sonde.dashboard.folder import OpenRun, Row
from sonde.dashboard.frame import commands, crumbs, document, here, run_address, whole
from sonde.errors import SettingError, SondeError
from sonde.forensics.verdict import Verdict, read_verdict
from sonde.log.backend import LOG, METADATA
from sonde.log.backends.stdout import value_text
from sonde.records import layout
from sonde.records.checksums import verify_checksums
from sonde.records.layout import RunLayout
from sonde.records.reader import newest_records
from sonde.records.values import step_numbers
from sonde.report import wording
from sonde.report.facts import CheckpointFacts, event_facts, gather
from sonde.report.html import sections
from sonde.report.html.markup import Child, Markup, note, pairs, section, tag
from sonde.spikes.decoding import SampleDecoder
from sonde.spikes.ledger_log import read_worst
from sonde.spikes.spike_log import RecordedSpike

Query: TypeAlias = Mapping[str, str]
_HINT: Final = "Drag to zoom, shift and drag to move, double-click to see all. ▼ is an event: click it for its text."
_MAX_LINES: Final = 400
_MAX_METRICS: Final = 2000
_NUM_SAMPLES: Final = 30
_MAX_LEDGER: Final = 64 << 20
"""Ledgers larger than this many bytes are not loaded: the server would never give the memory back."""
_MAX_VERIFIED: Final = 256 << 20
"""Checkpoints are verified up to this many bytes when viewed, newest first; a gigabyte takes seconds."""


def page(row: Row, run: OpenRun, part: str, query: Query) -> str:
    """Return the page of one part of the run, with its header."""
    summary = row.summary
    status = sections.state(summary.status, summary.manifest)
    head = tag("header", crumbs(), tag("h1", row.name), tag("p", status, class_="state", id="state", data_live=True))
    links = [
        tag("a", name.capitalize() or "Overview", href=run_address(row.name, name), aria_current="page" if name == part else None)
        for name in PARTS
    ]  # fmt: skip
    tabs = tag("nav", links, class_="tabs", aria_label="parts of the run")
    return document(row.name, head, tabs, PARTS[part](row, run, query), live=row.name)


def overview(row: Row, run: OpenRun, _: Query) -> Child:
    """Render curves and events. A large run that is not loaded yet is shown without them, and the script asks again."""
    ranks = [file.rank for file in RunLayout(run.path).record_files(layout.LOG)]
    facts = gather(run.path, run.curves(), run.spikes()) if run.is_ready else None
    names = run.curves().names if facts is not None else []
    pickers = tag("div", _metric_picker(names), _rank_picker(ranks), class_="pickers")
    curves = tag("div", note("Reading the curves …", "none"), id="curves", data_run=row.name)
    drawn = tag("section", pickers, curves, note(_HINT, "note hint"), id="loss", aria_label="curves")

    def address(step: int) -> str:
        return run_address(row.name, "step", str(step))

    parts = {
        "figures": sections.figures(facts) if facts else None,
        "told": [sections.notices(facts), sections.healing(facts)] if facts else None,
        "events": section("Events", sections.event_list(facts.events, address)) if facts else None,
        "verdicts": _diagnosed(facts.verdicts, address) if facts else None,
    }
    first, second, *rest = [tag("div", part, id=name, data_live=True) for name, part in parts.items()]
    return [first, second, drawn, rest]


def checkpoints(_: Row, run: OpenRun, _query: Query) -> Child:
    """Render the checkpoints with their states, and the skipped samples."""
    facts = gather(run.path, run.curves(), run.spikes())
    budget, states = _MAX_VERIFIED, {}
    for one in reversed(facts.checkpoints):
        budget -= one.num_bytes
        states[one.step] = _state(one, verify=budget >= 0)
    none = note("" if states else "There are no checkpoints in the run.", "none")
    return [none, sections.checkpoints(facts, states), sections.notices(facts)]


def log_page(row: Row, run: OpenRun, query: Query) -> Child:
    """Render the end of the log of one rank."""
    files, rank = RunLayout(run.path).record_files(layout.LOG), whole(query.get("rank"), 0)
    links = [
        tag("a", f"rank {file.rank}", href=run_address(row.name, "log", rank=str(file.rank)), aria_current="true" if file.rank == rank else None)
        for file in files[:256]
    ]  # fmt: skip
    found = [file.path for file in files if file.rank == rank]
    records = list(newest_records(found[0]))[::-1] if found else []
    lines = [_log_line(record) for record in records if record.get("type") != METADATA][-_MAX_LINES:]
    ranks = tag("nav", links, class_="ranks", aria_label="ranks") if len(files) > 1 else None
    shown = tag("pre", "\n".join(lines), class_="log", id="log-lines", data_live=True, tabindex="0")
    return [ranks, shown if lines else note("Nothing was logged.", "none")]


def settings_page(_: Row, run: OpenRun, _query: Query) -> Child:
    """Render the settings and the machine of the run."""
    facts = gather(run.path, run.curves(), run.spikes())
    about = pairs(sections.origin(facts, facts.manifest)) if facts.manifest is not None else None
    return [tag("section", about), sections.speed(facts), sections.settings(facts), sections.notices(facts)]


def _metric_picker(names: list[str]) -> Markup:
    """Return the metric picker; the script selects what the URL says."""
    options = [tag("option", one, value=one) for one in names[:_MAX_METRICS]]
    picked = tag("select", tag("option", "the usual", value=""), options, id="metric", data_live=True)
    return tag("span", tag("label", "add a metric ", picked), tag("span", "", id="chosen"))


def _rank_picker(ranks: list[int]) -> Markup | None:
    if len(ranks) < 2:
        return None
    each = [tag("option", f"rank {rank}", value=str(rank)) for rank in ranks[:_MAX_METRICS]]
    return tag("label", "of ", tag("select", tag("option", "all ranks", value=""), each, id="rank"))


def _diagnosed(found: Sequence[Verdict], address: Callable[[int], str]) -> Markup | None:
    links = [(tag("a", f"Step {one.step:,}", href=address(one.step)), one.causes[0]) for one in found if one.causes]
    rows = [tag("li", link, ": ", cause.title) for link, cause in links]
    return section("Verdicts", tag("ul", rows, class_="plain")) if rows else None


def _state(one: CheckpointFacts, *, verify: bool) -> Markup:
    if not verify:
        return tag("span", "not verified here: ", tag("code", "sonde checkpoints RUN --verify"))
    problem = _problem(one.path, (one.num_bytes, one.path.stat().st_mtime_ns))
    return tag("span", problem, class_="bad") if problem else tag("span", "verified", class_="status good")


@lru_cache(maxsize=256)
def _problem(checkpoint: Path, _stamp: tuple[int, int]) -> str:
    """Return what is wrong with a checkpoint's bytes. Cached by size and time, because live pages ask repeatedly."""
    try:
        return "; ".join(verify_checksums(checkpoint)[:1])
    except (SondeError, OSError) as error:
        return str(error)


def _log_line(record: dict[str, Any]) -> str:
    when, data = str(record.get("datetime") or "")[11:19], record.get("data")
    if record.get("type") != LOG or not isinstance(data, dict):
        return f"{when}  {value_text(data)}"
    shown = {name: value for name, value in data.items() if (name, value) != ("rank", -1)}
    values = "  ".join(f"{name} {wording.number(value)}" for name, value in shown.items())
    step = record.get("step")
    return f"{when}  {'/'.join(map(str, step_numbers(step) or (step,))):>8}  {values}"


def samples_page(_: Row, run: OpenRun, _query: Query) -> Child:
    """Render the worst samples, or a note if the run kept no ledger."""
    command = f"sonde worst {shlex.quote(str(run.path))}"
    size = sum(path.stat().st_size for path in RunLayout(run.path).ledger.glob("rank*") if path.is_file())
    if size > _MAX_LEDGER:
        told = f"The ledger has {wording.size(size)}, too much for this page. On the command line:"
        return [tag("p", told), commands([("the worst samples", command)])]
    found = read_worst(run.path, _NUM_SAMPLES) if size else None
    if found is None or not found.entries:
        return note("This run kept no ledger of its samples: their losses were not recorded.", "none")
    told = f"The {len(found.entries)} worst of {found.num_samples:,} samples, by how far their loss was above that of others of their length over all epochs."
    bad = note(f"{found.num_bad} parts of the ledger could not be read" if found.num_bad else "")
    skip = section("What to do next", commands([("leave them out", f"{command} --num {_NUM_SAMPLES} --skip")]))
    return [tag("p", told), bad, sections.worst_samples(found.entries), skip]


def event_page(name: str, run: OpenRun, step: int, *, allow_jobs: bool) -> str:
    """Render the page of an event, or a note if nothing was recorded at this step."""
    log = run.spikes()
    try:
        spike: RecordedSpike | None = log.at(step)
    except SettingError:
        spike = None
    verdict, problem = _verdict(run, step, spike)
    body: list[Child] = [note(problem)]
    if spike is not None:
        facts = event_facts(spike, SampleDecoder(log.datasets))
        samples = tag("section", sections.event_samples(facts), id="samples")
        unknown = note(facts.problem or "The samples of this step were not recorded.")
        body += [sections.event_list([facts]), samples if facts.samples else unknown]
    elif verdict is None:
        body += [note(f"No event was recorded at step {step:,}, and there is no verdict about it.", "none")]
    body += [] if verdict is None else [sections.verdict(verdict), sections.tensors(verdict)]
    steps = [one.event.first_step for one in log.spikes]
    around = _neighbours(name, steps, spike.event.first_step if spike is not None else step)
    way_back = crumbs(tag("a", name, href=run_address(name)), here(f"step {step:,}"))
    head = tag("header", way_back, tag("h1", f"Step {step:,}"), around)
    return document(f"step {step} of {name}", head, body, _next(run, step, verdict, name, allow_jobs), live=name)


def _verdict(run: OpenRun, step: int, spike: RecordedSpike | None) -> tuple[Verdict | None, str]:
    """Return the verdict on this step or on another step of the same event, and a problem if it cannot be read."""
    known = [number for number, _ in RunLayout(run.path).verdicts()]
    event = [] if spike is None else range(spike.event.first_step, spike.event.last_step + 1)
    wanted = step if step in known else next((number for number in known if number in event), None)
    if wanted is None:
        return None, ""
    try:
        return read_verdict(run.path, wanted), ""
    except SondeError as error:
        return None, error.message


def _neighbours(name: str, steps: list[int], step: int) -> Markup:
    before = max((one for one in steps if one < step), default=None)
    after = min((one for one in steps if one > step), default=None)
    links = [
        tag("a", f"{text} event, step {one:,}", href=run_address(name, "step", str(one)), rel=rel)
        for text, rel, one in (("previous", "prev", before), ("next", "next", after))
        if one is not None
    ]
    around = run_address(name, **{"from": str(max(step - 100, 0)), "to": str(step + 100)})
    return tag("p", tag("a", "see it in the curves", href=around), links, class_="links")


def _next(run: OpenRun, step: int, verdict: Verdict | None, name: str, allow_jobs: bool) -> Markup:
    place = shlex.quote(str(run.path))
    lines = [
        ("make the step again, bit for bit", f"sonde replay {place} --step {step}"),
        ("find the cause" if verdict is None else "find the cause again", f"sonde diagnose {place} --step {step}"),
        ("plan the way back", f"sonde rollback {place} --step {step}"),
        ("see all samples", f"sonde spikes {place} --step {step}"),
        ("leave its worst sample out", f"sonde skip {place} --step {step} --worst 1"),
    ]
    jobs = [
        tag("button", text, type="button", data_job=kind, data_run=name, data_step=step)
        for text, kind in (("Diagnose", "diagnose"), ("Replay", "replay"))
    ]
    output = tag("pre", "", class_="log", id="job-output", hidden=True, tabindex="0")
    work = tag("div", jobs, output, class_="jobs") if allow_jobs else None
    return section("What to do next", commands(lines), work)


PARTS: Final[dict[str, Callable[[Row, OpenRun, Query], Child]]] = {
    "": overview,
    "samples": samples_page,
    "checkpoints": checkpoints,
    "log": log_page,
    "settings": settings_page,
}
"""The parts of a run, each with its own URL and tab."""
