"""A probe for one test, closed afterwards: it is one per process."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sonde.probe import PrecisionDebugger


@pytest.fixture
def probe(tmp_path: Path) -> Iterator[Callable[..., PrecisionDebugger]]:
    def start(**settings: Any) -> PrecisionDebugger:
        return PrecisionDebugger(**{"dump_path": tmp_path / "dump", **settings})

    yield start
    if PrecisionDebugger._instance is not None:
        PrecisionDebugger._instance.close()


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """The data of debug.json of a finished step."""

    def read(step: int = 0, process: str = "rank") -> dict[str, Any]:
        document = json.loads(
            (tmp_path / "dump" / f"step{step}" / process / "debug.json").read_bytes()
        )
        data: dict[str, Any] = document["data"]
        return data

    return read
