"""run.json, the manifest: what a run is. Small, readable by eye, and written atomically at start
and end of the run.

The format is docs/formats/manifest.md. Every version ever written can be read: unknown fields are
kept in `other`, missing ones get their defaults.

Checkpoints may be outside the run, on a scratch disk or in a bucket. The manifest says where
(`checkpoints`), and readers use that unless they are given another place. Code that writes, moves
or removes checkpoints there must be given the place (`to_change`), because a manifest may come from
someone else.
"""

import contextlib
import dataclasses
import json
import os
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from sonde.errors import DamagedFile, RunError, RunNotFound, SondeError, did_you_mean
from sonde.records.files import check_folder, read_small, write_file
from sonde.records.layout import RunLayout
from sonde.records.seal import seal_document, unseal_document
from sonde.records.values import decode, encode

FORMAT: Final = "sonde-run"
VERSION: Final = 1

RUNNING: Final = "running"
FINISHED: Final = "finished"
FAILED: Final = "failed"
STOPPED: Final = "stopped"
"""Ended by a wish of the run itself, before it was through."""
INTERRUPTED: Final = "interrupted"
"""Ended from outside by a signal; not a failure."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Manifest:
    """The content of run.json."""

    run_id: str
    """Unique name: UTC time of creation and six random hexadecimal digits."""
    created: float
    """When the run was first started, in seconds since the epoch."""
    status: str = RUNNING
    """`running`, `finished`, `stopped`, `interrupted` or `failed`. A killed run still says
    `running`; its lock shows that it is dead (lock.py).
    """
    ended: float | None = None
    """When it last ended, in seconds since the epoch; None while it runs."""
    reason: str | None = None
    """Why it ended: the stop condition, or the exception."""
    num_starts: int = 1
    """How many times it was started: 1 plus the number of resumes."""
    command: list[Any] = field(default_factory=list)
    """The command line of the last start."""
    settings: Any = None
    """The settings that the user gave: any value, as encoded by values.py."""
    versions: dict[str, Any] = field(default_factory=dict)
    """Versions of Python and packages at the last start."""
    host: dict[str, Any] = field(default_factory=dict)
    """Machine and process of rank 0 at the last start."""
    world_size: int = 1
    """Number of ranks at the last start."""
    seeds: dict[str, Any] = field(default_factory=dict)
    """Random seeds by name."""
    git: dict[str, Any] | None = None
    """Commit, branch and number of changed files at the last start."""
    data: dict[str, Any] = field(default_factory=dict)
    """Fingerprints of the data by name."""
    recipe: str | None = None
    """`module:function` that rebuilds the run's components; never imported unless a user asks for
    it (docs/replay.md).
    """
    checkpoints: str | None = None
    """Where the checkpoints are if they are outside the run: an absolute path or a URL."""
    other: dict[str, Any] = field(default_factory=dict)
    """Fields of a newer version of the format."""


_KNOWN: Final = frozenset(field.name for field in dataclasses.fields(Manifest)) - {"other"}
_WRITTEN: Final = _KNOWN | {"format", "version", "_crc"}


def new_run_id() -> str:
    """Return a unique run name that sorts by time."""
    return time.strftime("%Y%m%d-%H%M%S", time.gmtime()) + "-" + secrets.token_hex(3)


def write_manifest(root: Path, manifest: Manifest) -> None:
    """Replace run.json of the run directory `root`."""
    content = {
        field.name: getattr(manifest, field.name)
        for field in dataclasses.fields(Manifest)
        if field.name != "other"
    }
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    for name, value in (content | manifest.other).items():
        # Our own encoding takes any value; field by field, so that huge settings truncate nothing
        # but themselves.
        document[name] = json.loads(encode(value))
    write_file(
        RunLayout(root).manifest,
        seal_document(json.dumps(document, indent=2, ensure_ascii=False).encode()),
    )


def _no_run(root: Path) -> RunNotFound:
    """Return the error for a path that is no run, with what was probably meant."""
    hint = "`sonde runs DIR` lists the runs below a directory"
    if root.is_file():
        cause = f"{root} is a file"
        if (root.parent / RunLayout(root).manifest.name).exists():
            hint = f"give the directory of the run: {root.parent}"
        else:
            hint = "give the directory of a run; `sonde why FILE` reads a log"
    elif root.is_dir():
        cause = f"{RunLayout(root).manifest} does not exist"
    else:
        cause = f"{root} does not exist"
        beside = [str(folder) for folder in root.parent.glob("*/") if _is_run(folder)]
        hint = did_you_mean(str(root), beside, hint) or hint
    return RunNotFound(f"there is no run in {root}", cause=cause, hint=hint)


def _is_run(folder: Path) -> bool:
    return RunLayout(folder).manifest.exists()


def read_manifest(root: str | Path) -> Manifest:
    """Read the manifest of the run directory `root`.

    ```python
    from sonde import Run
    from sonde.records import read_manifest

    with Run("runs/mine", config={"lr": 1e-3}):
        pass
    manifest = read_manifest("runs/mine")
    assert (manifest.status, manifest.settings) == ("finished", {"lr": 1e-3})
    ```
    """
    path = RunLayout(Path(root)).manifest
    try:
        document = decode(unseal_document(read_small(path)))
    except (FileNotFoundError, NotADirectoryError):
        raise _no_run(Path(root)) from None
    except OSError as error:
        raise RunError(f"{path} cannot be read", cause=error.strerror or str(error)) from error
    except ValueError as error:
        raise DamagedFile(
            f"{path} cannot be read", cause=f"not JSON, or not as it was written: {error}"
        ) from None
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise DamagedFile(
            f"{path} is not a manifest of sonde", cause=f'it does not say "format": "{FORMAT}"'
        )
    known = {key: value for key, value in document.items() if key in _KNOWN}
    other = {key: value for key, value in document.items() if key not in _WRITTEN}
    try:
        return msgspec.convert({**known, "other": other}, Manifest)
    except msgspec.ValidationError as error:
        raise DamagedFile(f"{path} is damaged", cause=str(error)) from None


def absolute_place(place: str | os.PathLike[str]) -> str:
    """Return a folder as an absolute path, and a URL as it is."""
    text = os.fspath(place)
    return text if "://" in text else os.path.abspath(text)


def checkpoint_place(
    root: str | os.PathLike[str],
    given: str | os.PathLike[str] | None = None,
    *,
    to_change: bool = False,
) -> Path | str:
    """Return where the checkpoints of the run directory `root` are: a folder or a URL.

    It is the place `given`, or else the one in the manifest. A manifest may come from anyone. So an
    address that only the manifest names is not contacted, and with `to_change`, to write or remove
    there, no place outside the run is taken from it.
    """
    place = None if given is None else absolute_place(given)
    if place is None:
        # If the manifest cannot be read, what is inside the run can still be shown.
        with contextlib.suppress(RunNotFound if to_change else SondeError):
            place = read_manifest(Path(root)).checkpoints
        if place is not None and to_change:
            raise RunError(
                f"the checkpoints of {root} are outside of it, at {place}",
                hint=f"to change them, say so: --checkpoints {place} (checkpoints= of Run)",
            )
        if place is not None and "://" in place:
            raise RunError(
                f"the checkpoints of {root} are at {place}, which was not contacted",
                cause="only the run's own manifest names that address",
                hint=f"if you trust it, say so: --checkpoints {place}",
            )
    if place is None:
        own = RunLayout(Path(root)).checkpoints
        check_folder(
            own,
            hint=(
                f"name the folder it leads to: --checkpoints {os.path.realpath(own)} (checkpoints="
                " of Run)"
            ),
        )
        return own
    return place if "://" in place else Path(place)
