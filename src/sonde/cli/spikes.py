"""`sonde spikes RUN`: show the loss spikes of a run and the text that caused them. Also reads
ATorch's files.

`sonde skip RUN --step N`: add the samples of a spike to the run's skip list.
"""

import dataclasses
import io
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Final

from cyclopts import Group, Parameter
from rich.console import Console
from rich.text import Text

from sonde.cli.event_list import event_at, show_cause, show_events, show_what_next
from sonde.cli.flags import Texts
from sonde.cli.terminal import (
    coloured,
    picked,
    tell,
    write_json,
)
from sonde.compat.atorch.token_loss_spike import TokenLossSpike
from sonde.data.skip_list import sample_name
from sonde.errors import SettingError
from sonde.forensics.verdict import known_texts
from sonde.records.files import write_output
from sonde.records.values import encode
from sonde.report import wording
from sonde.spikes.decoding import DecodedSample, SampleDecoder
from sonde.spikes.spike_log import (
    RecordedSpike,
    SpikeLog,
    read_spikes,
    skip_step,
)

_MAX_OUTLYING: Final = 100
_MAX_EVENTS: Final = 20


@Parameter(name="*", group=Group("Files of ATorch", sort_key=9))
@dataclasses.dataclass(frozen=True, kw_only=True)
class AtorchOptions:
    """How to read ATorch's files."""

    atorch: Path | None = None
    """Decode a directory of files that ATorch's TokenLossSpike wrote, instead of a run. The other
    options here belong to it.
    """
    dataset: tuple[str, ...] = ()
    """NAME=PATH of a dataset. Repeat it in the order of the dataset ids."""
    sample_len: int | None = None
    """Tokens per row (each_sample_len)."""
    min_iter: int = 0
    """Ignore iterations before this one."""
    min_loss: float = 0.0
    """Ignore losses below this value."""
    details: bool = False
    """Write every sample, worst first, with iteration, time, mean loss and sample info."""


def spikes(
    run: Path | None = None,
    /,
    *,
    step: int | None = None,
    all_: Annotated[bool, Parameter(name="--all")] = False,
    out: Path | None = None,
    json: bool = False,
    texts: Texts = Texts(),
    options: AtorchOptions = AtorchOptions(),
) -> None:
    """List loss spikes with the text and the cause of each.

    Each has its loss, what was expected, and the file and line of its worst sample.

    Parameters
    ----------
    run
        The run directory.
    step
        Show the samples of this step, worst first, with tokens coloured by their loss.
    all_
        List every event, not only the 20 that are farthest above what was expected.
    out
        Write to this file instead of the terminal.
    json
        Write one JSON document instead of text.
    """
    if options.atorch is not None:
        _decode_atorch(options.atorch, options, texts, out, json=json)
        return
    if run is None:
        hint = "sonde spikes RUN, or sonde spikes --atorch DIR for files of ATorch"
        raise SettingError("no run was given", hint=hint)
    document, show = _answer(run, step, texts, max_events=None if all_ else _MAX_EVENTS)
    if out is None:
        tell(document, show, json=json)
    else:
        write_output(out, encode(document) if json else _as_text(show))


def _answer(
    run: Path, step: int | None, texts: Texts, *, max_events: int | None
) -> tuple[object, Callable[[Console], None]]:
    """Return the answer as a JSON document and as a function that shows it on a console."""
    log = read_spikes(run)
    tokenizer = texts.load_tokenizer()
    decoder = SampleDecoder(
        log.datasets, directory=texts.data, tokenizer=tokenizer, known=known_texts(run)
    )
    if step is None:
        rows = [(spike, decoder.decode(spike.samples()[:1])) for spike in log.spikes]
        outlying = decoder.decode(log.samples[:_MAX_OUTLYING])
        document = [
            {**_spike_json(spike), "worst": _sample_json(*worst) if worst else None}
            for spike, worst in rows
        ]
        document += [{**_sample_json(sample), "kind": "sample"} for sample in outlying]
        by_step = {spike.event.first_step: worst for spike, worst in rows}
        for sample in outlying:
            by_step.setdefault(sample.ranked.step or 0, []).append(sample)
        return document, partial(
            show_events, run=run, log=log, samples=by_step, max_events=max_events
        )
    outlying = decoder.decode(log.samples_at(step), with_tokens=True)
    alone = [{**_sample_json(sample), "kind": "sample"} for sample in outlying]
    if outlying and not any(spike.holds(step) for spike in log.spikes):
        return {"kind": "sample", "step": step, "samples": alone}, partial(
            _show_outlying, run=run, log=log, outlying=outlying
        )
    spike = log.at(step)
    samples = decoder.decode(spike.samples(step), with_tokens=True)
    samples_json = [_sample_json(sample) for sample in samples]
    document_of_step = {
        **_spike_json(spike),
        "step": step,
        "samples": samples_json,
        "outlying": alone,
    }
    return document_of_step, partial(
        _show_samples, run=run, log=log, spike=spike, step=step, samples=samples
    )


