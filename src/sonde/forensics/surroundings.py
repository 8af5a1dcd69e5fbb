"""What a result depends on besides the state and the batch: threads, versions, machine, ranks, data and code, then and now.

If a replay does not reproduce the recorded loss, `differences` names the possible reasons.
"""

import platform
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, final

from sonde.data.directory import DataDirectory
from sonde.errors import DamagedFile
from sonde.forensics.changes import HARMLESS
from sonde.forensics.history import settings_at
from sonde.records.events import read_events
from sonde.records.host import describe_git, describe_versions
from sonde.records.manifest import Manifest
from sonde.train.determinism import EVENT, describe_determinism

_OF_NO_CONSEQUENCE: Final = HARMLESS | {"lr", "schedule", "warmup", "schedule_updates", "end_lr"}
"""Settings that a step does not depend on, or that a replay takes from elsewhere (learning rates from the records, skips from the events)."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The environment in which an update is made. Unknown values are empty and count as equal."""

    determinism: Mapping[str, Any] = field(default_factory=dict)
    """The thread counts and modes of torch, as in the event."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """The versions of Python and of packages."""
    host: Mapping[str, Any] = field(default_factory=dict)
    """The name and type of the machine."""
    world_size: int = 1
    """The number of ranks."""
    git: Mapping[str, Any] = field(default_factory=dict)
    """The commit and the number of changed files."""
    data: Mapping[str, str] = field(default_factory=dict)
    """The fingerprints of data and tokenizer."""


def surroundings_of_run(run: Path, manifest: Manifest, *, rank: int = 0) -> Surroundings:
    """Return the environment that the run recorded at its last start."""
    determinism: Mapping[str, Any] = {}
    for record in read_events(run, EVENT, rank=rank):
        determinism = {name: value for name, value in record.items() if name not in ("type", "time", "rank", "event")}
    return Surroundings(
        determinism=determinism,
        versions=manifest.versions,
        host={name: manifest.host[name] for name in ("name", "machine") if name in manifest.host},
        world_size=manifest.world_size,
        git=_code(manifest.git),
        data=manifest.data,
    )


def surroundings_here(manifest: Manifest, *, world_size: int, data: Mapping[str, str]) -> Surroundings:
    """Return the current environment. The code is looked up where the run was started."""
    started_in = Path(str(manifest.host.get("directory") or "."))
    return Surroundings(
        determinism=describe_determinism(),
        versions=describe_versions(),
        host={"name": socket.gethostname(), "machine": platform.machine()},
        world_size=world_size,
        git=_code(describe_git(started_in)) if started_in.is_dir() else {},
        data=data,
    )


def settings_changes(run: Path, manifest: Manifest, step: int) -> tuple[str, ...]:
    """Describe the settings that `step` used and that a later start of the run changed."""
    then, now = settings_at(run, manifest, step), manifest.settings
    if not isinstance(then, dict) or not isinstance(now, dict):
        return ()
    names = [name for name in then if name in now and then[name] != now[name] and name not in _OF_NO_CONSEQUENCE]
    return tuple(f"the setting {name} was {then[name]!r:.80} then, and was {now[name]!r:.80} later" for name in names)


def damaged_data(directory: DataDirectory, split: str) -> tuple[str, ...]:
    """Return what is wrong with the files of a split. Reads every byte (0.7 s per GB)."""
    problems = []
    for language in directory.languages(split):
        try:
            directory.tokens(split, language).verify()
        except DamagedFile as error:
            problems.append(error.message)
    return tuple(problems)


def differences(then: Surroundings, now: Surroundings) -> tuple[str, ...]:
    """Describe what differs, one sentence each."""
    found = [
        *_changed("", then.determinism, now.determinism),
        *_changed("version of ", then.versions, now.versions),
        *_changed("machine's ", then.host, now.host),
        *_changed("code's ", then.git, now.git),
        *_changed("data of ", then.data, now.data),
    ]
    if then.world_size != now.world_size:
        found.append(f"there were {then.world_size} ranks, now there are {now.world_size}")
    return tuple(found)


def _changed(what: str, then: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    names = [name for name in then if name in now and then[name] != now[name]]
    return [f"the {what}{name} was {then[name]!r:.80} and is now {now[name]!r:.80}" for name in names]


def _code(git: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: git[name] for name in ("commit", "num_changed_files") if name in git} if git else {}
