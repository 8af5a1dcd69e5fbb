"""The sections of a report, which the pages of the dashboard show too: run, verdicts, events, samples, tensors, settings."""

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sonde.forensics.verdict import Cause, Experiment, ModuleStatistics, ReplayResult, Suspect, Verdict
from sonde.records.manifest import RUNNING, Manifest
from sonde.report import wording
from sonde.report.facts import HOTTEST, EventFacts, RunFacts
from sonde.report.html.markup import Child, Markup, bar, group, left_out, note, pairs, section, table, tag
from sonde.report.run_curves import LOSS, SPEED, VALIDATION_LOSS
from sonde.spikes.decoding import DecodedSample
from sonde.spikes.ledger_log import WorstSample
from sonde.spikes.spike_log import RecordedSpike

_MAX_LISTED: Final = 500
_MAX_TOKENS: Final = 1500
_MAX_TEXT: Final = 4000
_MAX_LINE: Final = 300
_MAX_SUSPECTS: Final = 10
_MAX_SUSPECT_TEXT: Final = 1200
_MAX_ROWS: Final = 600
_MAX_OPEN: Final = 40
OUTLYING: Final = 4.0
"""A norm stands out if it is more than this factor above or below its calm norm."""


def head(facts: RunFacts) -> Markup:
    """Render the run's name, its status, and when, where and how it was run."""
    manifest, kicker = facts.manifest, tag("p", "sonde report", class_="kicker")
    status = tag("p", state(facts.status, manifest), class_="state")
    about = pairs(origin(facts, manifest)) if manifest is not None else None
    return tag("header", kicker, tag("h1", facts.directory.name), status, about, figures(facts))


def notices(facts: RunFacts) -> Markup | None:
    """Render the list of what could not be read."""
    if not facts.problems:
        return None
    listed = tag("ul", [tag("li", problem) for problem in facts.problems])
    return section("Not everything could be read", listed, class_="notice", id="notices")


def healing(facts: RunFacts) -> Markup | None:
    """Render what the run did to heal itself."""
    if not facts.healing:
        return None
    chapters = [tag("li", tag("b", first), " ", " ".join(rest)) for first, *rest in facts.healing]
    return section("How the run was mended", tag("ul", chapters), id="healing")


def speed(facts: RunFacts) -> Markup:
    """Render where the time of an update went. Speed over the steps is one of the curves."""
    total = sum(facts.phases.values())
    if not total > 0:
        return section("Time", note("No times were logged.", "none"), id="time")
    rows: list[list[Child]] = []
    for phase, seconds in facts.phases.items():
        share = seconds / total
        rows.append([phase, wording.duration(seconds), wording.percent(share), bar(share)])
    rows.append([tag("b", "an update"), wording.duration(total), None, None])
    numbers = table(("", "mean", "share", ""), rows, right=("mean", "share"), class_="narrow")
    return section("Time", numbers, id="time")


def checkpoints(facts: RunFacts, states: Mapping[int, Child] | None = None) -> Markup | None:
    """Render the checkpoints with their states, and the skipped samples."""
    rows: list[list[Child]] = []
    for one in reversed(facts.checkpoints):
        metrics = (f"{name} {wording.number(value)}" for name, value in one.about.metrics.items() if name != "weight")
        bad = tag("span", f"distrusted: {one.about.distrusted}", class_="bad") if one.about.distrusted else None
        known = bad or (states or {}).get(one.step)
        rows.append([one.step, wording.size(one.num_bytes), ", ".join(metrics), known])
    columns = ("after updates", "size", "evaluation before it", "state")
    listed = table(columns, rows, right=columns[:2], class_="narrow events")
    shown = [section("Checkpoints", listed, id="checkpoints")] * bool(rows)
    shown += [section("Samples left out", tag("pre", facts.skip_list), id="skipped")] * bool(facts.skip_list)
    return tag("div", shown) if shown else None


def settings(facts: RunFacts) -> Markup | None:
    """Render settings, versions, machine and data."""
    shown = []
    for name in ("settings", "versions", "host", "seeds", "git", "data", "other"):
        found = wording.setting_rows(getattr(facts.manifest, name, None))
        rows = [(key, wording.shortened(text, 2000)) for key, text in found]
        shown += [tag("div", tag("h3", name.capitalize()), pairs(rows))] if rows else []
    return section("Settings and versions", shown, id="settings") if shown else None


def state(status: str, manifest: Manifest | None = None) -> Markup:
    """Render the status of a run and its reason."""
    bad = "bad" if status in ("failed", "killed", "damaged") else "calm"
    tone = "good" if status in ("finished", RUNNING) else bad
    reason = tag("span", manifest.reason, class_="reason") if manifest is not None and manifest.reason else None
    return group([tag("span", status, class_=f"status {tone}"), reason])


