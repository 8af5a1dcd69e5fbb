"""NVIDIA's DLLogger: its documented calls, with nothing but the import changed."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

import sonde
from sonde.compat.dllogger import nvidia as DLLogger
from sonde.compat.dllogger.nvidia import (
    Backend,
    JSONStreamBackend,
    Logger,
    StdOutBackend,
    Verbosity,
)


@pytest.fixture(autouse=True)
def _inside_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(DLLogger, "_current", None)


def format_step(step: Any) -> str:
    """As its examples write it."""
    if isinstance(step, str):
        return step
    names = ("Epoch", "Iteration", "Validation Iteration")
    return "".join(f"{name}: {part} " for name, part in zip(names, step, strict=False))


def log_the_example(to: Any) -> None:
    """What both of its examples log."""
    to.log(step="PARAMETER", data={"HP1": 17}, verbosity=Verbosity.DEFAULT)
    to.log(step="PARAMETER", data={"HP3": 1, "HP4": 2}, verbosity=Verbosity.DEFAULT)
    to.metadata("loss", {"unit": "nat", "GOAL": "MINIMIZE", "STAGE": "TRAIN"})
    to.metadata(
        "speed", {"unit": "speeds/s", "format": ":.3f", "GOAL": "MAXIMIZE", "STAGE": "TRAIN"}
    )
    to.log(step=(0, 0), data={"loss": 130.0}, verbosity=Verbosity.DEFAULT)
    to.log(step=(0, 0, 1), data={"val.loss": None}, verbosity=Verbosity.DEFAULT)
    to.log(step=(0,), data={"speed": 10}, verbosity=Verbosity.DEFAULT)
    to.flush()


EXPECTED = [
    "PARAMETER HP1 : 17 ",
    "PARAMETER HP3 : 1  HP4 : 2 ",
    "Epoch: 0 Iteration: 0  loss : 130.0 nat",
    "Epoch: 0 Iteration: 0 Validation Iteration: 1  val.loss : None ",
    "Epoch: 0  speed : 10.000 speeds/s",
]


def test_the_example_with_a_logger_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Logger(
        [
            StdOutBackend(Verbosity.DEFAULT, step_format=format_step),
            JSONStreamBackend(Verbosity.VERBOSE, "tmp.json"),
        ]
    )
    log_the_example(logger)
    lines = capsys.readouterr().out.splitlines()
    assert all(re.match(r"DLL \d{4}-\d\d-\d\d \d\d:\d\d:\d\d(\.\d+)? - ", line) for line in lines)
    assert [line.partition(" - ")[2] for line in lines] == EXPECTED
    stream = [
        json.loads(line.removeprefix("DLLL ")) for line in Path("tmp.json").read_text().splitlines()
    ]
    assert [record["type"] for record in stream] == [
        "LOG",
        "LOG",
        "METADATA",
        "METADATA",
        "LOG",
        "LOG",
        "LOG",
    ]
    assert list(stream[0]) == ["timestamp", "datetime", "elapsedtime", "type", "step", "data"]


def test_the_example_with_the_one_logger_of_the_process(capsys: pytest.CaptureFixture[str]) -> None:
    DLLogger.init(
        backends=[
            StdOutBackend(Verbosity.DEFAULT, step_format=format_step),
            JSONStreamBackend(Verbosity.VERBOSE, "tmp.json"),
        ]
    )
    log_the_example(DLLogger)
    DLLogger.info({"lr": 0.1})
    assert [
        line.partition(" - ")[2] for line in capsys.readouterr().out.splitlines()[:5]
    ] == EXPECTED
    assert json.loads(Path("tmp.json").read_text().splitlines()[-1][5:])["step"] == "PARAMETER"


def test_without_init_it_says_so() -> None:
    with pytest.raises(DLLogger.DLLoggerNotInitialized, match="not initialized"):
        DLLogger.log(step=1, data={})


def test_a_call_without_verbosity_is_verbose_on_a_logger_and_default_on_the_module(
    capsys: pytest.CaptureFixture[str],
) -> None:
    Logger([StdOutBackend(Verbosity.DEFAULT)]).log(step=1, data={"x": 1})
    assert capsys.readouterr().out == ""
    DLLogger.init([StdOutBackend(Verbosity.DEFAULT)])
    DLLogger.log(step=(), data={"x": 1})
    assert capsys.readouterr().out.partition(" - ")[2] == "() x : 1 \n"


def test_a_file_is_begun_anew_unless_appended_to() -> None:
    for append in (False, True, False):
        DLLogger.init([JSONStreamBackend(Verbosity.VERBOSE, "log.json", append=append)])
        DLLogger.log(step=0, data={"x": 1})
    assert len(Path("log.json").read_text().splitlines()) == 1


class Collecting(Backend):
    """As the backends in NVIDIA's DeepLearningExamples are written."""

    def __init__(self, verbosity: int) -> None:
        super().__init__(verbosity=verbosity)
        self.seen: list[Any] = []
        self.num_flushed = 0

    def log(self, timestamp: Any, elapsedtime: float, step: Any, data: Any) -> None:
        self.seen.append((timestamp.year > 2000, elapsedtime >= 0, step, data))

    def metadata(self, timestamp: Any, elapsedtime: float, metric: str, metadata: Any) -> None:
        self.seen.append((metric, metadata))

    def flush(self) -> None:
        self.num_flushed += 1


def test_a_backend_written_to_its_interface_works_in_any_logger() -> None:
    for make in (Logger, sonde.Logger):
        backend = Collecting(Verbosity.DEFAULT)
        logger = make([backend])
        logger.log((1, 2), {"loss": 3.0}, verbosity=Verbosity.DEFAULT)
        logger.log((1, 2), {"loss": 4.0}, verbosity=Verbosity.VERBOSE)
        logger.metadata("loss", {"unit": "nat"})
        logger.flush()
        assert backend.seen == [(True, True, (1, 2), {"loss": 3.0}), ("loss", {"unit": "nat"})]
        assert backend.num_flushed == 1


def test_formats_of_ones_own_also_shape_our_screen(capsys: pytest.CaptureFixture[str]) -> None:
    backend = sonde.StdOutBackend(
        sonde.Verbosity.DEFAULT,
        step_format=lambda step: f"<{step}>",
        metric_format=lambda metric, metadata, value: f"{metric}={value}{metadata.get('unit', '')}",
        prefix_format=lambda rank, timestamp: f"[{rank} {timestamp.year > 2000}] ",
    )
    with sonde.Logger([backend]) as logger:
        logger.metadata("a", {"unit": "s"})
        logger.log(7, {"a": 1, "b": 2})
    assert capsys.readouterr().out == "[0 True] <7> a=1s b=2\n"


def test_a_format_that_does_not_fit_its_value_gives_the_bare_value(
    capsys: pytest.CaptureFixture[str],
) -> None:
    logger = Logger([StdOutBackend(Verbosity.DEFAULT)])
    logger.metadata("loss", {"format": ":.3f", "unit": "nat"})
    logger.log(1, {"loss": "no number", "lr": 0.1}, verbosity=0)
    assert logger.num_lost == 0
    assert capsys.readouterr().out.partition(" - ")[2] == "1 loss : no number nat lr : 0.1 \n"
