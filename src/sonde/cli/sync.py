"""`sonde sync RUN URL`: copy what is missing of a run to another disk or an object store, file by
file and resumable.

Files that the copy already has, by size and SHA-256 in its own `checksums.json`, are not sent
again. That list is written every second, so an interrupted copy continues where it stopped. The
manifest of a checkpoint is sent after its other files, so half a checkpoint is never mistaken for a
complete one. A run may be copied while it trains: of a growing file, what is there is copied.
Nothing is removed from a copy. The lock and the index are not copied: the lock is about this
machine, and the index can be rebuilt from the records.
"""

import hashlib
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from sonde.errors import DamagedFile, SettingError
from sonde.records.checksums import encode_checksums, read_checksums
from sonde.records.files import explained, open_regular
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.records.storage import MANIFEST, Payload, Storage, storage_at
from sonde.records.values import decode
from sonde.report import wording

_NOTE_SECONDS: Final = 1.0
_OWN: Final = ".sonde-tmp-"
"""Prefix of names that are being written or removed."""


def sync(run: Path, place: str, /) -> None:
    """Copy a run to another folder or an object store.

    Sends only what is missing there. Files that were already sent are not sent again, even after an
    interrupted copy. Nothing is removed at the destination. Checkpoints stored outside the run
    directory are not copied.

    Parameters
    ----------
    run
        The run directory. It may still be training.
    place
        The destination: a folder, or a URL such as s3://bucket/run (pip install
            'torchsonde[remote]').
    """
    with explained(f"cannot copy {run} to {place}", hint="do it again: it goes on from there"):
        sent, num_there, left_out = _copy(run, place)
    files = f"{len(sent)} {'file' if len(sent) == 1 else 'files'}, {wording.size(sum(sent))}"
    print(f"{place}: {files} sent, {num_there} there already")
    for path in left_out:
        print(f"  left out {path}")


def _copy(run: Path, place: str) -> tuple[list[int], int, list[str]]:
    """Update a copy of a run. Return the sizes of the files sent, how many were there, and what
    could not be read.
    """
    if not place:
        raise SettingError(
            "the place to copy to is empty", hint="name a folder or a URL; . is this folder"
        )
    run_id = read_manifest(run).run_id
    target = storage_at(place)
    layout = RunLayout(run.absolute())
    if isinstance(target.where, Path) and target.where.is_relative_to(layout.root):
        raise SettingError(f"{place} is inside of {run}", hint="copy a run to another place")
    listed = _known(target, run_id)
    sizes = target.sizes()
    noted = time.monotonic()
    sent: list[int] = []
    num_there = 0
    left_out = []
    names = [name for name in storage_at(run).sizes() if not _stays(name, layout)]
    for name in sorted(
        names, key=lambda file: (file.endswith(MANIFEST), file != layout.manifest.name, file)
    ):
        with ExitStack() as opened:
            try:
                payload = opened.enter_context(_content(layout.root / name))
            except OSError as error:
                left_out.append(f"{name}: {error.strerror}")
                continue
            entry: dict[str, object] = {
                "num_bytes": len(payload),
                "sha256": hashlib.sha256(payload).hexdigest(),
            }
            if listed.get(name) == entry and sizes.get(name) == len(payload):
                num_there += 1
                continue
            target.write(name, payload)
            sent.append(len(payload))
        listed[name] = entry
        if time.monotonic() > noted + _NOTE_SECONDS:
            target.write(MANIFEST, encode_checksums(listed))
            noted = time.monotonic()
    target.write(MANIFEST, encode_checksums(listed))
    return sent, num_there, left_out


def _known(target: Storage, run_id: str) -> dict[str, dict[str, object]]:
    """Return the files that the copy lists. Raises SettingError if it is a copy of another run."""
    try:
        there = decode(target.read(RunLayout(Path()).manifest.name))
    except (OSError, ValueError):
        there = None
    if isinstance(there, dict) and there.get("run_id") != run_id:
        raise SettingError(
            f"{target.where} holds another run, {there.get('run_id')}", hint="name another place"
        )
    try:
        return read_checksums(target)
    except DamagedFile:
        return {}


def _stays(name: str, layout: RunLayout) -> bool:
    return (
        name in (layout.lock.name, MANIFEST)
        or name.startswith(layout.index.name)
        or any(part.startswith(_OWN) for part in name.split("/"))
    )


@contextmanager
def _content(path: Path) -> Iterator[Payload]:
    """Yield the current bytes of a file."""
    with open_regular(path) as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as view,
        ):
            yield view
