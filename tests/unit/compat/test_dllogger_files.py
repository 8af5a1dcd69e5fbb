"""The files and screens of NVIDIA's and TCAP's DLLogger in detail, tried literally."""

import ast
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from sonde.compat.dllogger import nvidia, tcap

TIMES = ["timestamp", "datetime", "elapsedtime"]


def records(path: Path, prefix: str) -> list[dict[str, Any]]:
    written = path.read_text().splitlines()
    assert all(line.startswith(prefix) for line in written)
    return [json.loads(line.removeprefix(prefix)) for line in written]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "log.json"


def nvidia_logger(path: Path) -> Any:
    return nvidia.Logger([nvidia.JSONStreamBackend(nvidia.Verbosity.VERBOSE, str(path))])


def test_the_levels_are_numbers() -> None:
    levels = (nvidia.Verbosity.OFF, nvidia.Verbosity.DEFAULT, nvidia.Verbosity.VERBOSE)
    assert levels == (-1, 0, 1)


def test_a_record_has_these_keys_in_this_order(path: Path) -> None:
    logger = nvidia_logger(path)
    logger.log(step=(0, 1), data={"loss": 1.5})
    logger.flush()
    (record,) = records(path, "DLLL ")
    assert list(record) == [*TIMES, "type", "step", "data"]
    assert (record["type"], record["data"]) == ("LOG", {"loss": 1.5})


def test_metadata_have_these_keys_in_this_order(path: Path) -> None:
    logger = nvidia_logger(path)
    logger.metadata("loss", {"unit": "nat"})
    logger.flush()
    (record,) = records(path, "DLLL ")
    assert list(record) == ["timestamp", "elapsedtime", "datetime", "type", "metric", "metadata"]
    assert (record["metric"], record["metadata"]) == ("loss", {"unit": "nat"})


def test_times_are_text_and_the_date_has_its_zone(path: Path) -> None:
    logger = nvidia_logger(path)
    logger.log(step=1, data={})
    logger.flush()
    (record,) = records(path, "DLLL ")
    moment = datetime.fromisoformat(record["datetime"])
    assert moment.tzinfo is not None
    assert float(record["timestamp"]) == pytest.approx(moment.timestamp(), abs=1e-3)
    assert 0 <= float(record["elapsedtime"]) < 60


@pytest.mark.parametrize(
    ("step", "written"),
    [(7, 7), ("PARAMETER", "PARAMETER"), (None, None), ((0, 1), [0, 1]), ([], [])],
)
def test_a_step_is_written_as_it_was_given(path: Path, step: Any, written: Any) -> None:
    logger = nvidia_logger(path)
    logger.log(step=step, data={"x": 1})
    logger.flush()
    assert records(path, "DLLL ")[0]["step"] == written


def test_the_last_line_of_a_file_is_the_summary(path: Path) -> None:
    logger = nvidia_logger(path)
    logger.log(step=(0, 1), data={"loss": 1.5})
    logger.log(step=[], data={"best_accuracy": 0.9})
    logger.flush()
    assert records(path, "DLLL ")[-1]["data"] == {"best_accuracy": 0.9}


def test_metadata_are_not_printed(capsys: pytest.CaptureFixture[str]) -> None:
    logger = nvidia.Logger([nvidia.StdOutBackend(nvidia.Verbosity.VERBOSE)])
    logger.metadata("loss", {"unit": "nat"})
    logger.flush()
    assert capsys.readouterr().out == ""


def test_tcap_writes_values_as_text_and_loss_and_speed_under_qa(path: Path) -> None:
    logger = tcap.Logger([tcap.JSONStreamBackend(tcap.Verbosity.VERBOSE, str(path))])
    logger.log(step=(0, 1), data={"loss": 1.5, "speed": 3.0, "lr": 0.1})
    logger.close()
    (record,) = records(path, "TCAPPDLL ")
    assert ast.literal_eval(record["data"]) == {"QA.loss": "1.5", "QA.speed": "3.0", "lr": "0.1"}


def test_tcap_writes_what_is_told_with_a_prefix_of_its_own(path: Path) -> None:
    logger = tcap.Logger([tcap.JSONStreamBackend(tcap.Verbosity.VERBOSE, str(path))])
    logger.info({"batch_size": 32})
    logger.close()
    (record,) = records(path, "INFO ")
    assert list(record) == ["local_rank", "datetime", "type", "data"]
    assert (record["local_rank"], record["data"]) == (0, {"batch_size": 32})


def test_tcap_prints_three_parts_of_a_step(capsys: pytest.CaptureFixture[str]) -> None:
    logger = tcap.Logger([tcap.StdOutBackend(tcap.Verbosity.VERBOSE)])
    logger.log(step=(1, 2, 3, 4), data={"lr": 0.1})
    logger.close()
    shown = capsys.readouterr().out
    assert "Epoch: 1 Iteration: 2 Validation Iteration: 3  lr : 0.1" in shown
