"""The manual's examples against what TCAP_DLLogger and NVIDIA's DLLogger really wrote for them.

tests/golden/data/logger holds their outputs: `tcap_seed` and `nvidia_seed` for the full example of
TCAP's manual, `tcap_quickstart` for its quick start. Time stamps differ from run to run and are
masked; where we differ on purpose, the test says so.
"""

import argparse
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sonde.compat.dllogger import tcap
from sonde.log import JSONStreamBackend, Logger, LogRecord, StdOutBackend, Verbosity, read

DATA = Path(__file__).parent / "data" / "logger"
TRAIN_DATA: dict[str, Any] = {
    "rank": 0,
    "train.loss": 0.01,
    "train.ips": 3.0,
    "data.shape": [16, 3, 224, 224],
    "train.lr": 0.0001,
    "train.data_time": 1.03,
    "train.compute_time": 0.003,
    "train.fp_time": 3.02,
    "train.bp_time": 6.02,
    "train.grad_time": 0.003,
}
VALID_DATA = {"val.loss": 0.002, "val.ips": 5.0, "val.top1": 0.54}


def run_seed_example(logger: Logger) -> None:
    """The full example of the manual."""
    speed = {"unit": "imgs/s", "format": ":.3f", "GOAL": "MAXIMIZE"}
    for name in ("train.loss", "train.loss_mean"):
        logger.metadata(name, {"unit": "", "GOAL": "MINIMIZE", "STAGE": "TRAIN"})
    logger.metadata("val.loss", {"unit": "", "GOAL": "MINIMIZE", "STAGE": "VALID"})
    logger.metadata("train.ips", {**speed, "STAGE": "TRAIN"})
    logger.metadata("val.ips", {**speed, "STAGE": "VALID"})
    for name in ("train.compute_time", "train.fp_time", "train.bp_time", "train.grad_time"):
        logger.metadata(name, {"unit": "s", "GOAL": "MINIMIZE", "STAGE": "TRAIN"})
    iteration = 0
    for epoch in range(4):
        for _ in range(3):
            logger.log(step=(epoch, iteration), data=TRAIN_DATA, verbosity=Verbosity.DEFAULT)
            iteration += 1
        logger.log(step=(epoch, iteration), data=VALID_DATA, verbosity=Verbosity.DEFAULT)
    logger.close()


def run_quick_start(logger: Logger) -> None:
    """The quick start of the manual."""
    logger.metadata("loss", {"unit": "", "GOAL": "MINIMIZE", "STAGE": "TRAIN"})
    logger.metadata(
        "speed", {"unit": "imgs/s", "format": ":.3f", "GOAL": "MAXIMIZE", "STAGE": "TRAIN"}
    )
    logger.info(data=argparse.Namespace(lr=0.1, epochs=2))
    logger.info(data="start training ...")
    for iteration in range(3):
        data = {"loss": 1 / (iteration + 1), "speed": 123.456789}
        logger.log(step=[0, iteration], data=data, verbosity=Verbosity.DEFAULT)
    logger.close()


def masked(text: str) -> str:
    """Without what differs from run to run: dates, stamps, elapsed times."""
    text = re.sub(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d{6})?([+-]\d\d:\d\d)?", "<date>", text)
    return re.sub(r'"(timestamp|elapsedtime)": "[0-9.e-]+"', r'"\1": "<time>"', text)


def content(record: LogRecord) -> tuple[Any, ...]:
    """A record without its times."""
    return record.type, record.step, record.metric, record.rank, record.data


def contents(path: Path) -> list[tuple[Any, ...]]:
    log = read(path)
    assert log.num_bad == log.num_superseded == log.num_lost == 0
    return [content(record) for record in log]


def test_the_screen_is_tcaps_with_the_format_honoured(capsys: pytest.CaptureFixture[str]) -> None:
    run_seed_example(Logger([StdOutBackend(Verbosity.DEFAULT)]))
    golden = (DATA / "tcap_seed.stdout.txt").read_text()
    # On purpose: TCAP leaves `format` aside. NVIDIA's screen shows the same numbers with it.
    golden = golden.replace("ips : 3.0 ", "ips : 3.000 ").replace("ips : 5.0 ", "ips : 5.000 ")
    assert masked(capsys.readouterr().out) == masked(golden)


