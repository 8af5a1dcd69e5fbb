"""A demo starts over in its own folder and leaves everything else alone."""

from pathlib import Path

import pytest

from sonde.demo.scenario import claim
from sonde.errors import SettingError


def test_a_new_and_an_empty_folder_are_taken(tmp_path: Path) -> None:
    for name in ("new", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        claim(tmp_path / name)
        assert (tmp_path / name / ".sonde-demo").is_file()


def test_a_folder_of_someone_else_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("mine")
    with pytest.raises(SettingError, match="no demo of sonde made it"):
        claim(tmp_path)
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "precious"]


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SettingError, match="no demo of sonde made it"):
        claim(tmp_path / "file")


def test_starting_over_removes_the_demos_own_files_only(tmp_path: Path) -> None:
    claim(tmp_path)
    for name in ("corpus", "data", "run", "run-of-64", "run-untouched"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "old").write_text("old")
    for name in ("planted.json", "training.log", "report.html", "verdict.json", "notes.txt"):
        (tmp_path / name).write_text("old")
    claim(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".sonde-demo", "notes.txt"]
