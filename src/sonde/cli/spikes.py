"""`sonde spikes RUN`: show the loss spikes of a run and the text that caused them. Also reads
ATorch's files.

`sonde worst RUN`: rank samples by how far their loss was above that of other samples of their
length. `sonde skip RUN --step N`: add the samples of a spike to the run's skip list.
"""

import dataclasses
import io
import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeAlias

from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import (
    coloured,
    number_text,
    picked,
    print_csv,
    print_rows,
    tell,
    write_json,
)
from sonde.compat.atorch.token_loss_spike import TokenLossSpike
from sonde.data.tokenizer_files import load_tokenizer
from sonde.errors import SettingError
from sonde.forensics.verdict import known_texts
from sonde.records.files import write_output
from sonde.records.reader import damage_text
from sonde.records.values import encode
from sonde.report import wording
from sonde.report.html.events import spike_row, worst_row
from sonde.spikes.decoding import DecodedSample, Decoder, SampleDecoder
from sonde.spikes.ledger_log import Worst, WorstSample, read_worst
from sonde.spikes.spike_log import (
    RecordedSpike,
    SpikeLog,
    as_skip_list,
    read_spikes,
    skip_samples,
    skip_step,
)

_MAX_OUTLYING = 100
_MAX_WORDS = 60
_CSV_COLUMNS: Final = (
    *(
        "dataset",
        "sample",
        "count",
        "mean",
        "last",
        "trend",
        "first_step",
        "last_step",
        "duplicates",
    ),
    *("document", "file", "line", "text", "source_text", "problem"),
)
_Events: TypeAlias = list[tuple[RecordedSpike, list[DecodedSample]]]
"""Each event, and the worst sample of its first step, if its samples were recorded."""


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class Texts:
    """Where the text is."""

    data: Path | None = None
    """Current location of the data directory, if it has moved."""
    tokenizer: Path | None = None
    """Tokenizer file to decode with, instead of the one in the data directory."""

    def load_tokenizer(self) -> Decoder | None:
        """Return the tokenizer given by --tokenizer, or None."""
        return None if self.tokenizer is None else load_tokenizer(self.tokenizer)


@Parameter(name="*")
@dataclasses.dataclass(frozen=True, kw_only=True)
class AtorchOptions:
    """How to read ATorch's files."""

    dataset: tuple[str, ...] = ()
    """ATorch only: NAME=PATH of a dataset. Repeat it in the order of the dataset ids."""
    sample_len: int | None = None
    """ATorch only: tokens per row (each_sample_len)."""
    min_iter: int = 0
    """ATorch only: ignore iterations before this one."""
    min_loss: float = 0.0
    """ATorch only: ignore losses below this value."""
    details: bool = False
    """ATorch only: write every sample, worst first, with iteration, time, mean loss and sample
    info.
    """


def spikes(
    run: Path | None = None,
    /,
    *,
    step: int | None = None,
    out: Path | None = None,
    json: bool = False,
    atorch: Path | None = None,
    texts: Texts = Texts(),
    options: AtorchOptions = AtorchOptions(),
) -> None:
    """Show the loss spikes of a run and the samples that caused them.

    Parameters
    ----------
    run
        The run directory.
    step
        Show the samples of this step, worst first, with tokens coloured by their loss.
    out
        Write to this file instead of the terminal.
    json
        Write one JSON document instead of tables.
    atorch
        Decode a directory of files that ATorch's TokenLossSpike wrote, instead of a run.
    """
    if atorch is not None:
        _decode_atorch(atorch, options, texts, out, json=json)
        return
    if run is None:
        hint = "sonde spikes RUN, or sonde spikes --atorch DIR for files of ATorch"
        raise SettingError("no run was given", hint=hint)
    document, show = _answer(run, step, texts)
    if out is None:
        tell(document, show, json=json)
    else:
        write_output(out, encode(document) if json else _as_text(show))


