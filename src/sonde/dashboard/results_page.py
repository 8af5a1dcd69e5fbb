"""The pages of a run with what `sonde check` and `sonde audit` found: read from `check.json` and
`audit.json` of the run. If there is none, the page says how to make it.
"""

import shlex
from pathlib import Path
from typing import Any, Final

from sonde.dashboard.folder import ListedRun, OpenRun
from sonde.dashboard.frame import commands
from sonde.errors import SettingError, SondeError
from sonde.forensics.checks.check_report import report_of
from sonde.records.files import read_small
from sonde.records.layout import RunLayout
from sonde.records.replay_order import recorded_command
from sonde.records.values import decode
from sonde.report.html.audits import audit_findings, audit_summary, audit_title
from sonde.report.html.checks import check_results
from sonde.report.html.markup import Child, note, section, tag

_DATA: Final = "DATA"


def check_page(row: ListedRun, run: OpenRun, _query: object) -> Child:
    """Render what `sonde check` found about the script of the run."""
    path = RunLayout(run.path).check
    if not path.exists():
        sentence = (
            "The script of this run was not checked. A check makes its first updates and looks for"
            " mistakes by experiment; training is not changed by it."
        )
        line = f"sonde check -- {_command(row)}"
        return [note(sentence, "none"), commands([("check the script", line)])]
    document, problem = _read(path)
    if problem:
        return note(problem, "note bad")
    try:
        return check_results(report_of(document))
    except (KeyError, TypeError, ValueError) as error:
        return note(f"{path.name} cannot be shown: {error!r}", "note bad")


def audit_page(row: ListedRun, run: OpenRun, _query: object) -> Child:
    """Render what `sonde audit` found in the corpus of the run."""
    path = RunLayout(run.path).audit
    if not path.exists():
        sentence = (
            "No audit of its corpus is in this run. An audit finds garbled and foreign texts,"
            " duplicates and bad pairs."
        )
        data = _data(row)
        line = f"sonde audit {shlex.quote(data)} --run {shlex.quote(str(run.path))}"
        what = "audit the corpus" if data != _DATA else f"audit the corpus, whose path is {_DATA}"
        return [note(sentence, "none"), commands([(what, line)])]
    document, problem = _read(path)
    if problem:
        return note(problem, "note bad")
    try:
        title = section(audit_title(document), audit_summary(document))
        return [title, tag("div", audit_findings(document), class_="audit")]
    except (KeyError, TypeError, ValueError) as error:
        return note(f"{path.name} cannot be shown: {error!r}", "note bad")


def _read(path: Path) -> tuple[Any, str]:
    """Return the content of a JSON file, or why it cannot be read."""
    try:
        return decode(read_small(path)), ""
    except (SondeError, OSError, ValueError) as error:
        return None, f"{path.name} cannot be read: {error}"


def _data(row: ListedRun) -> str:
    """Return where the data of a run of `sonde train` is; a name to replace for other runs."""
    manifest = row.summary.manifest
    settings = manifest.settings if manifest is not None else None
    found = (settings or {}).get("data")
    return found if isinstance(found, str) and Path(found).exists() else _DATA


def _command(row: ListedRun) -> str:
    """Return the command of the script, as the run recorded it."""
    manifest = row.summary.manifest
    try:
        words, _ = recorded_command(manifest) if manifest is not None else ((), "")
    except SettingError:
        words = ()
    return shlex.join(words) or "python train.py"
