from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonde.log import JSONStreamBackend, Logger, Verbosity, read, read_series
from sonde.records.columns import Series
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout
from sonde.records.values import NO_STEP
from sonde.run import Run


def write(
    path: Path, rows: list[tuple[Any, dict[str, Any]]], rank: int = 0, **options: Any
) -> None:
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, path, **options)], rank=rank) as logger:
        for step, data in rows:
            logger.log(step, data)


def same(one: Series, other: Series) -> None:
    np.testing.assert_array_equal(one.steps, other.steps)
    np.testing.assert_array_equal(one.values, other.values)


@pytest.mark.parametrize("prefix", ["", "DLLL "])
@pytest.mark.parametrize(
    "rows",
    [
        [(step, {"loss": step / 3, "other": 1.0}) for step in range(100)],
        [((0, step), {"loss": step}) for step in range(5)],
        [
            (step, {"loss": value})
            for step, value in enumerate([1.0, float("nan"), float("inf"), True, 2**80, "x", None])
        ],
        [(step, {"loss": 1.0} if step % 3 else {"val": 2.0}) for step in range(10)],
        [
            ((0, 1), {"loss": 1.0}),
            ((0, 1, 5), {"loss": 2.0}),
            ((0,), {"loss": 3.0}),
            ("x", {"loss": 4.0}),
        ],
        [(step, {"loss": float(step)}) for step in (0, 1, 2, 3, 1, 2)],
        [(1, {"loss": [1, 2]}), (2, {"loss": 5.0})],
        [(1, {"nothing": 1.0})],
    ],
    ids=["ints", "lists", "odd values", "some", "shapes", "back", "list value", "none"],
)
def test_reading_one_metric_agrees_with_reading_everything(
    tmp_path: Path, rows: list[tuple[Any, dict[str, Any]]], prefix: str
) -> None:
    write(tmp_path / "a.json", rows, prefix=prefix)
    with Logger(
        [JSONStreamBackend(Verbosity.VERBOSE, tmp_path / "a.json", prefix=prefix)]
    ) as logger:
        logger.info("words")
        logger.info({"loss": 99})
        logger.metadata("loss", {"unit": ""})
    same(read_series(tmp_path / "a.json", "loss"), read(tmp_path / "a.json").series("loss"))


@pytest.mark.slow
def test_a_metric_reads_the_same_over_restarts_ranks_and_damage(tmp_path: Path) -> None:
    for rank in (0, 1):
        path = tmp_path / f"log.rank{rank}.jsonl"
        write(path, [(step, {"loss": float(step), "val": 1.0}) for step in range(2000)], rank)
        with path.open("ab") as file:
            file.write(b"damage\n\0\0\n")
        write(path, [(step, {"loss": 2.0 * step}) for step in range(1500, 1600)], rank)
    source = str(tmp_path / "log.rank*.jsonl")
    ranks: tuple[int | None, ...] = (None, 0, 1)
    for name in ("loss", "val"):
        for of_rank in ranks:
            same(read_series(source, name, rank=of_rank), read(source).series(name, rank=of_rank))
    assert len(read_series(source, "loss")) == 1600
    assert len(read_series(source, "val")) == 1500


def test_several_ranks_in_one_file(tmp_path: Path) -> None:
    for rank in (0, 1):
        write(tmp_path / "a.json", [(step, {"loss": float(rank)}) for step in range(3)], rank)
    assert read_series(tmp_path / "a.json", "loss").values.tolist() == [0.5, 0.5, 0.5]


def test_a_file_and_a_line_larger_than_a_block(tmp_path: Path) -> None:
    rows: list[tuple[Any, dict[str, Any]]]
    rows = [
        (step, {"loss": float(step), "note": "x" * (600_000 if step == 350 else 1000)})
        for step in range(700)
    ]
    write(tmp_path / "a.json", rows)
    series = read_series(tmp_path / "a.json", "loss")
    assert series.values.tolist() == list(range(700))
    assert series.step_at(-1) == 699


def test_two_objects_on_one_line_are_no_record(tmp_path: Path) -> None:
    line = '{"type":"LOG","step":%d,"data":{"loss":%d}}'
    path = tmp_path / "log.json"
    path.write_text(f"{line % (1, 1)}\n{line % (2, 2)}{line % (3, 3)}\n{line % (4, 4)}\n")
    assert read_series(path, "loss").values.tolist() == [1.0, 4.0]
    assert read(path).num_bad == 1


def test_an_indexed_run_answers_from_its_index(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Run(tmp_path / "run") as run:
        logger = Logger([JSONStreamBackend(Verbosity.VERBOSE, run.records("log"))])
        for step in range(50):
            logger.log(step, {"loss": float(step)})
        logger.close()
    cold = read_series(tmp_path / "run", "loss")
    with RunIndex(RunLayout(tmp_path / "run")) as index:
        index.refresh()

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("the files were read")

    monkeypatch.setattr("sonde.log.series.read_columns", refuse)
    same(read_series(tmp_path / "run", "loss"), cold)
    assert len(read_series(tmp_path / "run", "missing")) == 0


def test_a_resumed_run_is_read_from_its_files_so_that_the_rule_holds(tmp_path: Path) -> None:
    for steps in (range(10), range(4, 6)):
        with Run(tmp_path / "run") as run:
            logger = Logger([JSONStreamBackend(Verbosity.VERBOSE, run.records("log"))])
            for step in steps:
                logger.log(
                    step, {"loss": float(step)} if steps.start else {"loss": 0.0, "val": 0.0}
                )
            logger.close()
    with RunIndex(RunLayout(tmp_path / "run")) as index:
        index.refresh()
    assert read_series(tmp_path / "run", "loss").steps.tolist() == [0, 1, 2, 3, 4, 5]
    assert read_series(tmp_path / "run", "val").steps.tolist() == [0, 1, 2, 3]


def test_iterations_and_steps_of_a_series() -> None:
    series = Series(steps=np.array([[0, 5, NO_STEP], [1, NO_STEP, NO_STEP]]), values=np.zeros(2))
    assert series.iterations.tolist() == [5, 1]
    assert series.step_at(0) == [0, 5]
    assert series.step_at(1) == [1]
    assert Series(steps=np.array([NO_STEP]), values=np.zeros(1)).step_at(0) is None