def _answer(run: Path, step: int | None, texts: Texts) -> tuple[object, Callable[[Console], None]]:
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
        return document, partial(_show_events, run=run, log=log, rows=rows, outlying=outlying)
    outlying = decoder.decode(log.samples_at(step), with_tokens=True)
    alone = [{**_sample_json(sample), "kind": "sample"} for sample in outlying]
    if outlying and not any(spike.holds(step) for spike in log.spikes):
        return {"kind": "sample", "step": step, "samples": alone}, partial(
            _show_outlying, outlying=outlying
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
    return document_of_step, partial(_show_samples, spike=spike, step=step, samples=samples)


def _decode_atorch(
    directory: Path, options: AtorchOptions, texts: Texts, out: Path | None, *, json: bool
) -> None:
    if not directory.is_dir():
        raise SettingError(f"there is no directory {directory}")
    paths = [tuple(one.split("=", 1)) for one in options.dataset]
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


def _show_events(
    console: Console, run: Path, log: SpikeLog, rows: _Events, outlying: list[DecodedSample]
) -> None:
    if rows:
        columns = (
            ">step",
            ">steps",
            "kind",
            "of",
            ">value",
            ">baseline",
            ">z",
            "dataset",
            ">sample",
            "text",
        )
        print_rows(
            console, columns, ([*spike_row(spike)[:7], *_named(worst)] for spike, worst in rows)
        )
    else:
        console.print(f"no spikes in {run}")
    if outlying:
        console.print()
        console.print(
            Text(
                f"{len(log.samples)} single samples far above others of their length", style="bold"
            )
        )
        heads = (">step", ">loss", ">expected", ">z", "dataset", ">sample", "text")
        numbers = [
            (one.ranked.step, one.ranked.loss, one.ranked.expected, f"{one.ranked.z:.1f}")
            for one in outlying
        ]
        cells = ([*known, *_named([one])] for known, one in zip(numbers, outlying, strict=True))
        print_rows(console, heads, cells)
        if len(log.samples) > len(outlying):
            console.print(
                f"and {len(log.samples) - len(outlying)} more; `sonde worst {run}` ranks all"
                " samples"
            )
    if log.num_bad:
        console.print(damage_text(log.num_bad), style="red")


def _named(samples: list[DecodedSample]) -> list[object]:
    """Return the dataset, number and first words of the first of these samples; nothing if there is
    none.
    """
    for sample in samples[:1]:
        words = wording.shortened(" ".join(sample.text.split()), _MAX_WORDS)
        return [sample.ranked.dataset, sample.ranked.sample, words or sample.problem]
    return [""] * 3


def _show_outlying(console: Console, outlying: list[DecodedSample]) -> None:
    """Show single outlying samples of a step that is not part of a spike."""
    for place, sample in enumerate(outlying, 1):
        one = sample.ranked
        sentence = (
            f"loss {number_text(one.loss)} at step {one.step} where samples of its length have"
            f" {number_text(one.expected)}, {wording.deviations(one)}"
        )
        _show_sample(console, place, sample, sentence)


def _show_samples(
    console: Console, spike: RecordedSpike, step: int, samples: list[DecodedSample]
) -> None:
    event = spike.event
    sentence = (
        f"{event.kind} of {event.metric} at step {event.first_step} to {event.last_step},"
        f" {wording.moment(spike.time)}: "
    )
    sentence += f"{number_text(event.value)} where {number_text(event.baseline)} was expected"
    console.print(Text(sentence, style="bold"))
    if step != event.first_step:
        console.print(Text(f"the samples of step {step}:", style="bold"))
    for place, sample in enumerate(samples, 1):
        ranked = sample.ranked
        _show_sample(
            console,
            place,
            sample,
            f"loss {number_text(ranked.loss)}, {ranked.share:.1%} of the step",
        )


def _show_sample(console: Console, place: int, sample: DecodedSample, headline: str) -> None:
    ranked = sample.ranked
    facts = [headline, *wording.origin(ranked, sample), f"rank {ranked.rank}"]
    console.print()
    console.print(Text(f"{place}. {', '.join(facts)}", style="bold"))
    if sample.source_text:
        console.print(Text(sample.source_text, style="dim"))
    console.print(_coloured(sample))
    if sample.problem:
        console.print(Text(sample.problem, style="yellow"))


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


def worst(
    run: Path,
    /,
    *,
    num: int = 20,
    skip: bool = False,
    json: bool = False,
    csv: Path | None = None,
    texts: Texts = Texts(),
) -> None:
    """Rank the samples of a run by how far their loss was above that of other samples of their
    length, over all epochs.

    Parameters
    ----------
    run
        The run directory.
    num
        Number of samples to show. Duplicates count as one.
    skip
        Add the shown samples and their duplicates to the run's skip list.
    json
        Write one JSON document instead of a table.
    csv
        Write the samples to this CSV file.
    """
    found = read_worst(run, num, directory=texts.data, tokenizer=texts.load_tokenizer())
    if csv is not None:
        write_output(csv.absolute(), _as_csv(found))
    skipped = None
    if skip and found.entries:
        remark = f"the {len(found.entries)} worst samples of {run.name} over all epochs"
        last_step = max(entry.history.last_step for entry in found.entries)
        wanted = as_skip_list((sample.dataset, sample.sample) for sample in found.samples())
        skipped = skip_samples(run, wanted, step=last_step, remark=remark)

    def show(console: Console) -> None:
        if csv is None:
            _show_worst(console, run, found)
        if skipped is not None:
            console.print(f"{len(skipped.added)} samples added to {skipped.path}", soft_wrap=True)

    added = (
        None if skipped is None else {"path": str(skipped.path), "num_added": len(skipped.added)}
    )
    entries = [_worst_json(entry) for entry in found.entries]
    document = {
        "num_samples": found.num_samples,
        "num_bad": found.num_bad,
        "worst": entries,
        "skipped": added,
    }
    tell(document, show, json=json)


def _show_worst(console: Console, run: Path, found: Worst) -> None:
    if not found.entries:
        console.print(
            f"{run} has no ledger of samples: their losses were not given to the spike recorder"
        )
        return
    columns = (">mean", ">last", ">times", "trend", "sample", ">same", "text")
    print_rows(console, columns, (worst_row(entry, _MAX_WORDS) for entry in found.entries))
    console.print(
        f"of {found.num_samples:,} samples; mean and last: deviations above samples of the same"
        " length"
    )
    if found.num_bad:
        console.print(f"{found.num_bad} parts of the ledger could not be read", style="red")


def _worst_json(entry: WorstSample) -> dict[str, Any]:
    history = entry.history
    document = picked(entry.decoded, "document", "file", "line", "text", "source_text", "problem")
    same = [picked(duplicate, "dataset", "sample") for duplicate in entry.duplicates]
    return {**dataclasses.asdict(history), "trend": history.trend, "duplicates": same, **document}


def _as_csv(found: Worst) -> bytes:
    buffer = io.StringIO()
    same = [
        " ".join(str(duplicate.sample) for duplicate in entry.duplicates) for entry in found.entries
    ]
    rows = [
        {**_worst_json(entry), "duplicates": text}
        for entry, text in zip(found.entries, same, strict=True)
    ]
    print_csv([_CSV_COLUMNS, *([row[name] for name in _CSV_COLUMNS] for row in rows)], buffer)
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
    """Add the samples of a recorded step to a skip list, so that training leaves them out.

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
    known = f"; {skipped.num_known} were in it already" if skipped.num_known else ""
    lines = [f"{len(skipped.added)} samples added to {skipped.path}{known}"]
    lines += [
        f"{name}: {' '.join(map(str, numbers))}" for name, numbers in samples.items() if numbers
    ]
    document = {"path": str(skipped.path), "added": samples, "num_known": skipped.num_known}
    tell(document, lambda console: console.print("\n".join(lines), soft_wrap=True), json=json)
