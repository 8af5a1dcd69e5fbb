import csv
from pathlib import Path

import pytest

from sonde.errors import RunError
from sonde.log import CSVBackend, Logger, Verbosity


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_row_a_record_and_a_column_a_metric(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.csv"
    with Logger([CSVBackend(Verbosity.DEFAULT, path)]) as logger:
        logger.metadata("loss", {"unit": "x"})
        logger.log((0, 1), {"loss": 0.5, "note": 'a "quoted", text', "rank": 7})
        logger.log((0, 2), {"loss": float("nan")})
        logger.log(3, {"loss": 0.25, "later": [1, 2], "none": None})
    assert logger.num_lost == 0
    table = rows(path)
    assert list(table[0])[:5] == ["datetime", "timestamp", "elapsedtime", "rank", "step"]
    assert [row["loss"] for row in table] == ["0.5", "nan", "0.25"]
    assert [row["later"] for row in table] == ["", "", "[1,2]"]
    assert [(row["epoch"], row["iteration"]) for row in table] == [
        ("0", "1"),
        ("0", "2"),
        ("", "3"),
    ]
    assert (table[0]["note"], table[0]["rank"], table[0]["data.rank"]) == (
        'a "quoted", text',
        "0",
        "7",
    )


def test_an_existing_table_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    for step in range(3):
        with Logger([CSVBackend(Verbosity.DEFAULT, path)]) as logger:
            logger.log(step, {"loss": 1.0, f"new{step}": 1})
    assert [row["step"] for row in rows(path)] == ["0", "1", "2"]
    assert [row["new1"] for row in rows(path)] == ["", "1", ""]
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]


def test_a_torn_last_row_costs_only_itself(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    with Logger([CSVBackend(Verbosity.DEFAULT, path)]) as logger:
        logger.log(0, {"loss": 1.0})
    path.write_bytes(path.read_bytes()[:-8])
    with Logger([CSVBackend(Verbosity.DEFAULT, path)]) as logger:
        logger.log(1, {"loss": 1.0})
    assert rows(path)[-1]["step"] == "1"
    assert len(rows(path)) == 2


def test_only_rank_zero_writes(tmp_path: Path) -> None:
    with Logger([CSVBackend(Verbosity.DEFAULT, tmp_path / "a.csv")], rank=1) as logger:
        logger.log(0, {"loss": 1.0})
    assert not (tmp_path / "a.csv").exists()


def test_a_place_that_cannot_be_written_is_said_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write a table"):
        CSVBackend(Verbosity.DEFAULT, tmp_path / "file" / "a.csv")


def test_a_long_cell_many_names_and_formulas_cost_nothing_and_run_nothing(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"
    with Logger([CSVBackend(Verbosity.VERBOSE, path)]) as logger:
        logger.log(1, {"text": "x" * 300_000, "=cmd": "=1+1"})
        for number in range(200):
            logger.log(2 + number, {f"metric {number}": 1.5})
    csv.field_size_limit(1 << 20)
    with path.open(newline="") as file:
        header, *rows = csv.reader(file)
    csv.field_size_limit(131072)
    assert len(rows) == 201
    assert {len(row) for row in rows} == {len(header)}
    assert "'=cmd" in header
    assert rows[0][header.index("'=cmd")] == "'=1+1"
    with Logger([CSVBackend(Verbosity.VERBOSE, path)]) as logger:
        logger.log(500, {"=cmd": 2.0})
    assert path.read_text().splitlines()[0].count("=cmd") == 1