def origin(facts: RunFacts, manifest: Manifest) -> list[tuple[str, Child]]:
    """Return when, where and how the run was run, as names and values."""
    told: dict[str, Child] = {**wording.about_run(manifest), "directory": tag("code", str(facts.directory))}
    # Each word in its own element, so that lines break between words and not after an option's dashes.
    words = [[tag("span", shlex.quote(str(word)), class_="word"), " "] for word in manifest.command]
    return [*{**told, "command": tag("code", words) if words else None}.items()]


def figures(facts: RunFacts) -> Markup:
    """Render the key figures of a run."""
    loss, validation, speed = map(facts.curves.get, (LOSS, VALIDATION_LOSS, SPEED))
    num_skipped = facts.series.updates.num_skipped
    found: list[tuple[str, float | None, str]]
    found = [("updates", facts.last_step, f"{num_skipped:,} skipped" if num_skipped else "")]
    if loss is not None and len(loss):
        found.append(("loss", float(loss.values[-1]), f"from {wording.number(float(loss.values[0]))}"))
    if validation is not None and len(curve := validation.finite()):
        best = int(curve.values.argmin())
        found.append(("best validation loss", float(curve.values[best]), f"step {curve.steps[best]:,}"))
    found.append(("events", len(facts.events), ""))
    if speed is not None and len(curve := speed.finite()):
        found.append(("tokens/s", round(curve.values.mean()), "mean"))
    shown = [
        tag("div", tag("span", name, class_="name"), tag("b", wording.number(value)), tag("span", note, class_="note"))
        for name, value, note in found
        if value is not None
    ]
    return tag("div", shown, class_="figures")


def verdict(verdict: Verdict) -> Markup:
    """Render the verdict on one step."""
    first, *others = verdict.causes or (None,)
    made = [wording.moment(verdict.time)] if verdict.time else []
    made += [f"took {wording.duration(verdict.seconds)}"] if verdict.seconds else []
    parts: list[Child] = [_cause(first, class_="cause first") if first is not None else None]
    parts += [tag("div", tag("h3", "Less likely"), map(_cause, others))] if others else []
    parts += [_replay(verdict.replay)] if verdict.replay is not None else []
    parts += [_experiments(verdict.experiments)] if verdict.experiments else []
    parts += [note(f"Diagnosis of {', '.join(made)}" if made else "")]
    return section(f"What happened at step {verdict.step:,}", parts, class_="verdict", id=f"verdict-{verdict.step}")


def _cause(cause: Cause, class_: str = "cause") -> Markup:
    rank = None if cause.rank is None else str(cause.rank)
    points_at = {"module": cause.module, "rank": rank, "setting": cause.setting}
    labels = [tag("span", f"{name} ", tag("code", text), class_="label") for name, text in points_at.items() if text]
    kind = tag("span", cause.cause.replace("_", " "), class_="label")
    share = [bar(cause.confidence), tag("b", wording.percent(cause.confidence))]
    confidence = tag("p", share, kind, labels, class_="confidence")
    headline = tag("div", tag("p", cause.title, class_="title"), confidence, class_="headline")
    told = [_told("Evidence", cause.evidence), _told("What to do", [_with_commands(one) for one in cause.advice])]
    suspects = map(_suspect, cause.suspects[:_MAX_SUSPECTS])
    more = left_out(len(cause.suspects) - _MAX_SUSPECTS, " samples")
    return tag("article", headline, told, suspects, more, class_=class_)


def _with_commands(advice: str) -> Markup:
    """Return advice with the text between backticks marked as code."""
    return group([tag("code", part) if place % 2 else part for place, part in enumerate(advice.split("`"))])


def _told(title: str, sentences: Sequence[str]) -> Markup | None:
    if not sentences:
        return None
    return tag("div", tag("h4", title), tag("ul", [tag("li", one) for one in sentences]), class_="told")


def _suspect(suspect: Suspect) -> Markup:
    loss = [] if suspect.loss is None else [f"loss {wording.number(suspect.loss)}"]
    caption = tag("figcaption", " · ".join([*wording.origin(suspect, suspect), *loss, f"rank {suspect.rank}"]))
    text = tag("pre", wording.shortened(suspect.text, _MAX_SUSPECT_TEXT), class_="sample") if suspect.text else None
    return tag("figure", caption, text, class_="suspect")


