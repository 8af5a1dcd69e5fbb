"""run.json: what a run is. Written atomically when it starts and when it ends; small; readable by eye.

The format is docs/formats/manifest.md. A reader takes every version ever written: unknown fields are kept in `other`,
missing ones get their defaults.

Checkpoints may lie outside of the run, on a scratch disk or in a bucket. The manifest says where (`checkpoints`), and readers find them by it;
`checkpoints_at` says that they have moved. What writes, moves or removes there must be told the place (`to_change`): a manifest may come
from anywhere, and does not send a writer out of its run.
"""

import contextlib
import dataclasses
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

import msgspec

from sonde.errors import DamagedFile, RunError, RunNotFound, SondeError
from sonde.records.atomic import write_file
from sonde.records.files import check_folder, read_small
from sonde.records.layout import RunLayout
from sonde.records.seal import seal_document, unseal_document
from sonde.records.values import decode, encode

FORMAT: Final = "sonde-run"
VERSION: Final = 1

RUNNING: Final = "running"
FINISHED: Final = "finished"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
"""Ended from outside, by a signal: nothing is wrong with it."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The content of run.json."""

    run_id: str
    """Unique name: UTC time of creation and six random hexadecimal digits."""
    created: float
    """When the run was first started, in seconds since the epoch."""
    status: str = RUNNING
    """`running`, `finished`, `stopped` or `failed`. A run that was killed still says `running`; its lock tells (lock.py)."""
    ended: float | None = None
    """When it last ended, in seconds since the epoch; None while it runs."""
    reason: str | None = None
    """Why it ended: the stop condition, or the exception."""
    num_starts: int = 1
    """How many times it was started: 1 plus the number of resumes."""
    command: list[Any] = field(default_factory=list)
    """The command line of the last start."""
    settings: Any = None
    """What the user gave: any value, as values.py spells it."""
    versions: dict[str, Any] = field(default_factory=dict)
    """Python and packages, at the last start."""
    host: dict[str, Any] = field(default_factory=dict)
    """Machine and process of rank 0, at the last start."""
    world_size: int = 1
    """Number of ranks, at the last start."""
    seeds: dict[str, Any] = field(default_factory=dict)
    """Random seeds by name."""
    git: dict[str, Any] | None = None
    """Commit, branch and number of changed files, at the last start."""
    data: dict[str, Any] = field(default_factory=dict)
    """Fingerprints of the data by name."""
    recipe: str | None = None
    """`module:function` that builds the run's pieces again; never imported unless a user says so (docs/replay.md)."""
    checkpoints: str | None = None
    """Where the checkpoints are, when that is not in the run: an absolute path, or a URL."""
    other: dict[str, Any] = field(default_factory=dict)
    """Fields of a newer version of the format."""


_KNOWN: Final = frozenset(one.name for one in dataclasses.fields(Manifest)) - {"other"}

_moved_to: Final[list[str]] = []
"""Where checkpoints are, as the blocks of `checkpoints_at` around us say; the innermost is the last."""


def new_run_id() -> str:
    """A name for a run that sorts by time and does not repeat."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(3)


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Replace run.json of the run directory `root`."""
    content = {one.name: getattr(manifest, one.name) for one in dataclasses.fields(Manifest) if one.name != "other"}
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    for name, value in (content | manifest.other).items():
        # In our own spelling, which takes any value; one by one, so that huge settings cut short nothing but themselves.
        document[name] = json.loads(encode(value))
    write_file(RunLayout(root).manifest, seal_document(json.dumps(document, indent=2, ensure_ascii=False).encode()))


def read_manifest(root: str | Path) -> Manifest:
    """The manifest of the run directory `root`."""
    path = RunLayout(Path(root)).manifest
    try:
        document = decode(unseal_document(read_small(path)))
    except (FileNotFoundError, NotADirectoryError):
        raise RunNotFound(
            f"there is no run in {root}",
            cause=f"{path} does not exist",
            hint="`sonde runs DIR` lists the runs below a directory",
        ) from None
    except OSError as error:
        raise RunError(f"{path} cannot be read", cause=error.strerror or str(error)) from error
    except ValueError as error:
        raise DamagedFile(f"{path} cannot be read", cause=f"not JSON, or not as it was written: {error}") from None
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise DamagedFile(f"{path} is not a manifest of sonde", cause=f'it does not say "format": "{FORMAT}"')
    return _from_document(path, document)


def _from_document(path: Path, document: Mapping[str, Any]) -> Manifest:
    other = {
        key: value for key, value in document.items() if key not in _KNOWN and key not in ("format", "version", "_crc")
    }
    known = {key: value for key, value in document.items() if key in _KNOWN}
    try:
        return msgspec.convert({**known, "other": other}, Manifest)
    except msgspec.ValidationError as error:
        raise DamagedFile(f"{path} is damaged", cause=str(error)) from None


def spelled_place(place: str | os.PathLike[str]) -> str:
    """A place of checkpoints as the manifest has it: a URL as it is, a path from the root."""
    text = os.fspath(place)
    return text if "://" in text else os.path.abspath(text)


@contextlib.contextmanager
def checkpoints_at(place: str | os.PathLike[str] | None) -> Iterator[None]:
    """Within the block, the checkpoints of the run in hand are at `place`, whatever its manifest says. None changes nothing."""
    if place is None:
        yield
        return
    _moved_to.append(spelled_place(place))
    try:
        yield
    finally:
        _moved_to.pop()


def told_place() -> str | None:
    """What the innermost `checkpoints_at` says; None outside of one."""
    return _moved_to[-1] if _moved_to else None


def checkpoint_place(root: str | os.PathLike[str], *, to_change: bool = False) -> Path | str:
    """Where the checkpoints of the run directory `root` are: a folder, or the URL of one.

    `to_change`: to write or remove there, which takes more than the word of a manifest when it is outside of the run.
    """
    place = told_place()
    if place is None:
        # Of a run whose manifest cannot be read, what lies in it can still be shown.
        with contextlib.suppress(RunNotFound if to_change else SondeError):
            place = read_manifest(Path(root)).checkpoints
        if place is not None and to_change:
            raise RunError(
                f"the checkpoints of {root} are outside of it, at {place}",
                hint=f"to change them, say so: --checkpoints {place} (checkpoints= of Run)",
            )
    if place is None:
        own = RunLayout(Path(root)).checkpoints
        check_folder(
            own, hint=f"name the folder it leads to: --checkpoints {os.path.realpath(own)} (checkpoints= of Run)"
        )
        return own
    return place if "://" in place else Path(place)
