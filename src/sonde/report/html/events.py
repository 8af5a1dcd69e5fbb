"""What was noticed while the run went on, and the samples behind it, their tokens coloured by loss."""

import math
from collections.abc import Callable, Sequence
from typing import Final

from sonde.report import wording
from sonde.report.event_facts import HOTTEST, EventFacts
from sonde.report.facts import RunFacts
from sonde.report.html.markup import Child, Markup, bar, group, table, tag
from sonde.spikes.decoding import DecodedSample
from sonde.spikes.ledger_log import WorstSample

COLUMNS: Final = ("step", "steps", "kind", "of", "value", "expected", "z", "peak", "")
NUMBERS: Final = ("step", "steps", "value", "expected", "z", "peak")
_MAX_LISTED: Final = 500
_MAX_TOKENS: Final = 1500
_MAX_TEXT: Final = 4000
_MAX_LINE: Final = 160


def events(found: tuple[EventFacts, ...]) -> Markup:
    """A table of all events, then the worst of them with their samples."""
    samples = [event_samples(one) for one in found if one.samples]
    return tag("section", tag("h2", "Events"), event_list(found), samples, id="events")


def event_list(found: Sequence[EventFacts], address: Callable[[int], str] | None = None) -> Markup:
    """A row an event, whose step leads to its `address`, if it has one."""
    if not found:
        return tag("p", "No events were recorded.", class_="none")
    rows: list[list[Child]] = []
    for one in found[:_MAX_LISTED]:
        first, *rest = event_row(one)
        step = one.spike.event.first_step
        rows.append([first if address is None else tag("a", first, href=address(step)), *rest])
    more = len(found) - _MAX_LISTED
    note = tag("p", f"and {more:,} more", class_="note") if more > 0 else None
    return group([table(COLUMNS, rows, right=NUMBERS, class_="narrow events"), note])


def worst_samples(facts: RunFacts) -> Markup | None:
    """The samples that were worst over all epochs."""
    if not facts.worst:
        return None
    columns = ("mean", "last", "times seen", "trend", "sample", "same text", "text")
    listed = table(
        columns, map(_worst_row, facts.worst), right=("mean", "last", "times seen", "same text"), class_="worst"
    )
    note = "Mean and last: how many deviations a sample's loss was above that of samples of its length."
    return tag("section", tag("h2", "Worst samples"), listed, tag("p", note, class_="note"), id="worst")


def _worst_row(entry: WorstSample) -> list[str]:
    history, text = entry.history, " ".join(entry.decoded.text.split())
    return [
        f"{history.mean:.1f}",
        f"{history.last:.1f}",
        wording.number(history.count),
        history.trend,
        f"{history.dataset} {history.sample}".strip(),
        f"+{len(entry.duplicates)}" if entry.duplicates else "",
        wording.shortened(text, _MAX_LINE) or entry.decoded.problem,
    ]


def event_row(facts: EventFacts) -> list[str]:
    """An event under `COLUMNS`."""
    event = facts.spike.event
    notes = [f"seen {facts.spike.num_seen} times"] if facts.spike.num_seen > 1 else []
    notes += ["not over when recording ended"] if facts.spike.is_over is False else []
    return [
        wording.number(event.first_step),
        wording.number(event.last_step - event.first_step + 1),
        event.kind,
        event.metric.replace("_", " "),
        wording.number(event.value),
        "" if math.isnan(event.baseline) else wording.number(event.baseline),
        "" if math.isnan(event.z) else f"{event.z:.1f}",
        f"{wording.number(event.peak)} at {event.peak_step:,}" if event.num_bad > 1 else "",
        ", ".join(notes),
    ]


def event_samples(facts: EventFacts) -> Markup:
    """Its worst samples, tokens coloured by loss."""
    event = facts.spike.event
    shown = f"the worst {len(facts.samples)} of {facts.num_samples} samples"
    coloured = any(sample.ranked.token_losses and sample.token_texts for sample in facts.samples)
    return tag(
        "div",
        tag("h3", f"Step {event.first_step:,}: {shown}"),
        _legend(facts) if coloured else None,
        [_sample(place, sample, facts) for place, sample in enumerate(facts.samples, 1)],
        id=f"event-{event.first_step}",
    )


def _legend(facts: EventFacts) -> Markup:
    return tag(
        "p",
        f"loss of a token: up to {wording.number(facts.cool)} ",
        [tag("span", "\u2002", class_=f"h{heat}") for heat in range(1, HOTTEST + 1)],
        f" {wording.number(facts.hot)}",
        class_="legend",
    )


def _sample(place: int, sample: DecodedSample, facts: EventFacts) -> Markup:
    ranked = sample.ranked
    told = [
        f"{ranked.dataset} {ranked.sample}".strip(),
        f"document {sample.document}" if sample.document is not None else "",
        f"{sample.file}:{sample.line}" if sample.line is not None else "",
        f"rank {ranked.rank}",
    ]
    title = f"{place}. loss {wording.number(ranked.loss) or 'not recorded'}"
    share = [bar(ranked.share), tag("span", f"{wording.percent(ranked.share)} of the step")]
    return sample_figure(title, share, told, sample, _text(sample, facts))


def sample_figure(title: str, more: Child, told: Sequence[str], sample: DecodedSample, text: Child) -> Markup:
    """The text of a sample under what is known of it."""
    where = tag("span", " · ".join(fact for fact in told if fact), class_="where")
    source = wording.shortened(sample.source_text, _MAX_TEXT)
    return tag(
        "figure",
        tag("figcaption", tag("b", title), more, where),
        tag("pre", source, class_="sample source") if source else None,
        text,
        tag("p", sample.problem, class_="note") if sample.problem else None,
    )


def _text(sample: DecodedSample, facts: EventFacts) -> Markup | None:
    losses = sample.ranked.token_losses
    if not losses or len(sample.token_texts) != len(losses):
        return tag("pre", wording.shortened(sample.text, _MAX_TEXT), class_="sample") if sample.text else None
    tokens = [
        tag(
            "span",
            text,
            class_=f"h{facts.heat(loss)}" if facts.heat(loss) else None,
            title=f"{text.strip() or 'space'}  loss {wording.number(loss)}",
        )
        for text, loss in zip(sample.token_texts[:_MAX_TOKENS], losses[:_MAX_TOKENS], strict=True)
    ]
    more = len(losses) - _MAX_TOKENS
    return tag("pre", tokens, f"… ({more:,} more tokens)" if more > 0 else None, class_="sample")
