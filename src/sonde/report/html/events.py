"""The events of a run and the samples behind them, with tokens colored by loss."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from sonde.report import wording
from sonde.report.facts import HOTTEST, EventFacts
from sonde.report.html.markup import Child, Markup, bar, group, left_out, note, section, table, tag
from sonde.spikes.decoding import DecodedSample
from sonde.spikes.ledger_log import WorstSample

COLUMNS: Final = ("step", "steps", "kind", "of", "value", "expected", "z", "peak", "")
NUMBERS: Final = ("step", "steps", "value", "expected", "z", "peak")
_MAX_LISTED: Final = 500
_MAX_TOKENS: Final = 1500
_MAX_TEXT: Final = 4000
_MAX_LINE: Final = 300


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
        _, *rest = event_row(one)
        step = one.spike.event.first_step
        rows.append([step if address is None else tag("a", f"{step:,}", href=address(step)), *rest])
    more = left_out(len(found) - _MAX_LISTED)
    return group([table(COLUMNS, rows, right=NUMBERS, class_="narrow events"), more])


def worst_samples(found: Sequence[WorstSample]) -> Markup | None:
    """Render the samples that were worst over all epochs."""
    if not found:
        return None
    columns = ("mean", "last", "times seen", "trend", "sample", "same text", "text")
    numbers = ("mean", "last", "times seen", "same text")
    listed = table(columns, map(_worst_row, found), right=numbers, class_="worst")
    told = "Mean and last: how many deviations a sample's loss was above that of samples of its length."
    return section("Worst samples", listed, note(told), id="worst")


def _worst_row(entry: WorstSample) -> list[str | int]:
    one, text = entry.history, " ".join(entry.decoded.text.split())
    where, same = ", ".join(wording.origin(one, entry.decoded)), f"+{len(entry.duplicates)}" if entry.duplicates else ""
    shown = wording.shortened(text, _MAX_LINE) or entry.decoded.problem
    return [f"{one.mean:.1f}", f"{one.last:.1f}", one.count, one.trend, where, same, shown]


def event_row(facts: EventFacts) -> list[str | float]:
    """Return the cells of an event, in the order of `COLUMNS`."""
    event = facts.spike.event
    notes = [f"seen {facts.spike.num_seen} times"] if facts.spike.num_seen > 1 else []
    notes += ["not over when recording ended"] if facts.spike.is_over is False else []
    length, metric = event.last_step - event.first_step + 1, event.metric.replace("_", " ")
    expected, z = "" if math.isnan(event.baseline) else event.baseline, "" if math.isnan(event.z) else f"{event.z:.1f}"
    peak = f"{wording.number(event.peak)} at {event.peak_step:,}" if event.num_bad > 1 else ""
    return [event.first_step, length, event.kind, metric, event.value, expected, z, peak, ", ".join(notes)]


def event_samples(facts: EventFacts) -> Markup:
    """Render the worst samples of an event, with tokens colored by loss."""
    event = facts.spike.event
    shown = f"the worst {len(facts.samples)} of {facts.num_samples} samples"
    coloured = any(sample.ranked.token_losses and sample.token_texts for sample in facts.samples)
    samples = [_sample(place, sample, facts) for place, sample in enumerate(facts.samples, 1)]
    legend = _legend(facts) if coloured else None
    return tag("div", tag("h3", f"Step {event.first_step:,}: {shown}"), legend, samples, id=f"event-{event.first_step}")


def _legend(facts: EventFacts) -> Markup:
    heats = [tag("span", "\u2002", class_=f"h{heat}") for heat in range(1, HOTTEST + 1)]
    told = f"loss of a token: up to {wording.number(facts.cool)} "
    return tag("p", told, heats, f" {wording.number(facts.hot)}", class_="legend")


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
