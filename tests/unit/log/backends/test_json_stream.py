import json
import os
import re
from pathlib import Path

import pytest

from sonde.errors import SettingError
from sonde.log import JSONStreamBackend, Logger, Verbosity, read
from sonde.log.foreign_lines import nvidia_line
from sonde.records.append import RecordFile


def test_a_second_backend_on_the_same_file_appends(tmp_path: Path) -> None:
    path = tmp_path / "a" / "tmp.json"
    first, second = (Logger([JSONStreamBackend(Verbosity.VERBOSE, path)]) for _ in range(2))
    first.log(1, {"a": 1.0})
    second.log(2, {"a": 1.0})
    first.log(3, {"a": 1.0})
    first.close()
    second.close()
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 2, 3]


def test_an_open_record_file_is_shared_and_left_open(tmp_path: Path) -> None:
    with RecordFile(tmp_path / "log.rank0.jsonl") as file:
        backend = JSONStreamBackend(Verbosity.VERBOSE, file)
        assert backend.path == tmp_path / "log.rank0.jsonl"
        with Logger([backend]) as logger:
            logger.log(1, {"a": 1.0})
        assert file.append({"type": "LOG", "step": 2, "data": {}})
    assert [record.step for record in read(tmp_path / "log.rank0.jsonl")] == [1, 2]


def test_a_link_is_followed(tmp_path: Path) -> None:
    (tmp_path / "latest.json").symlink_to(tmp_path / "real.json")
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, tmp_path / "latest.json")]) as logger:
        logger.log(1, {"a": 1.0})
    assert len(read(tmp_path / "real.json")) == 1


def test_a_torn_last_line_of_an_earlier_run_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"type":"LOG","step":0,"da')
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, path)]) as logger:
        logger.log(1, {"a": 1.0})
    log = read(path)
    assert [record.step for record in log] == [1]
    assert log.num_bad == 1


def test_nvidia_lines_are_exactly_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"timestamp": 1794772007.43425, "elapsedtime": 5e-06, "datetime": "x", "rank": 3}
    log = {
        **times,
        "type": "LOG",
        "step": (0, 1),
        "data": {"ü": float("nan"), "shape": [1, 2], "s": "x", "big": 2**80},
    }
    metadata = {**times, "type": "METADATA", "metric": "loss", "metadata": {"unit": ""}}
    when = r'"2026-11-1\d \d\d:\d\d:47\.434250[+-]\d\d:\d\d"'
    assert re.fullmatch(
        r'DLLL \{"timestamp": "1794772007\.43425", "datetime": '
        + when
        + r', "elapsedtime": "5e-06", "type": "LOG", '
        r'"step": \[0, 1\], "data": \{"\\u00fc": NaN, "shape": \[1, 2\], "s": "x", "big":'
        r" 1208925819614629174706176\}\}\n",
        nvidia_line(log).decode(),
    )
    assert re.fullmatch(
        r'DLLL \{"timestamp": "1794772007\.43425", "elapsedtime": "5e-06", "datetime": '
        + when
        + r', "type": "METADATA", '
        r'"metric": "loss", "metadata": \{"unit": ""\}\}\n',
        nvidia_line(metadata).decode(),
    )


def test_nvidia_lines_read_back(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, path, prefix="DLLL ")]) as logger:
        logger.metadata("loss", {"unit": "x"})
        logger.info({"lr": 0.1})
        logger.info("words")
        logger.log((0, 1), {"loss": 1.0})
        logger.log(2, {"loss": None, "keys": {1: 2}})
    assert all(line.startswith("DLLL {") for line in path.read_text().splitlines())
    assert [(record.type, record.step, record.data) for record in read(path)] == [
        ("METADATA", None, {"unit": "x"}),
        ("LOG", "PARAMETER", {"lr": 0.1}),
        ("LOG", "PARAMETER", {"info": "words"}),
        ("LOG", [0, 1], {"loss": 1.0}),
        ("LOG", 2, {"loss": None, "keys": {"1": 2}}),
    ]


def test_other_prefixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="prefix"):
        JSONStreamBackend(Verbosity.VERBOSE, tmp_path / "a.json", prefix="XYZ ")
    assert os.listdir(tmp_path) == []