def _replay(replay: ReplayResult) -> Markup:
    result, tone = {
        None: ("Replayed; the run had recorded no loss to compare with", "calm"),
        True: ("Replayed: the recorded loss came out again, bit for bit", "good"),
        False: ("Replayed: another loss came out", "bad"),
    }[replay.reproduced]
    recorded = "nothing" if replay.recorded_loss is None else repr(replay.recorded_loss)
    start = f"the state after update {replay.from_step:,}" if replay.from_step else "the beginning"
    losses = [tag("code", recorded), ", replayed: ", tag("code", repr(replay.replayed_loss)), "."]
    told = [tag("p", tag("span", result, class_=f"status {tone}")), tag("p", f"From {start}. Recorded: ", losses)]
    differences = tag("ul", [tag("li", one) for one in replay.differences]) if replay.differences else None
    return tag("div", tag("h3", "Replay"), told, differences)


def _experiments(experiments: tuple[Experiment, ...]) -> Markup:
    rows: list[list[Child]] = []
    for one in experiments:
        numbers = [tag("li", f"{name} {wording.number(value)}") for name, value in one.numbers.items()]
        rows.append([tag("b", one.question), one.done, one.found, tag("ul", numbers, class_="bare")])
    tried = table(("question", "done", "found", "numbers"), rows, class_="prose")
    return tag("div", tag("h3", "What was tried"), tried)


def tensors(verdict: Verdict) -> Markup | None:
    """Render the tensor statistics of a verdict, if it has any."""
    modules = verdict.modules
    if not modules:
        return None
    shown: Child = _modules(modules)
    if len(modules) > _MAX_OPEN:
        marked = [one for one in modules if is_outlying(one)]
        whole = tag("details", tag("summary", "All of them"), _modules(modules[:_MAX_ROWS]))
        shown = [_modules(marked[:_MAX_OPEN]) if marked else None, whole, left_out(len(modules) - _MAX_ROWS)]
    title = f"Tensors at step {verdict.step:,}"
    return section(title, tag("p", summary(modules)), shown, id=f"tensors-{verdict.step}")


def _modules(modules: Sequence[ModuleStatistics]) -> Markup:
    columns = ("module", "of", "norm", "calm norm", "ratio", "", "max", "not finite")
    numbers = ("norm", "calm norm", "ratio", "max", "not finite")
    return table(columns, map(_module_row, modules), right=numbers, class_="tensors")


def _module_row(one: ModuleStatistics) -> list[Child]:
    times = ratio(one)
    tone = "bad" if is_outlying(one) else None
    # Logarithmic scale: half full means unchanged, empty a thousandth, full a thousand times as much.
    share = 0.0 if times is None or not times > 0 else 0.5 + math.log10(min(times, 1e3)) / 6
    shown = [None, None] if times is None else [tag("span", ratio_text(one), class_=tone), bar(share, "ratio")]
    bad = tag("span", wording.number(one.num_nonfinite), class_="bad") if one.num_nonfinite else None
    return [tag("code", one.module, class_=tone), one.kind, one.norm, one.calm_norm, *shown, one.max_abs, bad]


def ratio(one: ModuleStatistics) -> float | None:
    """Return the norm divided by the calm norm, or None if the latter is unknown."""
    if one.calm_norm is None or not one.calm_norm > 0:
        return None
    return one.norm / one.calm_norm


def ratio_text(one: ModuleStatistics) -> str:
    """Return the ratio with three digits; empty if unknown."""
    times = ratio(one)
    if times is None:
        return ""
    return f"{times:.3g}×" if math.isfinite(times) and times < 1e6 else wording.number(times)


def is_outlying(one: ModuleStatistics) -> bool:
    """Return whether the tensor is not finite or its norm is far from its calm norm."""
    times = ratio(one)
    return one.num_nonfinite > 0 or (times is not None and not 1 / OUTLYING < times < OUTLYING)


def summary(modules: tuple[ModuleStatistics, ...]) -> str:
    """Return a sentence with the number of tensors and how many stand out."""
    marked = sum(map(is_outlying, modules))
    standing = f"{marked:,} of them not finite, or" if marked else "all of them finite, and none"
    return f"{len(modules):,} tensors in the order of execution; {standing} beyond {OUTLYING:g} times its calm norm either way."


def events(found: tuple[EventFacts, ...]) -> Markup:
    """Render a table of all events, then the worst of them with their samples."""
    samples = [event_samples(one) for one in found if one.samples]
    return section("Events", event_list(found), samples, id="events")


