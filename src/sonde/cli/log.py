"""`sonde log FILES`: what each log comes down to: last values, the best by each metric's goal, means."""

import csv as csv_format
import dataclasses
import sys
from typing import Any

from rich.text import Text

from sonde.cli.terminal import number_text, plain_table, print_table, screen, write_json
from sonde.errors import SettingError
from sonde.log.backends.csv import safe_cell
from sonde.log.screen import value_text
from sonde.log.summary import LogSummary, MetricSummary, summarise
from sonde.records.reader import damage_text
from sonde.report import wording

_COLUMNS = ("metric", "last", "best", "best_step", "mean", "num_values", "unit", "goal", "stage")


def log(*sources: str, json: bool = False, csv: bool = False) -> None:
    """Sum up logs: last values, the best by each metric's goal, means.

    Parameters
    ----------
    sources
        Log files, globs in quotes, or run directories; each is one run. Reads logs of sonde, DLLogger and TCAP_DLLogger.
    json
        Print one JSON document instead of tables.
    csv
        Print one table of comma-separated values over all runs instead.
    """
    if not sources:
        raise SettingError("no log was given", hint="sonde log runs/x, or sonde log tmp.json other.json")
    logs = {source: summarise(source) for source in sources}
    if json:
        write_json([_as_json(source, one) for source, one in logs.items()])
    elif csv:
        writer = csv_format.writer(sys.stdout, lineterminator="\n")
        writer.writerow(["run", *_COLUMNS])
        for source, one in logs.items():
            for row in map(dataclasses.asdict, one.metrics):
                writer.writerow([safe_cell(cell) for cell in (source, *(_cell(row[name]) for name in _COLUMNS))])
    else:
        for source, one in logs.items():
            _show(source, one)


def _show(source: str, one: LogSummary) -> None:
    console = screen()
    console.print(Text(source, style="bold"), Text(_headline(one)))
    if not one.metrics:
        console.print("no numbers in it\n")
        return
    table = plain_table(
        "metric", "last", "best", "at step", "mean", "values", "unit", right=("last", "best", "mean", "values")
    )
    formats = {name: known.get("format") for name, known in one.metadata.items()}
    for metric in one.metrics:
        spec = formats.get(metric.metric)
        table.add_row(
            Text(metric.metric),
            _number(metric.last, spec),
            _number(metric.best, spec),
            Text(number_text(metric.best_step)),
            _number(metric.mean, spec),
            _count(metric),
            Text(metric.unit),
        )
    print_table(console, table)
    console.print()


def _headline(one: LogSummary) -> str:
    seconds = one.seconds
    ranks = len(one.ranks)
    parts = [f"{one.num_records} records", f"last step {one.last_step}"]
    parts += [f"{ranks} ranks"] if ranks > 1 else []
    parts += [wording.duration(seconds)] if seconds is not None else []
    parts += [f"{one.num_superseded} superseded"] if one.num_superseded else []
    parts += [damage_text(one.num_bad)] if one.num_bad else []
    parts += [f"{one.num_lost} lost"] if one.num_lost else []
    return ", ".join(parts)


def _number(value: float | None, spec: object) -> Text:
    if value is None:
        return Text("")
    return Text(value_text(value, spec) if spec else number_text(value))


def _count(metric: MetricSummary) -> Text:
    bad = metric.num_non_finite
    return Text(
        f"{metric.num_values} ({bad} not finite)" if bad else str(metric.num_values), style="red" if bad else ""
    )


def _cell(value: Any) -> Any:
    return "" if value is None else value


def _as_json(source: str, one: LogSummary) -> dict[str, Any]:
    document = {"run": source, **dataclasses.asdict(one)}
    del document["metadata"]
    return document
