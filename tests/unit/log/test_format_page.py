"""docs/formats/log.md is held to the code: its example is what the logger writes, and its tables
name what there is.
"""

import json
import math
import re
from pathlib import Path

import pytest

from sonde.log import JSONStreamBackend, Logger, Verbosity, read
from sonde.log.foreign_lines import PREFIXES

PAGE = (Path(__file__).parents[3] / "docs" / "formats" / "log.md").read_text()
EXAMPLE = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)[0]


def test_the_example_is_what_the_logger_writes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    moments = iter(
        [
            1794776881_251129,
            1794776881_251129,
            *(1794776881_000000 + n for n in (251177, 251199, 251299, 251363)),
        ]
    )
    monkeypatch.setattr("sonde.log.logger.time_ns", lambda: next(moments) * 1000)
    monkeypatch.setenv("TZ", "UTC")
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, tmp_path / "a.json")]) as logger:
        logger.metadata(
            "speed", {"unit": "imgs/s", "format": ":.3f", "GOAL": "MAXIMIZE", "STAGE": "TRAIN"}
        )
        logger.info({"lr": 0.1, "epochs": 2})
        logger.log((0, 0), {"loss": 1.0, "speed": 123.456789})
        logger.log((0, 1), {"loss": math.nan, "speed": 123.456789})
    # the time zone is this machine's, and the checksum covers it
    local = r'"datetime":"[^"]+"|"_crc":"[^"]+"'
    assert re.sub(local, "", (tmp_path / "a.json").read_text()) == re.sub(local, "", EXAMPLE)


def test_the_example_reads_back(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(EXAMPLE)
    log = read(tmp_path / "a.json")
    assert [record.type for record in log] == ["METADATA", "INFO", "LOG", "LOG"]
    assert log.num_bad == 0


def test_every_field_is_in_the_table() -> None:
    table = PAGE.partition("## Fields")[2].partition("\n## ")[0]
    named = re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)
    assert {field for line in EXAMPLE.splitlines() for field in json.loads(line)} == set(named)


def test_every_foreign_line_is_in_the_table() -> None:
    assert all(f"`{prefix}{{`" in PAGE for prefix in PREFIXES)
    assert "\nVersion 1" in PAGE
    assert "## What may change" in PAGE