def event_list(found: Sequence[EventFacts], address: Callable[[int], str] | None = None) -> Markup:
    """Render one row per event; with `address`, its step links there."""
    if not found:
        return tag("p", "No events were recorded.", class_="none")
    rows: list[list[Child]] = []
    for one in found[:_MAX_LISTED]:
        step, *rest = event_row(one.spike)
        rows.append([step if address is None else tag("a", f"{step:,}", href=address(step)), *rest])
    columns = ("step", "steps", "kind", "of", "value", "expected", "z", "peak", "")
    numbers = ("step", "steps", "value", "expected", "z", "peak")
    listed = table(columns, rows, right=numbers, class_="narrow events")
    return group([listed, left_out(len(found) - _MAX_LISTED)])


def event_row(spike: RecordedSpike) -> list[Any]:
    """Return step, length, kind, metric, value, expected value, z, peak and notes of an event."""
    event = spike.event
    notes = [f"seen {spike.num_seen} times"] if spike.num_seen > 1 else []
    notes += ["not over when recording ended"] if spike.is_over is False else []
    length, metric = event.last_step - event.first_step + 1, event.metric.replace("_", " ")
    expected = "" if math.isnan(event.baseline) else event.baseline
    z = "" if math.isnan(event.z) else f"{event.z:.1f}"
    peak = f"{wording.number(event.peak)} at {event.peak_step:,}" if event.num_bad > 1 else ""
    return [event.first_step, length, event.kind, metric, event.value, expected, z, peak, ", ".join(notes)]


def worst_samples(found: Sequence[WorstSample]) -> Markup | None:
    """Render the samples that were worst over all epochs."""
    if not found:
        return None
    columns = ("mean", "last", "times seen", "trend", "sample", "same text", "text")
    numbers = ("mean", "last", "times seen", "same text")
    listed = table(columns, map(worst_row, found), right=numbers, class_="worst")
    told = "Mean and last: how many deviations a sample's loss was above that of samples of its length."
    return section("Worst samples", listed, note(told), id="worst")


def worst_row(entry: WorstSample, max_characters: int = _MAX_LINE) -> list[str | int]:
    """Return mean, last, number of times, trend, origin, number of duplicates and text of a sample."""
    one, text = entry.history, " ".join(entry.decoded.text.split())
    where, same = ", ".join(wording.origin(one, entry.decoded)), f"+{len(entry.duplicates)}" if entry.duplicates else ""
    shown = wording.shortened(text, max_characters) or entry.decoded.problem
    return [f"{one.mean:.1f}", f"{one.last:.1f}", one.count, one.trend, where, same, shown]


def event_samples(facts: EventFacts) -> Markup:
    """Render the worst samples of an event, with tokens colored by loss."""
    event = facts.spike.event
    shown = f"the worst {len(facts.samples)} of {facts.num_samples} samples"
    coloured = any(sample.ranked.token_losses and sample.token_texts for sample in facts.samples)
    samples = [_sample(place, sample, facts) for place, sample in enumerate(facts.samples, 1)]
    heats = [tag("span", "\u2002", class_=f"h{heat}") for heat in range(1, HOTTEST + 1)]
    told = f"loss of a token: up to {wording.number(facts.cool)} "
    legend = tag("p", told, heats, f" {wording.number(facts.hot)}", class_="legend") if coloured else None
    return tag("div", tag("h3", f"Step {event.first_step:,}: {shown}"), legend, samples, id=f"event-{event.first_step}")


def _sample(place: int, sample: DecodedSample, facts: EventFacts) -> Markup:
    ranked = sample.ranked
    told = [*wording.origin(ranked, sample), f"rank {ranked.rank}"]
    title = f"{place}. loss {wording.number(ranked.loss) or 'not recorded'}"
    share = [bar(ranked.share), tag("span", f"{wording.percent(ranked.share)} of the step")]
    where = tag("span", " · ".join(told), class_="where")
    source = wording.shortened(sample.source_text, _MAX_TEXT)
    before = tag("pre", source, class_="sample source") if source else None
    return tag(
        "figure", tag("figcaption", tag("b", title), share, where), before, _text(sample, facts), note(sample.problem)
    )


def _text(sample: DecodedSample, facts: EventFacts) -> Markup | None:
    losses = sample.ranked.token_losses
    if not losses or len(sample.token_texts) != len(losses):
        return tag("pre", wording.shortened(sample.text, _MAX_TEXT), class_="sample") if sample.text else None
    tokens = []
    for text, loss in zip(sample.token_texts[:_MAX_TOKENS], losses[:_MAX_TOKENS], strict=True):
        title, heat = f"{text.strip() or 'space'}  loss {wording.number(loss)}", facts.heat(loss)
        tokens.append(tag("span", text, class_=f"h{heat}" if heat else None, title=title))
    more = len(losses) - _MAX_TOKENS
    return tag("pre", tokens, f"… ({more:,} more tokens)" if more > 0 else None, class_="sample")
