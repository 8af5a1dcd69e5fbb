"""The search box of the list of runs: words, and conditions on settings.

    sweep lr=0.001 status=failed loss<2

A word must occur in a run's name, status or settings. A condition names a setting (or `status`,
`step`, `loss`), and compares it with a value: as numbers if both are, else as text, where `*`
stands for anything.
"""

import fnmatch
import re
from typing import Final

from sonde.dashboard.folder import ListedRun
from sonde.report import wording

_CONDITION: Final = re.compile(r"(?P<key>[^=<>!]+)(?P<sign>!=|<=|>=|=|<|>)(?P<value>.*)")
_MAX_SETTINGS: Final = 20_000


def matches(row: ListedRun, query: str) -> bool:
    """Return whether a run is found by everything in a query."""
    return all(_matches_word(row, word) for word in query.split())


def settings_of(row: ListedRun) -> dict[str, str]:
    """Return the settings of a run by name; nested ones have dotted names."""
    manifest = row.summary.manifest
    if manifest is None:
        return {}
    return dict(wording.setting_rows(manifest.settings))


def _matches_word(row: ListedRun, word: str) -> bool:
    condition = _CONDITION.fullmatch(word)
    if condition is None:
        return word.lower() in _searched(row)
    values = _values(row)
    found = values.get(condition["key"].lower())
    if found is None:
        return False
    return _compare(found, condition["sign"], condition["value"])


def _searched(row: ListedRun) -> str:
    manifest = row.summary.manifest
    settings = "" if manifest is None else str(manifest.settings)[:_MAX_SETTINGS]
    return f"{row.name} {row.summary.status} {settings}".lower()


def _values(row: ListedRun) -> dict[str, str]:
    found = {name.lower(): text for name, text in settings_of(row).items()}
    found |= {"name": row.name, "status": row.summary.status}
    if row.step is not None:
        found["step"] = str(row.step)
    if row.loss is not None:
        found["loss"] = str(row.loss)
    return found


def _compare(found: str, sign: str, wanted: str) -> bool:
    left = as_float(found)
    right = as_float(wanted)
    if left is None or right is None:
        is_same = fnmatch.fnmatch(found.lower(), wanted.lower())
        return {"=": is_same, "!=": not is_same}.get(sign, False)
    return {
        "=": left == right,
        "!=": left != right,
        "<": left < right,
        "<=": left <= right,
        ">": left > right,
        ">=": left >= right,
    }[sign]


def as_float(text: str) -> float | None:
    """Return the number that a text is; None if it is none."""
    try:
        return float(text)
    except ValueError:
        return None