def test_the_metrics_on_the_screen_are_nvidias(capsys: pytest.CaptureFixture[str]) -> None:
    run_seed_example(Logger([StdOutBackend(Verbosity.DEFAULT)]))
    ours = [
        re.sub(r".* - Epoch: (\d+) Iteration: (\d+)  ", r"(\1, \2) ", line)
        for line in capsys.readouterr().out.splitlines()
    ]
    theirs = [
        line.partition(" - ")[2]
        for line in (DATA / "nvidia_seed.stdout.txt").read_text().splitlines()
    ]
    assert ours == theirs


def test_the_quick_start_is_tcaps_without_its_renames(capsys: pytest.CaptureFixture[str]) -> None:
    run_quick_start(Logger([StdOutBackend(Verbosity.DEFAULT)]))
    golden = (DATA / "tcap_quickstart.stdout.txt").read_text()
    # On purpose: keys stay as they were given, and the format is honoured.
    golden = (
        golden.replace("train.loss", "loss")
        .replace("train.speed", "speed")
        .replace("123.456789", "123.457")
    )
    assert masked(capsys.readouterr().out) == masked(golden)


def test_nvidias_prefix_gives_its_file_byte_for_byte(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    run_seed_example(Logger([JSONStreamBackend(Verbosity.VERBOSE, path, prefix="DLLL ")]))
    assert masked(path.read_text()) == masked((DATA / "nvidia_seed.json").read_text())


@pytest.mark.parametrize(
    ("example", "name"), [(run_seed_example, "tcap_seed"), (run_quick_start, "tcap_quickstart")]
)
def test_tcaps_names_give_its_screen_and_its_file_byte_for_byte(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    example: Callable[[Logger], None],
    name: str,
) -> None:
    path = tmp_path / "a.json"
    backends = [tcap.StdOutBackend(tcap.Verbosity.DEFAULT), tcap.JSONStreamBackend(1, path)]
    example(tcap.Logger(backends))
    assert masked(path.read_text()) == masked((DATA / f"{name}.json").read_text())
    screen = (DATA / f"{name}.stdout.txt").read_text()
    assert masked(capsys.readouterr().out) == masked(screen)


@pytest.mark.parametrize("name", ["tcap_seed.json", "nvidia_seed.json"])
def test_our_plain_file_holds_the_same_records_as_theirs(tmp_path: Path, name: str) -> None:
    run_seed_example(Logger([JSONStreamBackend(Verbosity.VERBOSE, tmp_path / "a.json")]))
    assert contents(tmp_path / "a.json") == contents(DATA / name)


def test_our_quick_start_file_holds_the_same_records_as_tcaps(tmp_path: Path) -> None:
    run_quick_start(Logger([JSONStreamBackend(Verbosity.VERBOSE, tmp_path / "a.json")]))
    assert contents(tmp_path / "a.json") == contents(DATA / "tcap_quickstart.json")


def test_every_plain_line_is_strict_json_with_real_data(tmp_path: Path) -> None:
    run_quick_start(Logger([JSONStreamBackend(Verbosity.VERBOSE, tmp_path / "a.json")]))
    for line in (tmp_path / "a.json").read_text().splitlines():
        record = json.loads(
            line, parse_constant=lambda constant: pytest.fail(f"{constant} is no JSON")
        )
        assert record["type"] != "LOG" or isinstance(record["data"], dict)


@pytest.mark.parametrize("name", ["tcap_seed.json", "nvidia_seed.json", "tcap_quickstart.json"])
def test_times_of_golden_files_are_read(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")  # as where they were written: TCAP's INFO has a local time only
    time.tzset()
    for record in read(DATA / name):
        assert record.timestamp is not None
        assert 1794772000 < record.timestamp < 1794777000
        assert record.type == "INFO" or (
            record.elapsedtime is not None and 0 < record.elapsedtime < 1
        )
