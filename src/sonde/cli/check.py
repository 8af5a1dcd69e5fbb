"""The verb `check`: find mistakes in a training by experiment, before it runs for days."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, TextIO

from rich.text import Text

from sonde.cli.terminal import needs, screen, write_json
from sonde.errors import SettingError
from sonde.forensics.checks.check_report import CheckReport, report_of
from sonde.records.files import write_file
from sonde.records.layout import RunLayout
from sonde.records.replay_order import CHECK, ReplayOrder, launch
from sonde.records.values import encode

_TRAINER_STEPS: Final = "sonde.recorder.checked_steps:CheckedSteps"


def check(*command: str, json: bool = False) -> int:
    """Find mistakes in a training script before the run.

    `sonde check -- python train.py …` exits 1 if something is wrong. Your script starts as usual
    and makes its first eight updates. Then sonde restores everything, and runs the script's step
    function again with one thing changed at a time: later tokens, other rows, float32, one batch.
    It writes only the result, check.json, into the run directory of the script if that exists.

    Parameters
    ----------
    command
        The command that runs your training script, after `--`.
    json
        Print one JSON document instead of text.
    """
    needs("sonde check", "torch")
    if not command:
        raise SettingError(
            "there is no script to check", hint="give its command: sonde check -- python train.py"
        )
    report, directory = check_script(command)
    _keep(report, RunLayout(directory))
    if json:
        write_json(report.document())
    else:
        show_report(report)
    return 1 if report.wrong else 0


def check_script(command: Sequence[str], output: TextIO | None = None) -> tuple[CheckReport, Path]:
    """Run a script for a check; return the report, and the run directory that the script names.

    `output` receives what the script prints, by default stderr.
    """
    order = ReplayOrder(run="", verb=CHECK, trainer_steps=_TRAINER_STEPS)
    answer: Any = launch(order, command, None, output)
    return report_of(answer["check"]), Path(answer["directory"])


def _keep(report: CheckReport, layout: RunLayout) -> None:
    """Write the report into the run that the script names, if there is one."""
    if layout.manifest.is_file():
        write_file(layout.check, encode(report.document()))


def show_report(report: CheckReport) -> None:
    """Print a report for people."""
    console = screen()
    for line in report.text().splitlines():
        style = "bold red" if line.startswith("WRONG") else ""
        console.print(Text(line, style=style), soft_wrap=True)
    sys.stdout.flush()
