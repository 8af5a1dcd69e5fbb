"""Logs that are tables: Lightning's `metrics.csv`, what W&B, TensorBoard and MLflow let you
download, any CSV, TSV or columns of numbers.

    tables_of(lines, name)     the rows of every run in a table, by the run's name; pure

A column called `run` separates the runs of one file. So do W&B's headers, `name - train/loss`. A
pair of columns such as `key` and `value` holds one metric per line.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice, pairwise
from typing import Final

from sonde.curves.names import is_evaluation
from sonde.curves.points import KEY_COLUMNS, VALUE_COLUMNS, Row, number_in, usual_name

_DELIMITERS: Final = (",", "\t", ";", "|")
_RUN_COLUMNS: Final = frozenset({"run", "run_id", "run_name", "experiment", "run id", "run name"})
_CONTEXT_COLUMNS: Final = frozenset({"metric.context", "context", "subset", "split"})
"""What says whether a value is of training or of an evaluation, as in Aim's exports."""
_OF_WANDB: Final = re.compile(r"(?P<run>.+) - (?P<metric>[^-].*?)(?P<bound>__MIN|__MAX)?")
_COMMA: Final = re.compile(r"^(\s*[-+]?\d+),(\d+(?:[eE][-+]?\d+)?\s*)$")
_UNIT: Final = re.compile(r"(?<=[\d.])(?:\s+[^\W\d]\S{0,11}|\s*%)\s*$")
"""What may stand after a number in a cell: `3.21 nats`, `50.1%`."""
_MILLISECONDS: Final = 1e12
"""Larger numbers are times in milliseconds, as MLflow writes them."""

Split = Callable[[str], list[str]]


def tables_of(lines: Sequence[str], name: str) -> dict[str, list[Row]]:
    """Return the rows of every run in a table; the run of a file with only one is called "".

    `name` is that of the file: a download of one metric says only there which it is. Returns
    nothing if this is no table.
    """
    written = [line for line in lines if line.strip() and not line.startswith("#")]
    split = _find_split(written)
    if split is None:
        return {}
    first = split(written[0])
    if all(number_in(cell) is not None for cell in first):
        return {"": _without_header(map(split, written), name)}
    header = [usual_name(cell.strip().strip('"')) for cell in first]
    if len({*header} - {""}) < 2:
        return {}
    cells = (split(line) for line in written[1:])
    if any(_OF_WANDB.fullmatch(title) for title in header):
        return _of_wandb(header, cells)
    return _with_header(header, cells, name)


def _find_split(lines: Sequence[str]) -> Split | None:
    """Return how a line becomes cells: by the first delimiter that gives the first lines equally
    many.
    """
    head = list(islice(lines, 20))
    if len(head) < 2:
        return None
    for delimiter in _DELIMITERS:
        widths = {len(_cells(line, delimiter)) for line in head}
        # Lightning adds columns to the end of a file that it has begun, and the last line may be
        # torn.
        if min(widths) > 1 and len(widths) <= 2:
            return partial(_cells, delimiter=delimiter)
    widths = {len(line.split()) for line in head}
    numeric = [number_in(cell) is not None for line in head[1:] for cell in line.split()]
    is_plain = len(widths) == 1 and all(numeric)
    return str.split if is_plain else None


def _cells(line: str, delimiter: str) -> list[str]:
    try:
        cells = next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []
    # Where a comma is the decimal point, a semicolon separates.
    return [_COMMA.sub(r"\1.\2", cell) for cell in cells] if delimiter == ";" else cells


def _without_header(lines: Iterable[list[str]], name: str) -> list[Row]:
    """Return the rows of a file of numbers alone: one value, a step and a value in either order, or
    MLflow's time, value and step.
    """
    table = []
    for cells in lines:
        numbers = [number for cell in cells if (number := number_in(cell)) is not None]
        if len(numbers) == len(cells):
            table.append(numbers)
    titles = _titles(table, name)
    rows = [dict(zip(titles, numbers, strict=False)) for numbers in table]
    for row in rows:
        if "timestamp" in row:
            row["timestamp"] /= 1000
    return rows


def _titles(table: Sequence[Sequence[float]], name: str) -> list[str]:
    """Return what the columns of a table of numbers are."""
    width = min(map(len, table), default=0)
    others = [f"column {place}" for place in range(3, width + 1)]
    if width == 3 and all(numbers[0] > _MILLISECONDS for numbers in table):
        return ["timestamp", name, "step"]
    if width > 1 and _is_counter([numbers[0] for numbers in table]):
        return ["step", name, *others]
    if width > 1 and _is_counter([numbers[1] for numbers in table]):
        return [name, "step", *others]
    return [name, "column 2", *others]


def _is_counter(values: Sequence[float]) -> bool:
    """Return whether these are whole numbers that only rise."""
    return all(value.is_integer() for value in values) and all(
        before < after for before, after in pairwise(values)
    )


def _with_header(
    header: Sequence[str], lines: Iterator[list[str]], name: str
) -> dict[str, list[Row]]:
    run_at = _place(header, _RUN_COLUMNS)
    value_at = _place(header, frozenset(VALUE_COLUMNS))
    context_at = _place(header, _CONTEXT_COLUMNS)
    key_at = _place(header, frozenset(KEY_COLUMNS))
    tables: dict[str, list[Row]] = {}
    for cells in lines:
        numbers = {}
        for at, cell in enumerate(islice(cells, len(header))):
            number = number_in(_UNIT.sub("", cell)) if cell else None
            if number is not None and at != run_at:
                numbers[at] = number
        # A download of one metric calls it `value`; a long table says beside it which it is.
        value = numbers.pop(value_at, None) if value_at is not None else None
        row = {header[at]: number for at, number in numbers.items()}
        if value is not None:
            is_of_evaluation = is_evaluation(_cell(cells, context_at))
            title = usual_name(_cell(cells, key_at)) or name
            row[f"val {title}" if is_of_evaluation else title] = value
        tables.setdefault(_cell(cells, run_at), []).append(row)
    return tables


def _place(header: Sequence[str], titles: frozenset[str]) -> int | None:
    return next((at for at, title in enumerate(header) if title.lower() in titles), None)


def _cell(cells: Sequence[str], at: int | None) -> str:
    return cells[at].strip() if at is not None and at < len(cells) else ""


def _of_wandb(header: Sequence[str], lines: Iterator[list[str]]) -> dict[str, list[Row]]:
    """Return the runs of a chart downloaded from W&B: a column for every run, and its bounds."""
    tables: dict[str, list[Row]] = {}
    places = []
    axes = []
    for at, title in enumerate(header):
        match = _OF_WANDB.fullmatch(title)
        if match is None:
            axes.append((at, title))
        elif not match["bound"]:
            places.append((at, match["run"], match["metric"]))
    for cells in lines:
        numbers = [number_in(cell) for cell in cells]
        numbers += [None] * (len(header) - len(numbers))
        steps = {title: numbers[at] for at, title in axes}
        shared = {title: number for title, number in steps.items() if number is not None}
        for at, run, metric in places:
            number = numbers[at]
            if number is not None:
                tables.setdefault(run, []).append({**shared, metric: number})
    return tables
