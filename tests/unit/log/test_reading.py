import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonde.errors import MissingDependency, RunNotFound
from sonde.log import JSONStreamBackend, Logger, Verbosity, read
from sonde.run import Run


def write_log(path: Path, steps: range, *, rank: int = 0, **data: float) -> None:
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, path)], rank=rank) as logger:
        for step in steps:
            logger.log(step, {"loss": float(step + rank), **data})


def test_ranks_are_merged_in_the_order_of_time(tmp_path: Path) -> None:
    loggers = [
        Logger([JSONStreamBackend(Verbosity.VERBOSE, tmp_path / f"log.rank{r}.jsonl")], rank=r)
        for r in (0, 1)
    ]
    for step in range(3):
        for logger in loggers:
            logger.log(step, {"loss": float(step + logger.rank)})
    for logger in loggers:
        logger.close()
    log = read(str(tmp_path / "log.rank*.jsonl"))
    assert [(record.step, record.rank) for record in log] == [
        (0, 0),
        (0, 1),
        (1, 0),
        (1, 1),
        (2, 0),
        (2, 1),
    ]
    assert log.ranks == [0, 1]
    assert log.series("loss").values.tolist() == [0.5, 1.5, 2.5]
    assert log.series("loss", rank=1).values.tolist() == [1.0, 2.0, 3.0]


def test_the_rank_of_a_foreign_file_is_in_its_name(tmp_path: Path) -> None:
    line = (
        'DLLL {"timestamp": "1.0", "elapsedtime": "0.0", "datetime": "x", "type": "LOG", "step": 1,'
        ' "data": {"a": 1}}\n'
    )
    for rank in range(3):
        (tmp_path / f"dllogger_rank{rank}.log").write_text(line)
    assert read(str(tmp_path / "*.log")).ranks == [0, 1, 2]


def test_a_run_that_goes_back_supersedes_its_later_records(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_log(path, range(10), speed=1.0)
    write_log(path, range(5, 7), speed=2.0)
    log = read(path)
    assert [record.step for record in log] == list(range(7))
    assert log.series("speed").values.tolist() == [1, 1, 1, 1, 1, 2, 2]
    assert log.num_superseded == 5
    assert len(read(path, keep_superseded=True)) == 12


def test_damage_is_skipped_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_log(path, range(3))
    good = path.read_bytes()
    path.write_bytes(
        b"\xef\xbb\xbf"
        + good[:50]
        + b"\n\n"
        + good
        + b"rubbish\n"
        + b"\0\0\0"
        + good.splitlines()[0]
    )
    log = read(path, keep_superseded=True)
    assert [record.step for record in log] == [0, 1, 2, 0]
    assert log.num_bad == 3  # the torn line, the rubbish and the NUL bytes


def test_a_whole_last_line_needs_no_newline_and_a_torn_one_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_log(path, range(2))
    path.write_bytes(path.read_bytes()[:-1])
    assert len(read(path)) == 2
    path.write_bytes(path.read_bytes()[:-5])
    assert [record.step for record in read(path)] == [0]
    assert read(path).num_bad == 1


def test_a_run_directory_is_a_source(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        logger = Logger([JSONStreamBackend(Verbosity.VERBOSE, run.records("log"))], rank=run.rank)
        logger.metadata("loss", {"unit": "nats", "GOAL": "MINIMIZE"})
        logger.metadata("loss", {"unit": "bits"})
        logger.log(1, {"loss": 2.0})
        logger.close()
        run.records("log").append({"type": "LOG", "step": 2, "data": {"loss": 1.0}})
    log = read(tmp_path / "run")
    assert [record.step for record in log if record.type == "LOG"] == [1, 2]
    assert log.metadata == {"loss": {"unit": "bits", "GOAL": "MINIMIZE"}}
    assert log.metrics == ["loss"]


def test_sources_may_be_listed_and_each_file_is_read_once(tmp_path: Path) -> None:
    write_log(tmp_path / "a.json", range(2))
    write_log(tmp_path / "b.jsonl", range(3))
    assert len(read([tmp_path / "a.json", str(tmp_path / "*.json"), tmp_path])) == 5


@pytest.mark.parametrize("name", ["missing.json", "*.nothing", "."])
def test_no_log_is_an_error_with_a_hint(tmp_path: Path, name: str) -> None:
    with pytest.raises(RunNotFound, match="no log at") as caught:
        read(tmp_path / name)
    assert caught.value.hint


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    path = tmp_path / "mixed.json"
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, path)]) as logger:
        logger.info("not a row")
        logger.log((0, 1), {"loss": 1, "note": "a", "shape": [1, 2], "rank": 0})
        logger.log((0, 2), {"loss": float("nan"), "big": 2**80})
        logger.log("PARAMETER", {"note": None})
    return path


def expect_mixed(columns: dict[str, list[Any]]) -> None:
    assert columns["epoch"] == [0, 0, None]
    assert columns["iteration"] == [1, 2, None]
    assert columns["step"] == ["[0,1]", "[0,2]", "PARAMETER"]
    assert columns["rank"] == [0, 0, 0]
    assert columns["data.rank"] == [0, None, None]
    np.testing.assert_equal(columns["loss"], [1.0, float("nan"), None])
    assert columns["note"] == ["a", None, None]
    assert columns["shape"] == ["[1,2]", None, None]
    assert json.loads(columns["big"][1]) == {"$int": str(2**80)}


def test_columns_have_one_type_each(mixed: Path) -> None:
    expect_mixed(read(mixed).columns())


@pytest.mark.slow
def test_to_polars(mixed: Path) -> None:
    pytest.importorskip("polars")
    expect_mixed(read(mixed).to_polars().to_dict(as_series=False))


@pytest.mark.slow
def test_to_arrow(mixed: Path) -> None:
    pytest.importorskip("pyarrow")
    expect_mixed(read(mixed).to_arrow().to_pydict())


@pytest.mark.slow
def test_to_pandas(mixed: Path) -> None:
    pytest.importorskip("pandas")
    frame = read(mixed).to_pandas()
    assert frame["loss"].dtype == float
    assert frame["note"].tolist()[0] == "a"
    assert list(frame.columns[:5]) == ["datetime", "timestamp", "elapsedtime", "rank", "step"]


@pytest.mark.parametrize(
    ("package", "method"),
    [("pandas", "to_pandas"), ("polars", "to_polars"), ("pyarrow", "to_arrow")],
)
def test_a_missing_package_says_what_to_install(
    mixed: Path, monkeypatch: pytest.MonkeyPatch, package: str, method: str
) -> None:
    monkeypatch.setitem(__import__("sys").modules, package, None)
    with pytest.raises(MissingDependency, match=package):
        getattr(read(mixed), method)()
