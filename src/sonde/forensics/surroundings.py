"""What a result depends on beside the state and the batch: threads, versions, machine, ranks, data, code. As a run recorded it, and as it is now.

A replay that does not give the recorded loss has a reason, and `differences` names the candidates.
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
"""Settings that a step does not depend on, or that a replay takes from elsewhere: the records have the rate, the events the skips."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """Where an update is made. What is not known is empty, and differs from nothing."""

    determinism: Mapping[str, Any] = field(default_factory=dict)
    """Threads and modes of torch, as the event tells them."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Python and packages."""
    host: Mapping[str, Any] = field(default_factory=dict)
    """Name and kind of the machine."""
    world_size: int = 1
    """Ranks."""
    git: Mapping[str, Any] = field(default_factory=dict)
    """Commit and number of changed files."""
    data: Mapping[str, str] = field(default_factory=dict)
    """Fingerprints of data and tokenizer."""


def surroundings_of_run(run: Path, manifest: Manifest, *, rank: int = 0) -> Surroundings:
    """As the run recorded them at its last start."""
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
    """As they are now; the code is looked for where the run was started."""
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
    """Settings that a later start of the run changed, as sentences: those that a step was made with and the manifest no longer has."""
    then, now = settings_at(run, manifest, step), manifest.settings
    if not isinstance(then, dict) or not isinstance(now, dict):
        return ()
    names = [name for name in then if name in now and then[name] != now[name] and name not in _OF_NO_CONSEQUENCE]
    return tuple(f"the setting {name} was {then[name]!r:.80} then, and was {now[name]!r:.80} later" for name in names)


def damaged_data(directory: DataDirectory, split: str) -> tuple[str, ...]:
    """What is wrong with the files of a split, of which every byte is read (0.7 s per GB)."""
    problems = []
    for language in directory.languages(split):
        try:
            directory.tokens(split, language).verify()
        except DamagedFile as error:
            problems.append(error.message)
    return tuple(problems)


def differences(then: Surroundings, now: Surroundings) -> tuple[str, ...]:
    """What is not as it was, a sentence each."""
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
