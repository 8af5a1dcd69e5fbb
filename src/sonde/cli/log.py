"""`sonde log FILES`: summarise logs: last values, the best value by each metric's goal, means."""

import dataclasses
from collections.abc import Iterator

from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import print_csv, print_rows, tell
from sonde.errors import SettingError
from sonde.log.screen import value_text
from sonde.log.summary import LogSummary, summarise
from sonde.records.reader import damage_text
from sonde.report import wording

_COLUMNS = ("metric", "last", "best", "best_step", "mean", "num_values", "unit", "goal", "stage")


def log(*sources: str, json: bool = False, csv: bool = False) -> None:
    """Summarise logs: last values, the best value by each metric's goal, means.

    Parameters
    ----------
    sources
        Log files, quoted globs, or run directories; each is one run. Reads logs of sonde, DLLogger and TCAP_DLLogger.
    json
        Print one JSON document instead of tables.
    csv
        Print one CSV table over all runs instead.
    """
    if not sources:
        raise SettingError("no log was given", hint="sonde log runs/x, or sonde log tmp.json other.json")
    logs = {source: summarise(source) for source in sources}
    if csv and not json:
        metrics = [(source, dataclasses.asdict(metric)) for source, one in logs.items() for metric in one.metrics]
        rows = [[source, *(metric[name] for name in _COLUMNS)] for source, metric in metrics]
        print_csv([["run", *_COLUMNS], *rows])
        return
    document = [{"run": source, **dataclasses.asdict(one)} for source, one in logs.items()]
    for one in document:
        del one["metadata"]
    tell(document, lambda console: _show(console, logs), json=json)


def _show(console: Console, logs: dict[str, LogSummary]) -> None:
    for source, one in logs.items():
        console.print(Text(source, style="bold"), Text(_headline(one)))
        if one.metrics:
            columns = ("metric", ">last", ">best", "at step", ">mean", ">values", "unit")
            print_rows(console, columns, _rows(one))
            console.print()
        else:
            console.print("no numbers in it\n")


def _rows(one: LogSummary) -> Iterator[list[object]]:
    for metric in one.metrics:
        spec = one.metadata.get(metric.metric, {}).get("format")
        last, best, mean = (
            value if value is None or not spec else value_text(value, spec)
            for value in (metric.last, metric.best, metric.mean)
        )
        bad = metric.num_non_finite
        count = Text(f"{metric.num_values} ({bad} not finite)", style="red") if bad else metric.num_values
        yield [metric.metric, last, best, metric.best_step, mean, count, metric.unit]


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
