"""`sonde worst RUN`: rank samples by how far their loss was above that of other samples of their length."""

import dataclasses
import io
from pathlib import Path
from typing import Any, Final

from rich.console import Console

from sonde.cli.terminal import first_words, picked, print_csv, print_rows, tell
from sonde.data.tokenizer_files import load_tokenizer
from sonde.records.files import write_output
from sonde.spikes.ledger_log import Worst, WorstSample, read_worst
from sonde.spikes.skipping import as_skip_list, skip_samples

_COLUMNS: Final = (
    *("dataset", "sample", "count", "mean", "last", "trend", "first_step", "last_step", "duplicates"),
    *("document", "file", "line", "text", "source_text", "problem"),
)


def worst(
    run: Path,
    /,
    *,
    num: int = 20,
    skip: bool = False,
    json: bool = False,
    csv: Path | None = None,
    data: Path | None = None,
    tokenizer: Path | None = None,
) -> None:
    """Rank the samples of a run by how far their loss was above that of other samples of their length, over all epochs.

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
    data
        Current location of the data directory, if it has moved.
    tokenizer
        Tokenizer file to decode with, instead of the one in the data directory.
    """
    found = read_worst(run, num, directory=data, tokenizer=None if tokenizer is None else load_tokenizer(tokenizer))
    if csv is not None:
        write_output(csv.absolute(), _as_csv(found))
    skipped = None
    if skip and found.entries:
        remark = f"the {len(found.entries)} worst samples of {run.name} over all epochs"
        last_step = max(entry.history.last_step for entry in found.entries)
        skipped = skip_samples(run, as_skip_list(found.samples()), step=last_step, remark=remark)

    def show(console: Console) -> None:
        if csv is None:
            _show(console, run, found)
        if skipped is not None:
            console.print(f"{len(skipped.added)} samples added to {skipped.path}", soft_wrap=True)

    added = None if skipped is None else {"path": str(skipped.path), "num_added": len(skipped.added)}
    entries = [_as_dict(entry) for entry in found.entries]
    document = {"num_samples": found.num_samples, "num_bad": found.num_bad, "worst": entries, "skipped": added}
    tell(document, show, json=json)


def _show(console: Console, run: Path, found: Worst) -> None:
    if not found.entries:
        console.print(f"{run} has no ledger of samples: their losses were not given to the spike recorder")
        return
    columns = (">mean", ">last", ">times", "trend", "dataset", ">sample", ">same", "text")
    print_rows(console, columns, map(_cells, found.entries))
    console.print(f"of {found.num_samples:,} samples; mean and last: deviations above samples of the same length")
    if found.num_bad:
        console.print(f"{found.num_bad} parts of the ledger could not be read", style="red")


def _cells(entry: WorstSample) -> list[object]:
    one, same = entry.history, f"+{len(entry.duplicates)}" if entry.duplicates else ""
    numbers = [f"{one.mean:.1f}", f"{one.last:.1f}", one.count]
    return [*numbers, one.trend, one.dataset, one.sample, same, first_words(entry.decoded)]


def _as_dict(entry: WorstSample) -> dict[str, Any]:
    history = entry.history
    document = picked(entry.decoded, "document", "file", "line", "text", "source_text", "problem")
    same = [picked(one, "dataset", "sample") for one in entry.duplicates]
    return {**dataclasses.asdict(history), "trend": history.trend, "duplicates": same, **document}


def _as_csv(found: Worst) -> bytes:
    buffer = io.StringIO()
    same = [" ".join(str(one.sample) for one in entry.duplicates) for entry in found.entries]
    rows = [{**_as_dict(entry), "duplicates": text} for entry, text in zip(found.entries, same, strict=True)]
    print_csv([_COLUMNS, *([row[name] for name in _COLUMNS] for row in rows)], buffer)
    return buffer.getvalue().encode("utf-8", "backslashreplace")
