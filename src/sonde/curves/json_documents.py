"""Logs that are one JSON document: Hugging Face's `trainer_state.json`, a Keras history, or any
list of rows or table of columns.

    trainer_state_source(path)     a file, a checkpoint, or the newest checkpoint of a folder
    rows_of_document(document)     what wrote it, and its rows; pure
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sonde.curves.names import is_loss
from sonde.curves.points import Point, Row, Source, flattened, is_number, usual_name
from sonde.records.files import read_small

TRAINER_STATE: Final = "trainer_state.json"
"""The name of the file that a Trainer writes into every checkpoint."""
HUGGING_FACE: Final = "Hugging Face's trainer_state.json"
_HISTORY: Final = "log_history"
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d{1,18})")
_ENTRY: Final = re.compile(r"\{[^{}]*\}")
_MAX_DEPTH: Final = 4
_TRIPLE: Final = ("wall_time", "step", "value")
"""What TensorBoard's JSON download holds of each point."""


def trainer_state_source(path: Path) -> Source:
    """Read the state from a file, a checkpoint, or the newest checkpoint in an output directory."""
    source = Source(path=find_state(path), format=HUGGING_FACE)
    source.points = _state_points(source)
    return source


def find_state(path: Path) -> Path:
    """Return the state that a path means; it need not exist."""
    if not path.is_dir():
        return path
    numbered = []
    for entry in path.iterdir():
        match = _CHECKPOINT.fullmatch(entry.name)
        if match:
            numbered.append((int(match[1]), entry))
    places = [path, *(entry for _, entry in sorted(numbered, reverse=True))]
    states = [place / TRAINER_STATE for place in places]
    return next((state for state in states if state.is_file()), states[0])


def _state_points(source: Source) -> Iterator[Point]:
    try:
        state: Any = json.loads(read_small(source.path, follow=True))
        history = state.pop(_HISTORY)
    except OSError as error:
        source.note(error.strerror or str(error))
        return
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        source.note(f"it is no state of a Trainer: {error}")
        return
    source.settings |= {
        name: value for name, value in state.items() if isinstance(value, (str, int, float))
    }
    yield from points_of_history(source, history)


def points_of_history(source: Source, history: object) -> Iterator[Point]:
    """Yield what a Trainer logged."""
    for entry in history if isinstance(history, list) else []:
        step = entry.get("step") if isinstance(entry, dict) else None
        if not isinstance(step, int):
            source.note("an entry has no step")
            continue
        values = {
            usual_name(name): float(value)
            for name, value in entry.items()
            if name != "step" and is_number(value)
        }
        yield Point(step, None, values)


def is_trainer_state(document: object) -> bool:
    """Return whether a document is the state of a Trainer."""
    return isinstance(document, Mapping) and isinstance(document.get(_HISTORY), list)


def torn_history(text: str) -> list[object]:
    """Return the whole entries of a state whose end is missing: a machine went down while it was
    written. Nothing if the text is something else.
    """
    _, mark, entries = text.partition(f'"{_HISTORY}"')
    if not mark:
        return []
    found: list[object] = []
    for match in _ENTRY.finditer(entries):
        try:
            found.append(json.loads(match[0]))
        except ValueError:
            continue
    return found


def history_of(document: Mapping[str, Any]) -> object:
    """Return what a Trainer logged, from its state."""
    return document[_HISTORY]


def rows_of_document(document: object, depth: int = 0) -> list[Row]:
    """Return the rows of a document: the longest list of objects or numbers in it, or columns of
    equal length. Rows with a loss come before longer ones without.
    """
    found: list[list[Row]] = []
    if isinstance(document, list):
        found.append(_rows_of_list(document))
    elif isinstance(document, Mapping):
        found.append(_rows_of_columns(document))
        if depth < _MAX_DEPTH:
            found += [rows_of_document(value, depth + 1) for value in document.values()]
    return max(found, key=_weight_of_rows, default=[])


def _weight_of_rows(rows: Sequence[Row]) -> tuple[bool, int]:
    return any(map(is_loss, rows[0] if rows else ())), len(rows)


def _rows_of_list(entries: Sequence[object]) -> list[Row]:
    if all(map(is_number, entries)):
        return [{"value": float(value)} for value in entries]  # type: ignore[arg-type]  # checked
    if all(map(_is_triple, entries)):
        return [dict(zip(_TRIPLE, map(float, entry), strict=True)) for entry in entries]  # type: ignore[call-overload]  # checked
    return [flattened(entry) for entry in entries if isinstance(entry, Mapping)]


def _is_triple(entry: object) -> bool:
    return isinstance(entry, list) and len(entry) == 3 and all(map(is_number, entry))


def _rows_of_columns(document: Mapping[str, Any]) -> list[Row]:
    """Return columns of equal length as rows, as a Keras history has them."""
    columns = {
        usual_name(name): values
        for name, values in document.items()
        if isinstance(values, list) and values and all(map(is_number, values))
    }
    length = max(map(len, columns.values()), default=0)
    whole = {name: values for name, values in columns.items() if len(values) == length}
    return [
        {name: float(values[place]) for name, values in whole.items()} for place in range(length)
    ]
