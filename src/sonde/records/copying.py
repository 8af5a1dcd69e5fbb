"""A run copied to another place, file by file, resumable: `sonde sync`.

What the copy has already, by the size and SHA-256 in its own `checksums.json`, is not sent again. That list is written every second, so a copy
that was cut off goes on where it stopped; the manifest of a checkpoint is sent after its other files, so half of one is never taken for a whole.
A run may be copied while it is trained: of a file that grows, what is there goes. Nothing is removed from a copy. The lock and the index
stay behind: the one is about this machine, the other is made again from the records.
"""

import hashlib
import mmap
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, final

from sonde.errors import DamagedFile, SettingError
from sonde.records.checksums import encode_checksums, read_checksums
from sonde.records.files import open_regular
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.records.storage import MANIFEST, Payload, Storage, storage_at
from sonde.records.values import decode

_NOTE_SECONDS: Final = 1.0
_OWN: Final = (".sonde-tmp-", ".deleting-")
"""How names begin of what is being written or removed."""


@final
@dataclass(kw_only=True, slots=True)
class Copied:
    """What a copy came to."""

    num_files: int = 0
    """Sent."""
    num_bytes: int = 0
    """Sent."""
    num_there: int = 0
    """Files that the copy had."""
    left_out: list[str] = field(default_factory=list)
    """Files that cannot be read, and why."""


def copy_run(run: Path, place: str) -> Copied:
    """Bring the copy of a run at a path or URL up to date."""
    if not place:
        raise SettingError("the place to copy to is empty", hint="name a folder or a URL; . is this folder")
    run_id, target, layout = read_manifest(run).run_id, storage_at(place), RunLayout(run.absolute())
    if isinstance(target.where, Path) and target.where.is_relative_to(layout.root):
        raise SettingError(f"{place} is inside of {run}", hint="copy a run to another place")
    listed, sizes, copied = _known(target, run_id), target.sizes(), Copied()
    noted = time.monotonic()
    names = [name for name in storage_at(run).sizes() if not _stays(name, layout)]
    for name in sorted(names, key=lambda one: (one.endswith(MANIFEST), one != layout.manifest.name, one)):
        with ExitStack() as opened:
            try:
                payload = opened.enter_context(_content(layout.root / name))
            except OSError as error:
                copied.left_out.append(f"{name}: {error.strerror}")
                continue
            entry: dict[str, object] = {"num_bytes": len(payload), "sha256": hashlib.sha256(payload).hexdigest()}
            if listed.get(name) == entry and sizes.get(name) == len(payload):
                copied.num_there += 1
                continue
            target.write(name, payload)
            copied.num_files += 1
            copied.num_bytes += len(payload)
        listed[name] = entry
        if time.monotonic() > noted + _NOTE_SECONDS:
            target.write(MANIFEST, encode_checksums(listed))
            noted = time.monotonic()
    target.write(MANIFEST, encode_checksums(listed))
    return copied


def _known(target: Storage, run_id: str) -> dict[str, dict[str, object]]:
    """What the copy says that it has. Another run's copy is refused."""
    try:
        there = decode(target.read(RunLayout(Path()).manifest.name))
    except (OSError, ValueError):
        there = None
    if isinstance(there, dict) and there.get("run_id") != run_id:
        raise SettingError(f"{target.where} holds another run, {there.get('run_id')}", hint="name another place")
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
    """The bytes of a file as it is now."""
    with open_regular(path) as file:
        if not os.fstat(file.fileno()).st_size:
            yield b""
            return
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped, memoryview(mapped) as view:
            yield view
