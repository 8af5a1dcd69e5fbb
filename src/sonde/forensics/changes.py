"""What changed: the data since the run began, the environment and the settings between its starts,
and all of it until now.

A result depends on more than the state and the batch. If a replay does not reproduce the recorded
loss, `differences` names the possible reasons. An environment is a mapping like the manifest or the
record of a start: `determinism` (thread counts and modes of torch), `versions`, `host`, `git` and
`data` by name, `world_size` and `command`.
"""

import platform
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from sonde.data.directory import DataDirectory
from sonde.errors import SettingError, SondeError
from sonde.forensics.history import changed_settings, read_starts, settings_at
from sonde.records.host import describe_git, describe_versions
from sonde.records.manifest import Manifest
from sonde.train.determinism import describe_determinism, recorded_determinism
from sonde.train.recipe import fingerprints

TOKENIZER: Final = "tokenizer"
_COMPARED: Final = {
    "determinism": ("", ()),
    "versions": ("version of ", ()),
    "host": ("machine's ", ("name", "machine")),
    "git": ("code's ", ("commit", "num_changed_files")),
    "data": ("data of ", ()),
}
"""What is compared of an environment: how it is called, and which of its names count; all if none
are given.
"""
_FROM_RECORDS: Final = frozenset({"lr", "schedule", "warmup", "schedule_updates", "end_lr"})
"""Settings that a replay does not use: it takes the learning rates from the records."""


class DataChange(NamedTuple):
    """Data that differs from what the manifest recorded."""

    names: tuple[str, ...]
    """The changed files, by their names in the manifest."""
    problem: str = ""
    """Why the data could not be opened, if so."""

    @property
    def is_tokenizer(self) -> bool:
        """Whether the tokenizer changed."""
        return TOKENIZER in self.names


class StartChange(NamedTuple):
    """What changed between one start of the run and the previous one."""

    step: int
    """The number of completed updates at that start."""
    what: tuple[str, ...]
    """A description of each change."""
    settings: tuple[str, ...] = ()
    """The names of changed settings, without those that cannot affect the loss."""


def data_change(manifest: Manifest, directory: Path | None = None) -> DataChange | None:
    """Return how the data differs from the manifest; None if it does not or if nothing is known
    about it.
    """
    settings = manifest.settings if isinstance(manifest.settings, dict) else {}
    where = directory or settings.get("data")
    if not manifest.data or where is None:
        return None
    if not Path(where).is_dir():
        raise SettingError(
            f"the data of the run is not at {where}", hint="say where it is now: --data DIR"
        )
    try:
        opened = DataDirectory(where)
        now = fingerprints(opened)
        for sidecars in opened.splits.values():
            for sidecar in sidecars:
                opened.tokenizer(sidecar.language)
                # raises if a file does not match its sidecar
                opened.tokens(sidecar.split, sidecar.language)
    except SondeError as error:
        return DataChange(names=(), problem=str(error))
    names = tuple(
        name for name, digest in manifest.data.items() if name in now and now[name] != digest
    )
    return DataChange(names=names) if names else None


def start_changes(run: Path, settings: object) -> list[StartChange]:
    """Return what changed from one start of the run to the next, oldest first. `settings` are those
    of the last start.
    """
    changes: list[StartChange] = []
    for step, now, earlier in reversed([*read_starts(run)]):
        changed = changed_settings(now.get("settings_before"), settings)
        words = [
            f"{name} was {old!r:.60} and became {new!r:.60}" for name, (old, new) in changed.items()
        ]
        others = differences(earlier, now) if earlier else ()
        changes.append(StartChange(step, (*others, *words), tuple(changed)))
        settings = now.get("settings_before") or settings  # what the start before it was made with
    return [change for change in reversed(changes) if change.what]


def settings_changes(run: Path, manifest: Manifest, step: int) -> tuple[str, ...]:
    """Describe the settings that `step` used and that a later start of the run changed."""
    changed = changed_settings(settings_at(run, manifest, step), manifest.settings)
    return tuple(
        f"the setting {name} was {then!r:.80} then, and was {now!r:.80} later"
        for name, (then, now) in changed.items()
        if name not in _FROM_RECORDS
    )


def environment_of_run(run: Path, manifest: Manifest, *, rank: int = 0) -> dict[str, Any]:
    """Return the environment that the run recorded at its last start."""
    recorded = {
        name: getattr(manifest, name) for name in ("versions", "host", "git", "data", "world_size")
    }
    return {**recorded, "determinism": recorded_determinism(run, rank)}


def environment_here(
    manifest: Manifest, *, world_size: int, data: Mapping[str, str]
) -> dict[str, Any]:
    """Return the current environment. The code is looked up where the run was started."""
    started_in = Path(str(manifest.host.get("directory") or "."))
    return {
        "determinism": describe_determinism(),
        "versions": describe_versions(),
        "host": {"name": socket.gethostname(), "machine": platform.machine()},
        "git": describe_git(started_in) if started_in.is_dir() else None,
        "data": data,
        "world_size": world_size,
    }


def differences(then: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    """Describe what differs between two environments, one sentence each. What one of them does not
    say counts as equal.
    """
    found = []
    for group, (what, names) in _COMPARED.items():
        old = then.get(group) or {}
        new = now.get(group) or {}
        found += [
            f"the {what}{name} was {old[name]!r:.80} and became {new[name]!r:.80}"
            for name in names or old
            if name in old and name in new and old[name] != new[name]
        ]
    if then.get("world_size") != now.get("world_size"):
        found.append(f"there were {then.get('world_size')} ranks, then {now.get('world_size')}")
    if then.get("command") != now.get("command"):
        found.append("the command line is another")
    return tuple(found)
