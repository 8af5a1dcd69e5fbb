"""Every bug known of TCAP_DLLogger and NVIDIA's DLLogger, each with the test that it is not ours.

Their behaviour was measured; the docstrings say what it was.
"""

import io
import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sonde.cli.compare import LogComparison, ToleranceFlags
from sonde.log import JSONStreamBackend, Logger, StdOutBackend, Verbosity, read
from sonde.records.columns import Series


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "tmp.json"


def log_one(path: Path, step: Any, data: Any) -> dict[str, Any]:
    """Log one record to screen and file, and give back the file's line as any JSON parser reads
    it.
    """
    with Logger(
        [StdOutBackend(Verbosity.DEFAULT), JSONStreamBackend(Verbosity.VERBOSE, path)]
    ) as logger:
        logger.log(step=step, data=data)
    return strict_json(path.read_text())


def strict_json(line: str) -> dict[str, Any]:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    record: dict[str, Any] = json.loads(line, parse_constant=refuse)
    return record


def test_int_step_raised_type_error(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TCAP: object of type 'int' has no len(), and nothing was written."""
    assert log_one(path, 7, {"loss": 1.0})["step"] == 7
    assert " - Iteration: 7  loss : 1.0 \n" in capsys.readouterr().out


def test_none_step_raised_type_error(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TCAP: the same for None."""
    assert log_one(path, None, {"loss": 1.0})["step"] is None
    assert " -  loss : 1.0 \n" in capsys.readouterr().out


def test_second_open_truncated_the_file(path: Path) -> None:
    """TCAP: opened for appending, then truncated anyway: what another rank or an earlier run wrote
    was gone.
    """
    for step in range(3):
        with Logger([JSONStreamBackend(Verbosity.VERBOSE, path)]) as logger:
            logger.log(step, {"loss": 0.5})
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [0, 1, 2]


def test_default_mode_overwrote_the_other_processes(path: Path) -> None:
    """NVIDIA: the default was mode "w": of four processes' 20,000 records 4,996 were left."""
    loggers = [Logger([JSONStreamBackend(Verbosity.VERBOSE, path)], rank=rank) for rank in range(4)]
    for step in range(50):
        for logger in loggers:
            logger.log(step, {"loss": 1.0})
    for logger in loggers:
        logger.close()
    assert len(path.read_text().splitlines()) == 200
    Logger([JSONStreamBackend(Verbosity.VERBOSE, path, append=False)]).log(7, {"loss": 1.0})
    assert len(path.read_text().splitlines()) == 1


@pytest.mark.parametrize("value", [1.0, "text"], ids=["numbers", "anything"])
def test_threads_tore_lines(path: Path, value: object) -> None:
    """Both: 8 threads x 5000 left 26 (NVIDIA) and 67 (TCAP) broken lines; the full count runs in
    tests/integration.
    """
    logger = Logger([JSONStreamBackend(Verbosity.VERBOSE, path)])

    def work(number: int) -> None:
        for step in range(300):
            logger.log(step, {"thread": number, "value": value})

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    logger.close()
    records = [strict_json(line) for line in path.read_text().splitlines()]
    assert sorted((r["data"]["thread"], r["step"]) for r in records) == [
        (t, s) for t in range(8) for s in range(300)
    ]


def test_threads_tore_screen_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both printed the line and its newline in two writes."""
    writes: list[str] = []

    class Recorder(io.StringIO):
        def write(self, text: str) -> int:
            writes.append(text)
            return len(text)

    monkeypatch.setattr("sys.stdout", Recorder())
    Logger([StdOutBackend()]).log(1, {"loss": 1.0})
    assert len(writes) == 1
    assert writes[0].endswith("loss : 1.0 \n")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_nan_was_invalid_json(path: Path, value: float) -> None:
    """NVIDIA wrote bare NaN, which no other parser reads; TCAP the text 'nan'."""
    log_one(path, 1, {"loss": value})
    (record,) = read(path)
    assert repr(record.data["loss"]) == repr(value)


def test_tensor_raised_after_printing(path: Path) -> None:
    """NVIDIA: TypeError, after the screen had its line; TCAP wrote the text 'tensor(1.5000)'."""
    record = log_one(
        path, 1, {"loss": torch.tensor(1.5, requires_grad=True), "many": torch.ones(2, 2)}
    )
    assert record["data"] == {"loss": 1.5, "many": [[1.0, 1.0], [1.0, 1.0]]}


def test_numpy_float32_raised(path: Path) -> None:
    """NVIDIA: TypeError for every numpy number but float64."""
    data = {"a": np.float32(0.1), "b": np.int64(3), "c": np.array([1, 2]), "d": np.bool_(True)}
    assert log_one(path, np.int64(4), data)["data"] == {"a": 0.1, "b": 3, "c": [1, 2], "d": True}


def test_torch_size_became_text(path: Path) -> None:
    """TCAP: 'torch.Size([1, 2])'."""
    assert log_one(path, 1, {"shape": torch.ones(1, 2).shape})["data"] == {"shape": [1, 2]}


def test_info_with_a_device_raised(path: Path) -> None:
    """TCAP: info of anything that json cannot write, such as a torch.device, raised TypeError."""
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, path)]) as logger:
        logger.info({"device": torch.device("cpu"), "lr": 0.1})
    (record,) = read(path)
    assert record.data["lr"] == 0.1
    assert "cpu" in str(record.data["device"])


def test_format_was_ignored(capsys: pytest.CaptureFixture[str]) -> None:
    """TCAP: the code for `format` was commented out: 3.0 imgs/s instead of 3.000."""
    with Logger([StdOutBackend()]) as logger:
        logger.metadata("ips", {"unit": "imgs/s", "format": ":.3f"})
        logger.log((0, 1), {"ips": 3.0})
    assert capsys.readouterr().out.endswith("ips : 3.000 imgs/s\n")


@pytest.mark.parametrize("value", ["text", None, [1, 2]])
def test_format_that_does_not_fit_raised(
    path: Path, capsys: pytest.CaptureFixture[str], value: object
) -> None:
    """NVIDIA: ValueError, before the file had its record."""
    with Logger([StdOutBackend(), JSONStreamBackend(Verbosity.VERBOSE, path)]) as logger:
        logger.metadata("ips", {"format": ":.3f"})
        logger.log(1, {"ips": value})
    assert f"ips : {value} " in capsys.readouterr().out
    assert read(path).records[-1].data == {"ips": value}


def test_a_failing_screen_kept_the_record_from_the_file(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both: backends ran in order and the first exception ended the call."""
    closed = io.StringIO()
    closed.close()
    monkeypatch.setattr("sys.stdout", closed)
    assert log_one(path, 1, {"loss": 1.0})["data"] == {"loss": 1.0}


def test_newline_in_a_value_broke_the_screen_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Both."""
    with Logger([StdOutBackend()]) as logger:
        logger.log("a\nb", {"note": "one\ntwo\r\n", "list": ["x\ny"]})
    assert len(capsys.readouterr().out.splitlines()) == 1


def test_default_verbosity_was_silent_on_the_default_screen(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Both: Logger.log's default was VERBOSE, so a plain call printed nothing."""
    with Logger([StdOutBackend(Verbosity.DEFAULT)]) as logger:
        logger.log(1, {"loss": 1.0})
        logger.log(2, {"loss": 1.0}, verbosity=Verbosity.VERBOSE)
    assert [line.split(" - ")[1] for line in capsys.readouterr().out.splitlines()] == [
        "Iteration: 1  loss : 1.0 "
    ]


def test_logging_at_off_went_everywhere(path: Path) -> None:
    """Both: -1 is below every backend's level."""
    with Logger(
        [JSONStreamBackend(Verbosity.VERBOSE, path), JSONStreamBackend(Verbosity.OFF, path)]
    ) as logger:
        logger.log(1, {"loss": 1.0}, verbosity=Verbosity.OFF)
        logger.log(1, {"loss": None}, verbosity=Verbosity.OFF)
    assert path.read_text() == ""


def test_first_records_stayed_in_memory(path: Path) -> None:
    """Both: nothing reached the disk before the 16th call of ten numbers."""
    logger = Logger([JSONStreamBackend(Verbosity.VERBOSE, path)])
    logger.log(1, {"loss": 1.0})
    assert strict_json(path.read_text())["step"] == 1
    logger.close()


def test_keys_were_renamed(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """TCAP: `loss` became QA.loss in the file and train.loss on the screen."""
    assert log_one(path, (0, 1), {"loss": 1.0, "speed": 2.0})["data"] == {"loss": 1.0, "speed": 2.0}
    assert capsys.readouterr().out.endswith("Epoch: 0 Iteration: 1  loss : 1.0  speed : 2.0 \n")


def test_data_was_a_python_repr_in_a_string(path: Path) -> None:
    """TCAP: `"data": "{'loss': '1.0'}"`, which every reader repaired by hand."""
    data = {"loss": 1.0, "shape": [16, 3], "note": "it's", "none": None, "yes": True}
    assert log_one(path, 1, data)["data"] == data


def test_rank_was_missing_from_records(path: Path) -> None:
    """NVIDIA had no rank at all, TCAP only in INFO."""
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, path)], rank=3) as logger:
        logger.log(1, {"loss": 1.0})
        logger.metadata("loss", {"unit": ""})
        logger.info("text")
    assert [json.loads(line)["rank"] for line in path.read_text().splitlines()] == [3, 3, 3]


def test_signed_errors_cancelled_in_comparisons() -> None:
    """compare_loss.py took signed means: any lower loss passed, and errors of opposite sign
    cancelled.
    """
    steps = np.arange(4)
    reference = Series(steps=steps, values=np.array([1.0, 1.0, 1.0, 1.0]))
    lower = LogComparison(reference, Series(steps=steps, values=np.array([0.1, 0.1, 0.1, 0.1])))
    swinging = LogComparison(reference, Series(steps=steps, values=np.array([0.5, 1.5, 0.5, 1.5])))
    assert not lower.is_within(ToleranceFlags(rtol=0.05, atol=0.0002))
    assert not swinging.is_within(ToleranceFlags(rtol=0.05, atol=0.0002))
    assert swinging.mean_absolute == 0.5
