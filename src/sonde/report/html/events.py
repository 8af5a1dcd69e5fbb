"""The parts of a page about events: the list of everything that happened, and samples with their
text.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final

from sonde.report import wording
from sonde.report.facts import HOTTEST, EventFacts
from sonde.report.html.markup import Child, Markup, bar, group, left_out, note, section, table, tag
from sonde.report.marks import SAMPLE, Mark
from sonde.spikes.decoding import DecodedSample
from sonde.spikes.ledger_log import WorstSample

_MAX_LISTED: Final = 500
_MAX_TOKENS: Final = 1500
_MAX_TEXT: Final = 4000
_MAX_LINE: Final = 300


def events(marks: Sequence[Mark], found: Sequence[EventFacts]) -> Markup:
    """Render a table of everything that happened, then the worst events with their samples."""
    samples = [event_samples(event) for event in found if event.samples]
    return section("Events", event_list(marks), samples, id="events")


def event_list(marks: Sequence[Mark], address: Callable[[Mark], str] | None = None) -> Markup:
    """Render one row per mark; with `address`, its step links there."""
    if not marks:
        return tag("p", "No events were recorded.", class_="none")
    rows: list[list[Child]] = []
    for mark in marks[:_MAX_LISTED]:
        step: Child = mark.step
        if address is not None:
            step = tag("a", f"{mark.step:,}", href=address(mark))
        rows.append([step, *event_row(mark)])
    columns = ("step", "steps", "kind", "what happened", "z", "peak", "cause", "")
    listed = table(columns, rows, right=("step", "steps", "z", "peak"), class_="events")
    return group([listed, left_out(len(marks) - _MAX_LISTED)])


def event_row(mark: Mark) -> list[Child]:
    """Return length, kind, title, z, peak, cause and notes of a mark."""
    length = mark.last - mark.step + 1
    z = "" if math.isnan(mark.z) else f"{mark.z:.1f}"
    peak = ""
    if mark.peak_step and mark.peak_step != mark.step:
        peak = f"{wording.number(mark.peak)} at {mark.peak_step:,}"
    cause = mark.cause
    if cause and not math.isnan(mark.confidence):
        cause = f"{cause} ({wording.percent(mark.confidence)})"
    kind = tag("span", mark.kind, class_=f"kind {mark.tone}")
    return [length if length > 1 else "", kind, mark.title, z, peak, cause, mark.note]


def worst_samples(found: Sequence[WorstSample], num_outlying: int | None = None) -> Markup | None:
    """Render the samples that were worst over all epochs; the first `num_outlying` stand out."""
    if not found:
        return None
    columns = ("mean", "last", "times seen", "trend", "sample", "same text", "text")
    numbers = ("mean", "last", "times seen", "same text")
    rows: list[list[Child]] = []
    for place, entry in enumerate(found):
        mean, *rest = worst_row(entry)
        rest[-1] = rest[-1] if entry.decoded.text else ""
        stands_out = num_outlying is not None and place < num_outlying
        rows.append([tag("b", mean, class_="bad") if stands_out else mean, *rest])
    listed = table(columns, rows, right=numbers, class_="worst")
    sentence = (
        "Mean and last: how many deviations a sample's loss was above that of samples of its"
        " length."
    )
    problems = dict.fromkeys(
        entry.decoded.problem for entry in found if entry.decoded.problem and not entry.decoded.text
    )
    missing = [note(f"Without a text: {problem}") for problem in problems]
    return section("Worst samples", listed, note(sentence), missing, id="worst")


def worst_row(entry: WorstSample, max_characters: int = _MAX_LINE) -> list[str | int]:
    """Return mean, last, number of times, trend, origin, number of duplicates and text of a
    sample.
    """
    history = entry.history
    text = " ".join(entry.decoded.text.split())
    where = ", ".join(wording.origin(history, entry.decoded))
    same = f"+{len(entry.duplicates)}" if entry.duplicates else ""
    shown = wording.shortened(text, max_characters) or entry.decoded.problem
    return [
        f"{history.mean:.1f}",
        f"{history.last:.1f}",
        history.count,
        history.trend,
        where,
        same,
        shown,
    ]


def event_samples(facts: EventFacts) -> Markup:
    """Render the worst samples of an event, with tokens colored by loss."""
    step = facts.mark.step
    shown = f"the worst {len(facts.samples)} of {wording.counted(facts.num_samples, 'sample')}"
    if facts.mark.kind == SAMPLE:
        shown = f"{wording.counted(facts.num_samples, 'sample')} that stood out"
    coloured = any(sample.ranked.token_losses and sample.token_texts for sample in facts.samples)
    samples = [_sample(place, sample, facts) for place, sample in enumerate(facts.samples, 1)]
    # Said once: what is missing is mostly missing for all of them.
    problems = dict.fromkeys(sample.problem for sample in facts.samples if sample.problem)
    heats = [tag("span", "\u2002", class_=f"h{heat}") for heat in range(1, HOTTEST + 1)]
    sentence = f"loss of a token: up to {wording.number(facts.cool)} "
    legend = None
    if coloured:
        legend = tag("p", sentence, heats, f" {wording.number(facts.hot)}", class_="legend")
    return tag(
        "div",
        tag("h3", f"Step {step:,}: {shown}"),
        legend,
        samples,
        [note(problem) for problem in problems],
        id=f"event-{step}",
    )


def _sample(place: int, sample: DecodedSample, facts: EventFacts) -> Markup:
    ranked = sample.ranked
    sentences = [*wording.origin(ranked, sample), f"rank {ranked.rank}"]
    title = f"{place}. loss {wording.number(ranked.loss) or 'not recorded'}"
    share: list[Child] = []
    if not math.isnan(ranked.share):
        share = [bar(ranked.share), tag("span", f"{wording.percent(ranked.share)} of the step")]
    if ranked.z is not None and ranked.expected is not None:
        far = f"expected {wording.number(ranked.expected)}: {wording.deviations(ranked)}"
        share.append(tag("span", far))
    where = tag("span", " · ".join(sentences), class_="where")
    source = wording.shortened(sample.source_text, _MAX_TEXT)
    before = tag("pre", source, class_="sample source") if source else None
    return tag(
        "figure",
        tag("figcaption", tag("b", title), share, where),
        before,
        _text(sample, facts),
    )


def _text(sample: DecodedSample, facts: EventFacts) -> Markup | None:
    losses = sample.ranked.token_losses
    if not losses or len(sample.token_texts) != len(losses):
        if sample.text:
            return tag("pre", wording.shortened(sample.text, _MAX_TEXT), class_="sample")
        return None
    tokens = []
    for text, loss in zip(sample.token_texts[:_MAX_TOKENS], losses[:_MAX_TOKENS], strict=True):
        title = f"{text.strip() or 'space'}  loss {wording.number(loss)}"
        heat = facts.heat(loss)
        tokens.append(tag("span", text, class_=f"h{heat}" if heat else None, title=title))
    more = len(losses) - _MAX_TOKENS
    return tag("pre", tokens, f"… ({more:,} more tokens)" if more > 0 else None, class_="sample")
