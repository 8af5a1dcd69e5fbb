from pathlib import Path

import pytest

from sonde.cli.log import LogFollower
from sonde.errors import RunNotFound
from sonde.log import JSONStreamBackend, Logger, Verbosity


def write(path: Path, steps: range, *, rank: int = 0, note: str = "") -> None:
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, path)], rank=rank) as logger:
        for step in steps:
            logger.log(step, {"loss": 1.0, "note": note})


def test_each_record_comes_once_from_all_files_also_later_ones(tmp_path: Path) -> None:
    follower = LogFollower(str(tmp_path / "*.jsonl"))
    with pytest.raises(RunNotFound):
        follower.poll()
    write(tmp_path / "log.rank0.jsonl", range(2))
    assert [(record.rank, record.step) for record in follower.poll()] == [(0, 0), (0, 1)]
    assert follower.poll() == []
    write(tmp_path / "log.rank1.jsonl", range(1), rank=1)
    write(tmp_path / "log.rank0.jsonl", range(2, 3))
    assert [(record.rank, record.step) for record in follower.poll()] == [(1, 0), (0, 2)]


def test_a_line_in_the_making_waits(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write(path, range(1))
    whole = path.read_bytes()
    path.write_bytes(whole + whole[:20])
    follower = LogFollower(path)
    assert len(follower.poll()) == 1
    path.write_bytes(whole + whole)
    assert len(follower.poll()) == 1


def test_a_file_that_was_truncated_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write(path, range(5))
    follower = LogFollower(path)
    assert len(follower.poll()) == 5
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert len(follower.poll()) == 1


def test_a_long_log_starts_near_its_end_but_knows_its_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with Logger([JSONStreamBackend(Verbosity.VERBOSE, path)]) as logger:
        logger.metadata("loss", {"unit": "nats"})
    write(path, range(2000), note="x" * 200)
    records = LogFollower(path).poll()
    assert records[0].data == {"unit": "nats"}
    assert records[-1].step == 1999
    assert 100 < len(records) < 1500
