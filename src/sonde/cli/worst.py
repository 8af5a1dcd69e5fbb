"""`sonde worst RUN`: name the samples of a run that stand out by their loss over all epochs.

The rule is that of the dashboard's page of samples: the highest of thousands of numbers are always
far above the mean, so a sample stands out only if it is above what the others let expect.
"""

import dataclasses
import io
import shlex
from functools import partial
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.text import Text

from sonde.cli.event_list import show_commands
from sonde.cli.flags import Texts
from sonde.cli.terminal import (
    MAX_WIDTH,
    picked,
    print_beside,
    print_csv,
    print_first_words,
    print_indented,
    tell,
)
from sonde.dashboard.outliers import num_standing_out
from sonde.forensics.verdict import known_texts
from sonde.records.files import write_output
from sonde.report import wording
from sonde.spikes.ledger_log import Worst, WorstSample, read_worst
from sonde.spikes.spike_log import Skipped, as_skip_list, skip_samples

_NUM_JUDGED: Final = 30
"""Among this many of the worst, those that stand out are found: as many as on the dashboard."""
_NUM_LISTED: Final = 20
"""As many of the worst are in a JSON document and in a CSV file, if no number is given."""
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


def worst(
    run: Path,
    /,
    *,
    num: int | None = None,
    skip: bool = False,
    json: bool = False,
    csv: Path | None = None,
    texts: Texts = Texts(),
) -> None:
    """Name the samples whose loss stands out over all epochs.

    The loss of such a sample is far above that of samples of its length, and higher than chance
    explains.

    Parameters
    ----------
    run
        The run directory.
    num
        Show this many of the worst samples, whether they stand out or not. Duplicates count as
        one.
    skip
        Add the samples that stand out, or the `--num` worst, and their duplicates to the run's
        skip list.
    json
        Write one JSON document with the worst samples (20 unless `--num` is given).
    csv
        Write the same to this CSV file.
    """
    read = partial(
        read_worst,
        run,
        directory=texts.data,
        tokenizer=texts.load_tokenizer(),
        known=known_texts(run),
    )
    is_data = json or csv is not None
    if num is None and not is_data:
        found = _standing_out(read(_NUM_JUDGED))
    else:
        found = read(_NUM_LISTED if num is None else num)
    if csv is not None:
        write_output(csv.absolute(), _as_csv(found))
    skipped = None
    if skip:
        is_chosen = num is not None or not is_data
        skipped = _skip(run, found if is_chosen else _standing_out(read(_NUM_JUDGED)))

    def show(console: Console) -> None:
        if csv is None:
            _show_worst(console, run, found, num)
        if skipped is not None:
            added = wording.counted(len(skipped.added), "sample")
            console.print(Text(f"{added} added to {skipped.path}"), soft_wrap=True)

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


def _standing_out(found: Worst) -> Worst:
    """Return only the samples that stand out from the others."""
    num = num_standing_out([entry.history.mean for entry in found.entries])
    return dataclasses.replace(found, entries=found.entries[:num])


def _skip(run: Path, found: Worst) -> Skipped | None:
    """Add the samples to the run's skip list; return None if there are none."""
    if not found.entries:
        return None
    remark = f"the {len(found.entries)} worst samples of {run.name} over all epochs"
    last_step = max(entry.history.last_step for entry in found.entries)
    wanted = as_skip_list((sample.dataset, sample.sample) for sample in found.samples())
    return skip_samples(run, wanted, step=last_step, remark=remark)


def _show_worst(console: Console, run: Path, found: Worst, num: int | None) -> None:
    if not found.num_samples:
        console.print(
            f"{run} has no ledger of samples: their losses were not given to the spike recorder"
        )
        return
    console.width = min(console.width, MAX_WIDTH)
    command = f"sonde worst {shlex.quote(str(run))}"
    print_indented(console, Text(_headline(found, num), style="bold"), 0)
    problems = set()
    for place, entry in enumerate(found.entries, 1):
        _show_sample(console, place, entry)
        if not entry.decoded.text and entry.decoded.problem:
            problems.add(entry.decoded.problem)
    for problem in sorted(problems):
        console.print()
        print_indented(console, Text(f"no text: {problem}", style="dim"), 0)
    if found.num_bad:
        console.print(f"{found.num_bad} parts of the ledger could not be read", style="red")
    if num is None:
        console.print()
        listing = (
            "list the worst, whether they stand out or not",
            f"{command} --num {_NUM_LISTED}",
        )
        shown = [listing]
        if found.entries:
            shown.insert(0, ("skip them", f"{command} --skip"))
        show_commands(console, shown)


def _headline(found: Worst, num: int | None) -> str:
    of_all = f"{found.num_samples:,} samples"
    if num is not None:
        return f"The {len(found.entries)} worst of {of_all}, whether they stand out or not."
    if not found.entries:
        return (
            f"None of {of_all} stands out: among so many, some losses are this high by chance."
            " There is no reason to skip any."
        )
    stand = "stands" if len(found.entries) == 1 else "stand"
    return f"{len(found.entries)} of {of_all} {stand} out."


def _show_sample(console: Console, place: int, entry: WorstSample) -> None:
    history = entry.history
    facts = [f"{history.mean:.1f} deviations above samples of its length"]
    if history.count > 1:
        facts.append(f"{history.last:.1f} the last of {history.count:,} times")
    if history.trend:
        facts.append(history.trend)
    if entry.duplicates:
        facts.append(f"{wording.counted(len(entry.duplicates), 'other')} with the same text")
    label = f"{place}. "
    console.print()
    print_beside(console, Text(label), Text(", ".join(facts)))
    print_indented(console, Text(", ".join(wording.origin(history, entry.decoded))), len(label))
    if entry.decoded.text:
        print_first_words(console, entry.decoded.text, len(label), "dim")


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
