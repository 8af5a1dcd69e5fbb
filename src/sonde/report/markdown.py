"""The report as Markdown, for an issue or a wiki: the same as the page, with a line of blocks where that has curves."""

import math
import shlex
from collections.abc import Iterator
from typing import Final

from sonde.forensics.verdict import Cause, ReplayResult, Verdict
from sonde.report import sample_rows, wording
from sonde.report.curve import Curve, sparkline
from sonde.report.event_facts import EventFacts
from sonde.report.facts import HEALING, RunFacts
from sonde.report.markdown_text import bullets, escape, fenced, table
from sonde.report.tensor_rows import is_outlying, ratio_text, summary
from sonde.spikes.decoding import DecodedSample

_MAX_TEXT: Final = 1200
_MAX_ROWS: Final = 200
_MAX_SUSPECTS: Final = 10
_NUM_HOT_TOKENS: Final = 6


def render_markdown(facts: RunFacts) -> str:
    """The document: its parts, with an empty line between any two."""
    parts = [
        *_head(facts),
        *_healing(facts),
        *(part for verdict in facts.verdicts for part in _verdict(verdict)),
        *_curves(facts),
        *_events(facts.events),
        *_worst(facts),
        *(part for verdict in facts.verdicts for part in _tensors(verdict)),
        *_time(facts),
        *_checkpoints(facts),
        *_settings(facts),
        f"Made by sonde {escape(facts.version)} on {wording.moment(facts.made)}",
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def _head(facts: RunFacts) -> Iterator[str]:
    manifest = facts.manifest
    yield f"# {escape(facts.name)}"
    rows = [("status", facts.status)]
    if manifest is not None:
        rows = [("status", f"{facts.status}: {manifest.reason}" if manifest.reason else facts.status)]
        ended = f", ended after {wording.duration(manifest.ended - manifest.created)}" if manifest.ended else ""
        rows += [
            ("id", manifest.run_id),
            ("began", wording.moment(manifest.created) + ended),
            ("starts", str(manifest.num_starts)),
            ("host", str(manifest.host.get("name", ""))),
            ("ranks", str(manifest.world_size)),
            ("command", shlex.join(map(str, manifest.command))),
        ]
    rows.append(("directory", str(facts.directory)))
    rows += [("updates", wording.number(facts.last_step))] if facts.last_step is not None else []
    rows += [("updates skipped", wording.number(facts.num_skipped))] if facts.num_skipped else []
    yield table(("", ""), rows)
    if facts.problems:
        yield "**Not everything could be read:**"
        yield bullets(facts.problems)


def _healing(facts: RunFacts) -> Iterator[str]:
    if facts.healing:
        yield f"## {HEALING}"
        yield bullets([" ".join(sentences) for sentences in facts.healing])


def _verdict(verdict: Verdict) -> Iterator[str]:
    yield f"## What happened at step {verdict.step:,}"
    for place, cause in enumerate(verdict.causes, 1):
        yield from _cause(place, cause)
    if verdict.replay is not None:
        yield from _replay(verdict.replay)
    if verdict.experiments:
        yield "### What was tried"
        rows = [
            (
                one.question,
                one.done,
                one.found,
                ", ".join(f"{name} {wording.number(n)}" for name, n in one.numbers.items()),
            )
            for one in verdict.experiments
        ]
        yield table(("question", "done", "found", "numbers"), rows)


def _cause(place: int, cause: Cause) -> Iterator[str]:
    points_at = [
        cause.cause.replace("_", " "),
        f"module {cause.module}" if cause.module else "",
        f"rank {cause.rank}" if cause.rank is not None else "",
        f"setting {cause.setting}" if cause.setting else "",
    ]
    yield f"### {place}. {escape(cause.title)}"
    yield f"**{wording.percent(cause.confidence)}** · {escape(' · '.join(one for one in points_at if one))}"
    for title, sentences in (("Evidence:", cause.evidence), ("What to do:", cause.advice)):
        if sentences:
            yield title
            yield bullets(sentences)
    for suspect in cause.suspects[:_MAX_SUSPECTS]:
        where = f"{suspect.file}:{suspect.line}" if suspect.line is not None else suspect.file
        told = [
            f"{suspect.dataset} {suspect.sample}",
            f"document {suspect.document}" if suspect.document is not None else "",
            f"loss {wording.number(suspect.loss)}" if suspect.loss is not None else "",
            where,
            f"rank {suspect.rank}",
        ]
        yield escape(" · ".join(one for one in told if one))
        yield fenced(wording.shortened(suspect.text, _MAX_TEXT)) if suspect.text else ""


def _replay(replay: ReplayResult) -> Iterator[str]:
    yield "### Replay"
    came = {None: "nothing was recorded to compare with", True: "the same, bit for bit", False: "**not the same**"}
    recorded = "nothing" if replay.recorded_loss is None else repr(replay.recorded_loss)
    start = f"the state after update {replay.from_step:,}" if replay.from_step else "the beginning"
    yield f"From {start}: recorded {recorded}, replayed {replay.replayed_loss!r}: {came[replay.reproduced]}."
    yield bullets(replay.differences)


def _curves(facts: RunFacts) -> Iterator[str]:
    curves = {
        "loss": facts.loss,
        "validation loss": facts.validation_loss,
        "gradient norm": facts.grad_norm,
        "learning rate": facts.learning_rate,
        "tokens per second": facts.speed,
    }
    rows = [_curve_row(name, curve) for name, curve in curves.items() if curve is not None and len(curve)]
    yield "## Loss"
    numbers = ("first", "last", "lowest", "highest")
    yield (
        table(("", "", *numbers, "not finite"), rows, right=(*numbers, "not finite"))
        if rows
        else "No loss was recorded."
    )


def _curve_row(name: str, curve: Curve) -> list[str]:
    values, finite = curve.values, curve.finite().values
    ends = (values[0], values[-1], *((finite.min(), finite.max()) if len(finite) else (math.nan, math.nan)))
    return [
        name,
        sparkline(curve),
        *(wording.number(float(value)) for value in ends),
        str(len(values) - len(finite) or ""),
    ]


def _events(events: tuple[EventFacts, ...]) -> Iterator[str]:
    yield "## Events"
    if not events:
        yield "No events were recorded."
        return
    rows = []
    for event in (one.spike.event for one in events[:_MAX_ROWS]):
        told = [event.value, event.baseline, event.z]
        rows.append(
            [
                wording.number(event.first_step),
                wording.number(event.last_step - event.first_step + 1),
                f"{event.kind} of {event.metric.replace('_', ' ')}",
                *("" if math.isnan(value) else wording.number(value) for value in told),
            ]
        )
    numbers = ("step", "steps", "value", "expected", "z")
    yield table(("step", "steps", "kind", "value", "expected", "z"), rows, right=numbers)
    for facts in events:
        if facts.samples:
            shown = f"the worst {len(facts.samples)} of {facts.num_samples} samples"
            yield f"### Step {facts.spike.event.first_step:,}: {shown}"
        for place, sample in enumerate(facts.samples, 1):
            yield from _sample(place, sample)


def _worst(facts: RunFacts) -> Iterator[str]:
    if facts.worst:
        yield f"## {sample_rows.TITLE}"
        yield table(sample_rows.COLUMNS, sample_rows.sample_rows(facts.worst), right=sample_rows.NUMBERS)
        yield sample_rows.NOTE


def _sample(place: int, sample: DecodedSample) -> Iterator[str]:
    ranked = sample.ranked
    told = [
        f"loss {wording.number(ranked.loss) or 'not recorded'}",
        f"{wording.percent(ranked.share)} of the step",
        f"{ranked.dataset} {ranked.sample}".strip(),
        f"document {sample.document}" if sample.document is not None else "",
        f"{sample.file}:{sample.line}" if sample.line is not None else "",
        f"rank {ranked.rank}",
        sample.problem,
    ]
    yield f"**{place}.** {escape(' · '.join(one for one in told if one))}"
    if sample.source_text:
        yield fenced(wording.shortened(sample.source_text, _MAX_TEXT))
    if sample.text:
        yield fenced(wording.shortened(sample.text, _MAX_TEXT))
    losses = ranked.token_losses
    if losses and len(losses) == len(sample.token_texts):
        written = [at for at, text in enumerate(sample.token_texts) if text.strip()]
        hottest = sorted(written, key=lambda at: -losses[at] if losses[at] == losses[at] else -math.inf)
        shown = [f"“{sample.token_texts[at].strip()}” {wording.number(losses[at])}" for at in hottest[:_NUM_HOT_TOKENS]]
        yield f"Hottest tokens: {escape(', '.join(shown))}"


def _tensors(verdict: Verdict) -> Iterator[str]:
    if not verdict.modules:
        return
    yield f"## Tensors at step {verdict.step:,}"
    yield summary(verdict.modules)
    rows = [
        (
            one.module,
            one.kind,
            wording.number(one.norm),
            wording.number(one.calm_norm),
            ratio_text(one),
            wording.number(one.num_nonfinite or None),
            "◀" if is_outlying(one) else "",
        )
        for one in verdict.modules[:_MAX_ROWS]
    ]
    numbers = ("norm", "calm norm", "ratio", "not finite")
    yield table(("module", "of", *numbers, ""), rows, right=numbers)
    more = len(verdict.modules) - _MAX_ROWS
    yield f"and {more:,} more" if more > 0 else ""


def _time(facts: RunFacts) -> Iterator[str]:
    total = sum(facts.phases.values())
    if total > 0:
        yield "## Time"
        rows = [(phase, wording.duration(one), wording.percent(one / total)) for phase, one in facts.phases.items()]
        yield table(("", "mean", "share"), [*rows, ("an update", wording.duration(total), "")], right=("mean", "share"))


def _checkpoints(facts: RunFacts) -> Iterator[str]:
    if facts.checkpoints:
        yield "## Checkpoints"
        rows = [
            (
                wording.number(one.step),
                wording.size(one.num_bytes),
                ", ".join(f"{name} {wording.number(value)}" for name, value in one.metrics.items()),
                one.distrusted or "",
            )
            for one in facts.checkpoints
        ]
        columns = ("after updates", "size", "evaluation before it", "distrusted")
        yield table(columns, rows, right=columns[:2])
    if facts.skip_list:
        yield "## Samples left out"
        yield fenced(facts.skip_list.rstrip("\n"))


def _settings(facts: RunFacts) -> Iterator[str]:
    for title, values in facts.manifest_groups().items():
        if rows := wording.setting_rows(values):
            yield f"## {title}"
            yield table(("", ""), [(name, wording.shortened(text, 2000)) for name, text in rows])
