"""Opening files of a run, and writing what a user named."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sonde.errors import RunError
from sonde.records.files import (
    check_folder,
    open_regular,
    output_file,
    read_small,
    write_file,
    write_output,
)


def _place(kind: str, path: Path) -> Path:
    """Something that is no regular file, at `path`."""
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "link":
        (path.parent / "secret").write_text("of another")
        path.symlink_to(path.parent / "secret")
    elif kind == "device link":
        path.symlink_to("/dev/zero")
    elif kind == "loop":
        path.symlink_to(path)
    else:
        path.symlink_to(path.parent / "nowhere")
    return path


IRREGULAR = ("folder", "fifo", "link", "device link", "loop", "dangling link")


def test_a_regular_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"one\ntwo\n")
    with open_regular(tmp_path / "file") as file:
        assert list(file) == [b"one\n", b"two\n"]
    assert read_small(tmp_path / "file") == b"one\ntwo\n"


@pytest.mark.parametrize("kind", IRREGULAR)
@pytest.mark.timeout(10)
def test_what_is_no_regular_file_is_refused_and_does_not_hang(tmp_path: Path, kind: str) -> None:
    path = _place(kind, tmp_path / "file")
    for read in (open_regular, read_small):
        with pytest.raises(OSError, match="not a regular file"):
            read(path)


@pytest.mark.parametrize("kind", ["fifo", "device link"])
@pytest.mark.timeout(10)
def test_following_links_still_refuses_what_has_no_end(tmp_path: Path, kind: str) -> None:
    with pytest.raises(OSError, match="not a regular file"):
        read_small(_place(kind, tmp_path / "file"), follow=True)


def test_a_link_is_followed_where_a_user_named_it(tmp_path: Path) -> None:
    assert read_small(_place("link", tmp_path / "file"), follow=True) == b"of another"


def test_a_missing_file_is_missing(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "file")


def test_a_small_file_that_is_large_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading it would never end
    with pytest.raises(OSError, match=r"1,099,511,627,776 bytes"):
        read_small(path)


def test_a_folder_of_a_run_may_not_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "records").symlink_to(tmp_path / "elsewhere")
    check_folder(tmp_path / "elsewhere")
    check_folder(tmp_path / "missing")
    with pytest.raises(RunError, match="is a link, not a folder of the run"):
        check_folder(tmp_path / "records")


def test_an_output_goes_through_a_device_and_leaves_it_a_device() -> None:
    write_output(Path("/dev/null"), b"text")
    assert Path("/dev/null").is_char_device()


def test_an_output_goes_through_a_fifo(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    got: list[bytes] = []
    reader = threading.Thread(target=lambda: got.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_output(tmp_path / "pipe", b"text")
    reader.join(10)
    assert got == [b"text"]
    assert (tmp_path / "pipe").is_fifo()


def test_an_output_through_a_link_leaves_the_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    write_output(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_an_output_named_dev_stdout_keeps_what_the_shell_put_there_before(tmp_path: Path) -> None:
    code = (
        "from pathlib import Path; from sonde.records.files import write_output; print('first',"
        " flush=True); write_output(Path('/dev/stdout'), b'second\\n'); print('third')"
    )
    with (tmp_path / "out").open("wb") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "first\nsecond\nthird\n"
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert piped.stdout == "first\nsecond\nthird\n"


def test_an_output_that_cannot_be_written_says_why(tmp_path: Path) -> None:
    for path in (
        tmp_path / "missing" / "file",
        tmp_path / ("x" * 5000),
        tmp_path,
        tmp_path / "a\0b",
    ):
        with pytest.raises(RunError, match="cannot write"):
            write_output(path, b"text")


def test_an_output_that_fails_half_way_leaves_the_old_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("old")

    def fail_half_way() -> None:
        with output_file(tmp_path / "file") as file:
            file.write(b"half")
            raise KeyError

    with pytest.raises(KeyError):
        fail_half_way()
    assert (tmp_path / "file").read_text() == "old"
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("kind", ["folder", "fifo"])
def test_a_file_of_a_run_never_takes_the_place_of_what_is_none(tmp_path: Path, kind: str) -> None:
    path = _place(kind, tmp_path / "run.json")
    with pytest.raises(OSError, match="not a regular file"):
        write_file(path, b"{}")
    assert path.is_dir() or path.is_fifo()
