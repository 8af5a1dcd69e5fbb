"""`read`: the records of a log from any supported logger and all ranks, with the resume rule
applied.

    log = read("runs/x")                       or a file, a glob, a list of them
    for record in log: …                       LOG, METADATA and INFO in time order
    log.series("loss").values                  the mean over ranks at each step
    log.to_pandas()                            one row per LOG record, one column per metric

Reads the output of sonde, NVIDIA's DLLogger and TCAP_DLLogger (lines.py); other lines are skipped
and counted. No torch. A record of ten numbers costs 10 to 15 µs and 1.5 kB of memory; for one
metric of many records use `read_series`, at 1.5 µs.

In a table, the first columns are `datetime, timestamp, elapsedtime, rank, step, epoch, iteration,
validation_iteration`; `step` is the number, or the text of a list or name. A metric with the name
of one of these columns is prefixed with `data.`. A column of numbers is numeric, with null for
missing ones; any other column is text, with lists and dicts as JSON.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Final

from msgspec import structs

from sonde.errors import import_extra
from sonde.log.backend import LOG, METADATA
from sonde.log.lines import LogFile, LogRecord, Source, find_log_files, merge_by_time
from sonde.log.resume import drop_superseded
from sonde.log.series import LogColumns, mean_over_ranks
from sonde.log.steps import TABLE_COLUMNS, table_row
from sonde.records.columns import Series
from sonde.records.values import as_text

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow


_import: Final = partial(import_extra, needed_for="tables of this kind", extra="tables")


@dataclass(frozen=True, slots=True, eq=False)
class Log:
    """The records of one or more files, merged."""

    records: list[LogRecord]
    """The records in time order; those of one file keep their order."""
    num_bad: int = 0
    """Number of lines that are not records."""
    num_lost: int = 0
    """Number of records that could not be written, according to GAP records."""
    num_superseded: int = 0
    """Number of records left out, wholly or in part, because the run went back to an earlier
    step.
    """

    def __iter__(self) -> Iterator[LogRecord]:
        return iter(self.records)

    def __len__(self) -> int:
        return len(self.records)

    @property
    def ranks(self) -> list[int]:
        """The ranks that logged."""
        return sorted({record.rank for record in self.records})

    @property
    def metrics(self) -> list[str]:
        """The names of all logged values, in order of first appearance."""
        names: dict[str, None] = {}
        for record in self.records:
            if _is_row(record):
                names.update(dict.fromkeys(record.data))
        return list(names)

    @property
    def metadata(self) -> dict[str, dict[str, Any]]:
        """The metadata of each metric: unit, format, GOAL, STAGE. Later records override earlier
        ones.
        """
        return metadata_of(self.records)

    def series(self, metric: str, *, rank: int | None = None) -> Series:
        """Return the numbers of one metric: of one rank, or the mean over all ranks at each
        step.
        """
        found = LogColumns(only=metric)
        found.add(self.records)
        ranks = [pair for pair in found.by_rank.items() if rank in (None, pair[0])]
        return mean_over_ranks(
            [(number, columns.columns.series(metric)) for number, columns in ranks]
        )

    def columns(self) -> dict[str, list[Any]]:
        """Return the LOG records as columns: the times, the rank, the parts of the step, then every
        metric.
        """
        rows = [table_row(structs.asdict(record)) for record in self.records if _is_row(record)]
        names = dict.fromkeys((*TABLE_COLUMNS, *chain.from_iterable(rows)))
        return {name: _of_one_type([row.get(name) for row in rows]) for name in names}

    def to_pandas(self) -> "pandas.DataFrame":
        """Return the LOG records as a pandas data frame, one row each."""
        return _import("pandas").DataFrame(self.columns())

    def to_polars(self) -> "polars.DataFrame":
        """Return the LOG records as a polars data frame, one row each."""
        return _import("polars").DataFrame(self.columns(), infer_schema_length=None)

    def to_arrow(self) -> "pyarrow.Table":
        """Return the LOG records as an Arrow table, one row each."""
        return _import("pyarrow").table(self.columns())


def read(source: Source, *, keep_superseded: bool = False) -> Log:
    """Read a log: a file, a glob, a run directory, or a list of them.

    `keep_superseded` keeps what the resume rule would leave out, so that everything ever logged is
    returned.

    ```python
    import sonde
    from sonde import JSONStreamBackend, Logger, Verbosity

    with Logger(JSONStreamBackend(Verbosity.DEFAULT, "log.json")) as logger:
        logger.log(step=1, data={"loss": 4.5})
    log = sonde.log.read("log.json")  # or a run directory, a glob, a list of them
    assert log.series("loss").values.tolist() == [4.5]
    ```
    """
    files = [LogFile(path) for path in find_log_files(source)]
    parts = [
        [record for block in file.blocks() for record in file.records(block)] for file in files
    ]
    if keep_superseded:
        kept = [(records, 0) for records in parts]
    else:
        kept = [drop_superseded(records) for records in parts]
    return Log(
        merge_by_time([records for records, _ in kept]),
        num_bad=sum(file.scanner.num_bad for file in files),
        num_lost=sum(file.num_lost for file in files),
        num_superseded=sum(num for _, num in kept),
    )


def metadata_of(
    records: Iterable[LogRecord], before: dict[str, dict[str, Any]] | None = None
) -> dict[str, dict[str, Any]]:
    """Return the metadata of each metric from METADATA records, added to what was known before."""
    known = dict(before or {})
    for record in records:
        if record.type == METADATA and record.metric is not None and isinstance(record.data, dict):
            known.setdefault(record.metric, {}).update(record.data)
    return known


def _is_row(record: LogRecord) -> bool:
    return record.type == LOG and isinstance(record.data, dict)


def _of_one_type(column: list[Any]) -> list[Any]:
    """Return a column of one type: numbers stay numbers, all floats if one is; anything else
    becomes text.
    """
    kinds = {type(value) for value in column} - {type(None)}
    if kinds <= {int} or kinds <= {bool} or kinds <= {str}:
        return (
            column if kinds != {int} or all(_fits(value) for value in column) else _as_text(column)
        )
    if kinds <= {int, float, bool}:
        return [None if value is None else float(value) for value in column]
    return _as_text(column)


def _fits(value: int | None) -> bool:
    return value is None or -(2**63) <= value < 2**63


def _as_text(column: list[Any]) -> list[Any]:
    return [None if value is None else as_text(value) for value in column]
