"""LOG records as a table: one row a record, one column a metric, for pandas, polars and Arrow.

The first columns are `timestamp, elapsedtime, datetime, rank, step, epoch, iteration, validation_iteration`; `step` is the
number, or the text of a list or name. A metric of the same name as one of these is called `data.` and its name. A column
whose values are all numbers is numeric, missing ones null; any other column is text, with lists and dicts as JSON.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sonde.errors import MissingDependency
from sonde.log.backend import LOG
from sonde.log.record import LogRecord
from sonde.log.steps import step_parts
from sonde.records.values import encode

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

LEADING: Final = (
    "timestamp",
    "elapsedtime",
    "datetime",
    "rank",
    "step",
    "epoch",
    "iteration",
    "validation_iteration",
)


def columns_of(records: Sequence[LogRecord]) -> dict[str, list[Any]]:
    """The table as plain columns of equal length."""
    rows = [record for record in records if record.type == LOG and isinstance(record.data, dict)]
    columns: dict[str, list[Any]] = {name: [] for name in LEADING}
    for number, record in enumerate(rows):
        parts = step_parts(record.step)
        step = record.step if isinstance(record.step, int) else None if record.step is None else str(record.step)
        leading = (record.timestamp, record.elapsedtime, record.datetime, record.rank, step, *parts)
        for name, value in zip(LEADING, leading, strict=True):
            columns[name].append(value)
        for key, value in record.data.items():
            name = f"data.{key}" if key in LEADING else str(key)
            column = columns.get(name)
            if column is None:
                column = columns[name] = [None] * number
            column.append(value)
        for column in columns.values():
            if len(column) == number:
                column.append(None)
    return {name: _of_one_type(column) for name, column in columns.items()}


def to_pandas(records: Sequence[LogRecord]) -> "pandas.DataFrame":
    """The table as a pandas data frame."""
    try:
        import pandas
    except ImportError:
        raise MissingDependency("pandas", needed_for="to_pandas", extra="tables") from None
    return pandas.DataFrame(columns_of(records))


def to_polars(records: Sequence[LogRecord]) -> "polars.DataFrame":
    """The table as a polars data frame."""
    try:
        import polars
    except ImportError:
        raise MissingDependency("polars", needed_for="to_polars", extra="tables") from None
    return polars.DataFrame(columns_of(records), infer_schema_length=None)


def to_arrow(records: Sequence[LogRecord]) -> "pyarrow.Table":
    """The table as an Arrow table."""
    try:
        import pyarrow
    except ImportError:
        raise MissingDependency("pyarrow", needed_for="to_arrow", extra="tables") from None
    return pyarrow.table(columns_of(records))


def _of_one_type(column: list[Any]) -> list[Any]:
    """Numbers stay numbers, all of them floats if one is; anything else is text."""
    kinds = {type(value) for value in column} - {type(None)}
    if kinds <= {int} or kinds <= {bool} or kinds <= {str}:
        return column if kinds != {int} or all(_fits(value) for value in column) else _as_text(column)
    if kinds <= {int, float, bool}:
        return [None if value is None else float(value) for value in column]
    return _as_text(column)


def _fits(value: int | None) -> bool:
    return value is None or -(2**63) <= value < 2**63


def _as_text(column: list[Any]) -> list[Any]:
    return [value if value is None or isinstance(value, str) else encode(value).decode().strip() for value in column]