def _decode_atorch(
    directory: Path, options: AtorchOptions, texts: Texts, out: Path | None, *, json: bool
) -> None:
    if not directory.is_dir():
        raise SettingError(f"there is no directory {directory}")
    paths = [tuple(given.split("=", 1)) for given in options.dataset]
    if any(len(path) != 2 for path in paths):
        raise SettingError(f"a dataset is NAME=PATH, not {' '.join(options.dataset)}")
    datasets = [(name, path) for name, path in paths] or None
    spike = TokenLossSpike(
        directory, datasets, options.sample_len, options.min_iter, options.min_loss
    )
    summary = spike.decode_loss_spike(out, texts.load_tokenizer(), details=options.details)
    if json:
        write_json({**dataclasses.asdict(summary), "bad": [bad._asdict() for bad in summary.bad]})
        return
    print(f"{summary.num_samples} samples of {summary.num_lines} lines in {summary.result}", end="")
    print(f"; {summary.num_bad} entries could not be used" if summary.num_bad else "")


def _show_outlying(
    console: Console, run: Path, log: SpikeLog, outlying: list[DecodedSample]
) -> None:
    """Show single outlying samples of a step that is not part of a spike."""
    event = event_at(run, outlying[0].ranked.step or 0)
    if event is not None:
        show_cause(console, event, indent=0)
    for place, sample in enumerate(outlying, 1):
        one = sample.ranked
        sentence = (
            f"loss {wording.number(one.loss)} at step {one.step} where samples of its length have"
            f" {wording.number(one.expected)}, {wording.deviations(one)}"
        )
        _show_sample(console, place, sample, sentence)
    _show_problems(console, outlying)
    show_what_next(console, run, event, log)


def _show_samples(
    console: Console,
    run: Path,
    log: SpikeLog,
    spike: RecordedSpike,
    step: int,
    samples: list[DecodedSample],
) -> None:
    event = spike.event
    steps = f"step {event.first_step}"
    if event.last_step > event.first_step:
        steps = f"steps {event.first_step} to {event.last_step}"
    sentence = f"{event.kind} of {event.metric} at {steps}, {wording.moment(spike.time)}: "
    sentence += f"{wording.number(event.value)} where {wording.number(event.baseline)} was expected"
    console.print(Text(sentence, style="bold"))
    mark = event_at(run, step)
    if mark is not None:
        show_cause(console, mark, indent=0)
    if step != event.first_step:
        console.print(Text(f"the samples of step {step}:", style="bold"))
    for place, sample in enumerate(samples, 1):
        ranked = sample.ranked
        _show_sample(
            console,
            place,
            sample,
            f"loss {wording.number(ranked.loss)}, {ranked.share:.1%} of the step",
        )
    _show_problems(console, samples)
    show_what_next(console, run, mark, log)


def _show_sample(console: Console, place: int, sample: DecodedSample, headline: str) -> None:
    ranked = sample.ranked
    facts = [headline, *wording.origin(ranked, sample), f"rank {ranked.rank}"]
    console.print()
    console.print(Text(f"{place}. {', '.join(facts)}", style="bold"))
    if sample.source_text:
        console.print(Text(sample.source_text, style="dim"))
    text = _coloured(sample)
    if text:
        console.print(text)


def _show_problems(console: Console, samples: list[DecodedSample]) -> None:
    """Say once why samples have no text."""
    for problem in sorted({sample.problem for sample in samples if sample.problem}):
        console.print(Text(f"\nno text: {problem}", style="yellow"))


def _coloured(sample: DecodedSample) -> Text:
    """Return the text with tokens coloured by loss, compared with the mean of the sample."""
    losses = sample.ranked.token_losses
    if not losses or len(sample.token_texts) != len(losses):
        return Text(sample.text)
    finite = [loss for loss in losses if math.isfinite(loss)]
    mean = sum(finite) / len(finite) if finite else 1.0
    return coloured(sample.token_texts, losses, max(mean, 0.1))


def _spike_json(spike: RecordedSpike) -> dict[str, Any]:
    fields = picked(spike, "ranks", "num_seen", "time", "is_over")
    return {**dataclasses.asdict(spike.event), **fields, "steps_kept": sorted(spike.steps)}


def _sample_json(sample: DecodedSample) -> dict[str, Any]:
    document = dataclasses.asdict(sample)
    return {**document.pop("ranked"), **document}


def _as_text(show: Callable[[Console], None]) -> bytes:
    """Return what `show` prints, as plain text for a file."""
    buffer = io.StringIO()
    show(Console(file=buffer, width=100_000, highlight=False, color_system=None))
    return buffer.getvalue().encode("utf-8", "backslashreplace")


def skip(
    run: Path,
    /,
    *,
    step: int,
    worst: int | None = None,
    out: Path | None = None,
    json: bool = False,
) -> None:
    """Skip the samples of a step when training resumes.

    They are added to the skip list of the run, which training leaves out.

    Parameters
    ----------
    run
        The run directory.
    step
        A step of a recorded spike, or one of the steps kept before it.
    worst
        Add only this many samples, those with the largest share of the step's loss (default: all).
    out
        Skip list to add to, instead of the run's own.
    json
        Print one JSON document instead of text.
    """
    skipped = skip_step(run, step, worst=worst, path=out)
    samples = {name: skipped.added.samples(name).tolist() for name in skipped.added.entries}
    verb = "was" if skipped.num_known == 1 else "were"
    known = f"; {skipped.num_known} {verb} in it already" if skipped.num_known else ""
    added = wording.counted(len(skipped.added), "sample")
    lines = [f"{added} added to {skipped.path}{known}"]
    lines += [
        f"  {', '.join(sample_name(name, number) for number in numbers)}"
        for name, numbers in samples.items()
        if numbers
    ]
    document = {"path": str(skipped.path), "added": samples, "num_known": skipped.num_known}
    tell(document, lambda console: console.print("\n".join(lines), soft_wrap=True), json=json)
