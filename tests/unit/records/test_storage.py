"""The same promises on a disk, in memory and on an S3 server: whole files, whole folders, names
that stay inside.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from checksummed import write_checksums
from object_store import s3_server

from sonde.errors import SettingError
from sonde.records.checksums import verify_checksums
from sonde.records.storage import MANIFEST, Storage, UrlStorage, storage_at

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture(params=["disk", "memory", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, server: str) -> Storage:
    places = {
        "disk": str(tmp_path / "there"),
        "memory": f"memory://{tmp_path.name}",
        "s3": f"s3://bucket/{tmp_path.name}",
    }
    return storage_at(places[request.param])


def fill(storage: Storage, name: str, content: bytes = b"content") -> None:
    with storage.create(name) as new:
        new.write("a/b", content)
        write_checksums(new)


def test_a_file_is_written_read_listed_replaced_and_removed(storage: Storage) -> None:
    assert storage.sizes() == {}
    storage.write("a/b", b"12345")
    storage.write("a/b", memoryview(b"123"))
    storage.write("c", b"")
    assert storage.sizes() == {"a/b": 3, "c": 0}
    assert storage.read("a/b") == b"123"
    with storage.open("a/b") as file:
        assert file.read(2) == b"12"
    with pytest.raises(OSError, match="at most 2"):
        storage.read("a/b", max_bytes=2)
    storage.remove("a/b")
    assert storage.sizes() == {"c": 0}
    with pytest.raises(FileNotFoundError):
        storage.read("a/b")


def test_a_large_file_goes_in_pieces(storage: Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.records.storage._PIECE_BYTES", 6 << 20)
    payload = os.urandom(13 << 20)
    storage.write("large", memoryview(payload))
    assert storage.read("large") == payload


def test_a_folder_appears_whole_and_one_whose_making_fails_leaves_nothing(storage: Storage) -> None:
    fill(storage, "one")
    assert storage.folders() == ["one"]
    assert verify_checksums(storage.at("one")) == []
    with pytest.raises(OSError, match="leads elsewhere"), storage.create("two") as new:
        new.write("x", new.write("y", b"y").encode() and b"x" * len(new.write("../z", b"")))
    assert storage.folders() == ["one"]
    assert list(storage.sizes()) == ["one/a/b", f"one/{MANIFEST}"]
    with pytest.raises(FileExistsError), storage.create("one"):
        pass


def test_a_folder_is_moved_and_deleted(storage: Storage) -> None:
    fill(storage, "one", b"of one")
    storage.move("one", "two")
    assert storage.folders() == ["two"]
    assert storage.at("two").read("a/b") == b"of one"
    storage.delete("two")
    assert storage.sizes() == {}


def test_every_damage_is_found(storage: Storage) -> None:
    fill(storage, "one")
    one = storage.at("one")
    one.write("a/b", b"changed")
    assert verify_checksums(one) == ["a/b: its bytes changed (SHA-256 differs)"]
    assert verify_checksums(one, only_sizes=True) == []
    one.write("a/b", b"longer than it was")
    assert verify_checksums(one, only_sizes=True) == ["a/b: 18 bytes, should be 7"]
    one.remove("a/b")
    one.write("other", b"")
    assert verify_checksums(one) == ["other: not in the manifest", "a/b: missing"]


def test_a_copy_on_this_machine_has_every_file(storage: Storage) -> None:
    fill(storage, "one")
    with storage.at("one").local_copy() as path:
        assert verify_checksums(path) == []
    assert path.exists() == storage.is_local


@pytest.mark.parametrize("name", ["../up", "a/../../up", "/root", "", "a//b", "a\\..\\b", "a\0b"])
def test_no_name_leads_out(storage: Storage, name: str) -> None:
    for act in (storage.read, storage.remove, storage.at, lambda one: storage.write(one, b"")):
        with pytest.raises(OSError, match="leads elsewhere"):
            act(name)


def test_what_a_store_calls_by_a_name_that_leads_out_is_passed_over(
    storage: Storage, server: str
) -> None:
    if not isinstance(storage, UrlStorage):
        pytest.skip("a disk has no such names")
    storage.write("good", b"1")
    storage._system.pipe_file(f"{storage._root}/x/../../evil", b"2")
    assert storage.sizes() == {"good": 1}


def test_a_server_that_is_away_is_an_os_error_with_its_place(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
    with pytest.raises(OSError, match="s3://bucket/x"):
        storage_at("s3://bucket/x").write("name", b"")
    S3FileSystem.clear_instance_cache()


def test_what_is_no_place_is_refused() -> None:
    with pytest.raises(SettingError, match="no place"):
        storage_at("simplecache::memory://x")
    with pytest.raises(SettingError, match="nosuch"):
        storage_at("nosuch://x")
    with pytest.raises(SettingError, match="need gcsfs, which is not installed"):
        storage_at("gs://bucket/x")
    assert storage_at("file:///tmp/x").where == Path("/tmp/x")


def test_a_folder_that_is_removed_while_sizes_are_read_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a/file", "b/file", "c/file"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_bytes(b"12345")
    listed = os.scandir

    def scandir(path: str) -> object:
        if Path(path) == tmp_path / "b":
            (tmp_path / "b" / "file").unlink(missing_ok=True)
            (tmp_path / "b").rmdir()
        return listed(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert storage_at(tmp_path).sizes() == {"a/file": 5, "c/file": 5}
