"""run.json holds what a run is, whatever the settings, and says so when it is damaged."""

import dataclasses
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest

from sonde.errors import DamagedFile, RunError, RunNotFound
from sonde.records.manifest import Manifest, new_run_id, read_manifest, write_manifest


def manifest(**changes: Any) -> Manifest:
    return dataclasses.replace(
        Manifest(run_id="20240229-010203-abcdef", created=1709168523.5), **changes
    )


def test_every_field_comes_back(tmp_path: Path) -> None:
    written = manifest(
        status="failed",
        ended=1709168524.25,
        reason="ValueError: no",
        num_starts=3,
        command=["python", "train.py"],
        settings={"rate": math.inf, 3: (1, 2), "big": 2**100, "text": "NaN"},
        versions={"python": "3.11.7"},
        host={"name": "h", "num_cpus": 2},
        world_size=4,
        seeds={"torch": 2**64 + 1},
        git={"commit": "abc", "branch": "main", "num_changed_files": 0},
        data={"train": "sha256:00"},
    )
    write_manifest(tmp_path, written)
    expected = dataclasses.replace(
        written, settings={"rate": math.inf, 3: [1, 2], "big": 2**100, "text": "NaN"}
    )
    assert read_manifest(tmp_path) == expected
    write_manifest(tmp_path, read_manifest(tmp_path))
    assert read_manifest(tmp_path) == expected


def test_it_is_plain_json_that_opens_with_its_format_and_is_readable_by_eye(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest(settings={"é": 1}))
    text = (tmp_path / "run.json").read_text()
    assert text.startswith(
        '{\n  "format": "sonde-run",\n  "version": 1,\n  "run_id": "20240229-010203-abcdef",\n'
    )
    assert '\n    "é": 1\n' in text
    assert text.endswith("}\n")


def test_fields_of_a_newer_version_are_kept(tmp_path: Path) -> None:
    write_manifest(tmp_path, manifest())
    document = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(
        json.dumps(document | {"version": 2, "colour": ["red"], "$odd": 1})
    )
    read = read_manifest(tmp_path)
    assert read.other == {"colour": ["red"], "$odd": 1}
    write_manifest(tmp_path, read)
    assert read_manifest(tmp_path) == read
    assert json.loads((tmp_path / "run.json").read_text())["format"] == "sonde-run"


def test_missing_fields_get_their_defaults(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(
        '{"format": "sonde-run", "version": 1, "run_id": "x", "created": 5}'
    )
    assert read_manifest(tmp_path) == Manifest(run_id="x", created=5)


def test_huge_settings_are_cut_and_cost_no_other_field(tmp_path: Path) -> None:
    write_manifest(
        tmp_path,
        manifest(settings={"corpus": "x" * 40_000_000, "rate": 1}, data={"train": "sha256:00"}),
    )
    read = read_manifest(tmp_path)
    assert read.settings["corpus"].keys() == {"$cut", "start"}
    assert (read.settings["rate"], read.data) == (1, {"train": "sha256:00"})


@pytest.mark.parametrize(
    "settings",
    [object(), [[]], {1, 2}, "\ud800", b"\0", 10**5000, {"a": {"$int": "5"}}],
    ids=lambda value: type(value).__name__,
)
def test_any_settings_can_be_written_and_written_again(tmp_path: Path, settings: object) -> None:
    write_manifest(tmp_path, manifest(settings=settings))
    once = read_manifest(tmp_path)
    write_manifest(tmp_path, once)
    assert read_manifest(tmp_path) == once


def test_no_manifest_means_no_run(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path, tmp_path / "nowhere", tmp_path / "file"):
        with pytest.raises(RunNotFound) as caught:
            read_manifest(place)
        assert str(place) in caught.value.message
        assert caught.value.hint


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        (b"", "not JSON"),
        (b'{"format": "sonde-run", "ver', "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", "format"),
        (b'{"run_id": "x"}', "format"),
        (b'{"format": "sonde-run", "run_id": "x"}', "created"),
        (b'{"format": "sonde-run", "created": 5, "run_id": 5}', "run_id"),
        (b'{"format": "sonde-run", "created": "5", "run_id": "x"}', "created"),
        (b'{"format": "sonde-run", "created": 5, "run_id": "x", "num_starts": "2"}', "num_starts"),
        (b'{"format": "sonde-run", "created": 5, "run_id": "x", "num_starts": true}', "num_starts"),
        (b'{"format": "sonde-run", "created": 5, "run_id": "x", "command": null}', "command"),
    ],
)
def test_a_damaged_manifest_is_named_with_what_is_wrong(
    tmp_path: Path, content: bytes, cause: str
) -> None:
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(DamagedFile, match=r"run\.json") as caught:
        read_manifest(tmp_path)
    assert cause in str(caught.value.cause)


def test_a_manifest_that_cannot_be_opened_is_a_run_error(tmp_path: Path) -> None:
    (tmp_path / "run.json").mkdir()
    with pytest.raises(RunError, match="cannot be read"):
        read_manifest(tmp_path)


def test_run_ids_of_one_second_differ_and_sort_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({new_run_id() for _ in range(200)}) > 190
    monkeypatch.setattr(time, "gmtime", lambda: time.struct_time((2030, 1, 2, 3, 4, 5, 0, 0, 0)))
    assert new_run_id().startswith("20300102-030405-")
