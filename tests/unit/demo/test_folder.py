"""A demo starts over in its own folder and leaves everything else alone."""

from pathlib import Path

import pytest

from sonde.demo.scenario import DemoFolder
from sonde.errors import SettingError


def test_a_new_and_an_empty_folder_are_taken(tmp_path: Path) -> None:
    for name in ("new", "empty"):
        (tmp_path / "empty").mkdir(exist_ok=True)
        folder = DemoFolder(tmp_path / name)
        folder.claim()
        assert folder.marker.is_file()


def test_a_folder_of_someone_else_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "precious").write_text("mine")
    with pytest.raises(SettingError, match="no demo of sonde made it"):
        DemoFolder(tmp_path).claim()
    assert [path.name for path in tmp_path.rglob("*")] == ["run", "precious"]


def test_a_file_in_its_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(SettingError, match="no demo of sonde made it"):
        DemoFolder(tmp_path / "file").claim()


def test_starting_over_removes_the_demos_own_files_only(tmp_path: Path) -> None:
    folder = DemoFolder(tmp_path)
    folder.claim()
    for path in (folder.corpus, folder.data, folder.run):
        path.mkdir()
        (path / "old").write_text("old")
    for path in (folder.planted, folder.log, folder.report, folder.verdict, tmp_path / "notes.txt"):
        path.write_text("old")
    folder.claim()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".sonde-demo", "notes.txt"]
