"""Every name inside a run directory comes from one map, and no name of a user's leads out of it."""

from pathlib import Path

import pytest

from sonde.errors import SettingError
from sonde.records.layout import EVENTS, LOG, SPIKES, RunLayout


def test_the_map_is_what_the_formats_say() -> None:
    layout = RunLayout(Path("run"))
    assert [
        layout.manifest,
        layout.lock,
        layout.index,
        layout.records,
        layout.checkpoints,
        layout.probe,
    ] == [
        Path("run/run.json"),
        Path("run/lock.json"),
        Path("run/index.sqlite"),
        Path("run/records"),
        Path("run/checkpoints"),
        Path("run/probe"),
    ]
    assert layout.record_file(LOG, 3) == Path("run/records/log.rank3.jsonl")


@pytest.mark.parametrize(
    "kind",
    [
        "",
        "../x",
        "/etc/x",
        "..\\x",
        "a\0b",
        "a/b",
        "a.b",
        "A",
        "x" * 65,
        "%252e",
        "a;b",
        "log\n",
        "é",
        "-a",
        "1a",
    ],
)
def test_a_name_that_could_lead_elsewhere_is_no_kind(kind: str) -> None:
    with pytest.raises(SettingError) as caught:
        RunLayout(Path("run")).record_file(kind, 0)
    assert repr(kind) in caught.value.message
    assert caught.value.hint


def test_a_negative_rank_is_refused() -> None:
    with pytest.raises(SettingError, match="-1"):
        RunLayout(Path("run")).record_file(LOG, -1)


def test_record_files_are_found_by_kind_in_order_of_rank(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    assert layout.record_files() == []
    layout.records.mkdir()
    for rank in (10, 2, 0):
        layout.record_file(LOG, rank).touch()
    layout.record_file(EVENTS, 0).touch()
    for foreign in (
        "log.jsonl",
        "log.rank0.jsonl.bak",
        "LOG.rank0.jsonl",
        ".log.rank0.jsonl",
        "log.rank-1.jsonl",
    ):
        (layout.records / foreign).touch()
    assert [(file.kind, file.rank) for file in layout.record_files()] == [
        ("events", 0),
        ("log", 0),
        ("log", 2),
        ("log", 10),
    ]
    assert [file.rank for file in layout.record_files(LOG)] == [0, 2, 10]
    assert layout.record_files(SPIKES) == []
    assert layout.record_files(LOG)[1].path == layout.record_file(LOG, 2)
