"""TCAP_DLLogger: its own scripts and the scripts that read its files."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

import sonde
from sonde.compat.dllogger import tcap
from sonde.log import read


def losses_that_compare_loss_finds(path: Path) -> list[float]:
    """As Tecorigin's compare_loss.py reads a file: the losses in its LOG lines."""
    losses = []
    for line in path.read_text().splitlines():
        if not line.startswith("TCAPPDLL"):
            continue
        record = json.loads(line.split("TCAPPDLL")[1].strip())
        if record.get("type") == "LOG":
            data = ast.literal_eval(record["data"])
            if "train.loss" in data:
                losses.append(float(data["train.loss"]))
    return losses


def log_twelve_losses(logger: Any) -> None:
    logger.metadata_batch(["train.loss", "val.loss"], {"unit": "", "GOAL": "MINIMIZE"})
    for iteration in range(12):
        data = {"rank": 0.0, "train.loss": 1 / (1 + iteration), "data.shape": [16, 3]}
        logger.log(step=(0, iteration), data=data, verbosity=tcap.Verbosity.DEFAULT)
    logger.close()


@pytest.mark.parametrize("name", ["sonde", "compat"])
def test_compare_loss_finds_every_loss(tmp_path: Path, name: str) -> None:
    path = tmp_path / "sdaa.json"
    backends = {
        "sonde": sonde.JSONStreamBackend(sonde.Verbosity.VERBOSE, path, prefix="TCAPPDLL "),
        "compat": tcap.JSONStreamBackend(tcap.Verbosity.VERBOSE, path),
    }
    log_twelve_losses(sonde.Logger([backends[name]]))
    assert losses_that_compare_loss_finds(path) == [1 / (1 + number) for number in range(12)]
    assert "'rank': '0'" in path.read_text()
    assert read(path).series("train.loss").values.tolist() == [1 / (1 + n) for n in range(12)]


def test_metadata_batch_describes_every_metric(tmp_path: Path) -> None:
    with sonde.Logger([sonde.JSONStreamBackend(filename=tmp_path / "a.json")]) as logger:
        logger.metadata_batch(["train.ips", "val.ips"], {"unit": "imgs/s"})
    assert read(tmp_path / "a.json").metadata == {
        "train.ips": {"unit": "imgs/s"},
        "val.ips": {"unit": "imgs/s"},
    }


def test_a_call_without_verbosity_is_verbose(capsys: pytest.CaptureFixture[str]) -> None:
    logger = tcap.Logger([tcap.StdOutBackend(tcap.Verbosity.DEFAULT)])
    logger.log((0, 1), {"loss": 1.0})
    assert capsys.readouterr().out == ""


def test_the_step_of_the_quick_start_may_be_a_number(capsys: pytest.CaptureFixture[str]) -> None:
    logger = tcap.Logger([tcap.StdOutBackend(tcap.Verbosity.DEFAULT)])
    logger.log(step=7, data={"loss": 0.5}, verbosity=tcap.Verbosity.DEFAULT)
    shown = capsys.readouterr().out.partition(" - ")[2]
    assert shown == "Iteration: 7  train.loss : 0.5 \n"


def test_a_file_keeps_what_it_has_unless_begun_anew(tmp_path: Path) -> None:
    for append, num_lines in ((True, 1), (True, 2), (False, 1)):
        with tcap.Logger([tcap.JSONStreamBackend(1, tmp_path / "a.json", append)]) as logger:
            logger.log((0, 1), {"loss": 1.0})
        assert len((tmp_path / "a.json").read_text().splitlines()) == num_lines


class Collecting(tcap.Backend):
    """A backend written to TCAP's interface."""

    def __init__(self) -> None:
        super().__init__(tcap.Verbosity.DEFAULT)
        self.seen: list[Any] = []

    def log(self, timestamp: Any, elapsedtime: float, step: Any, data: Any) -> None:
        self.seen.append((timestamp.year > 2000, elapsedtime >= 0, step, data))

    def info(self, timestamp: Any, data: Any) -> None:
        self.seen.append((timestamp.year > 2000, data))

    def metadata(self, timestamp: Any, elapsedtime: float, metric: str, metadata: Any) -> None:
        self.seen.append((metric, metadata))


def test_a_backend_written_to_its_interface_works_in_any_logger() -> None:
    for make in (tcap.Logger, sonde.Logger):
        backend = Collecting()
        logger = make([backend])
        logger.metadata("loss", {"unit": "nat"})
        logger.info("start")
        logger.log((1, 2), {"loss": 3.0}, verbosity=tcap.Verbosity.DEFAULT)
        assert backend.seen == [
            ("loss", {"unit": "nat"}),
            (True, "start"),
            (True, True, (1, 2), {"loss": 3.0}),
        ]
