"""What changed since the run began: data and tokenizer fingerprints, and versions, code and settings between its starts."""

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

from sonde.data.directory import DataDirectory
from sonde.errors import SettingError, SondeError
from sonde.forensics.history import read_starts
from sonde.records.manifest import Manifest
from sonde.train.recipe import fingerprints
from sonde.train.stopping import StopWhen

TOKENIZER: Final = "tokenizer"
HARMLESS: Final = frozenset(
    {
        *("recipe", "data", "skip_list", "num_workers", "log_interval", "keep_checkpoints", "watch_spikes"),
        *("on_save_error", "timeout_seconds", *(field.name for field in fields(StopWhen))),
        *(f"{what}_every_{unit}" for what in ("validate", "save") for unit in ("updates", "epochs")),
    }
)
"""Settings of sonde's recipe that affect how long training runs and how it is monitored, but not the training itself."""


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
    """Return how the data differs from the manifest; None if it does not or if nothing is known about it."""
    settings = manifest.settings if isinstance(manifest.settings, dict) else {}
    where = directory or settings.get("data")
    if not manifest.data or where is None:
        return None
    if not Path(where).is_dir():
        raise SettingError(f"the data of the run is not at {where}", hint="say where it is now: --data DIR")
    try:
        opened = DataDirectory(where)
        now = fingerprints(opened)
        for sidecars in opened.splits.values():
            for sidecar in sidecars:
                opened.tokenizer(sidecar.language)
                opened.tokens(sidecar.split, sidecar.language)  # raises if a file does not match its sidecar
    except SondeError as error:
        return DataChange(names=(), problem=str(error))
    names = tuple(name for name, digest in manifest.data.items() if name in now and now[name] != digest)
    return DataChange(names=names) if names else None


def start_changes(run: Path, settings: object) -> list[StartChange]:
    """Return what changed from one start of the run to the next, oldest first. `settings` are those of the last start."""
    told: list[StartChange] = []
    for step, now, earlier in reversed(
        [*read_starts(run)]
    ):  # each leads to the settings that the next one started from
        old = now.get("settings_before")
        names, words = _changed_settings(old, settings)
        others = () if earlier is None else _differences(earlier, now)
        told.append(StartChange(step, (*others, *words), names))
        settings = settings if old is None else old
    return [one for one in reversed(told) if one.what]


def _changed_settings(before: object, after: object) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if not isinstance(before, dict) or not isinstance(after, dict):
        return (), ()
    # A setting that only one of them has came with another version of sonde, at its default.
    names = tuple(name for name in before if name not in HARMLESS and name in after and before[name] != after[name])
    return names, tuple(f"{name} was {before.get(name)!r:.60} and became {after.get(name)!r:.60}" for name in names)


def _differences(before: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[str, ...]:
    told = []
    old, new = before.get("versions") or {}, now.get("versions") or {}
    told += [f"{name} was {old[name]} and became {new[name]}" for name in old if name in new and old[name] != new[name]]
    old_commit, new_commit = ((one.get("git") or {}).get("commit") for one in (before, now))
    if old_commit and new_commit and old_commit != new_commit:
        told.append(f"the code went from commit {old_commit[:12]} to {new_commit[:12]}")
    if before.get("world_size") != now.get("world_size"):
        told.append(f"there were {before.get('world_size')} ranks and then {now.get('world_size')}")
    if before.get("command") != now.get("command"):
        told.append("the command line is another")
    return tuple(told)
