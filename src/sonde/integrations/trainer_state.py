"""`trainer_state.json` of `transformers.Trainer`: what it logged, at its steps. The file has no times."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from sonde.integrations.importing import Point, Source, is_number, usual_name
from sonde.records.files import read_small

_NAME: Final = "trainer_state.json"
_CHECKPOINT: Final = re.compile(r"checkpoint-(\d{1,18})")


def trainer_state_source(path: Path) -> Source:
    """The state in a file, a checkpoint, or the newest checkpoint of an output directory."""
    source = Source(path=_find(path))
    source.points = _points(source)
    return source


def _find(path: Path) -> Path:
    if not path.is_dir():
        return path
    numbers = [(int(match[1]), one) for one in path.iterdir() if (match := _CHECKPOINT.fullmatch(one.name))]
    places = [path, *(one for _, one in sorted(numbers, reverse=True))]
    return next((one / _NAME for one in places if (one / _NAME).is_file()), path / _NAME)


def _points(source: Source) -> Iterator[Point]:
    try:
        state: Any = json.loads(read_small(source.path, follow=True))
        history = state.pop("log_history")
    except OSError as error:
        source.note(error.strerror or str(error))
        return
    except (ValueError, KeyError, AttributeError, RecursionError) as error:
        source.note(f"it is no state of a Trainer: {error}")
        return
    source.settings |= {name: value for name, value in state.items() if isinstance(value, (str, int, float))}
    for entry in history if isinstance(history, list) else []:
        step = entry.get("step") if isinstance(entry, dict) else None
        if not isinstance(step, int):
            source.note("an entry has no step")
            continue
        values = {usual_name(name): float(one) for name, one in entry.items() if name != "step" and is_number(one)}
        yield Point(step, None, values)
