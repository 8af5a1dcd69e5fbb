"""What a result depends on besides the state and the batch: threads, versions, machine, ranks, data and code, then and now.

If a replay does not reproduce the recorded loss, `differences` names the possible reasons.
"""

import platform
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

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
_CODE: Final = ("commit", "num_changed_files")


class Surroundings(NamedTuple):
    """The environment in which an update is made. Unknown values are empty and count as equal."""

    world_size: int = 1
    """The number of ranks."""
    determinism: Mapping[str, Any] = {}
    """The thread counts and modes of torch, as in the event."""
    versions: Mapping[str, str] = {}
    """The versions of Python and of packages."""
    host: Mapping[str, Any] = {}
    """The name and type of the machine."""
    git: Mapping[str, Any] = {}
    """The commit and the number of changed files."""
    data: Mapping[str, str] = {}
    """The fingerprints of data and tokenizer."""


def surroundings_of_run(run: Path, manifest: Manifest, *, rank: int = 0) -> Surroundings:
    """Return the environment that the run recorded at its last start."""
    determinism: Mapping[str, Any] = {}
    for record in read_events(run, EVENT, rank=rank):
        determinism = {name: value for name, value in record.items() if name not in ("type", "time", "rank", "event")}
    host, git = _only(("name", "machine"), manifest.host), _only(_CODE, manifest.git)
    return Surroundings(manifest.world_size, determinism, manifest.versions, host, git, manifest.data)


def surroundings_here(manifest: Manifest, *, world_size: int, data: Mapping[str, str]) -> Surroundings:
    """Return the current environment. The code is looked up where the run was started."""
    started_in = Path(str(manifest.host.get("directory") or "."))
    host = {"name": socket.gethostname(), "machine": platform.machine()}
    git = _only(_CODE, describe_git(started_in) if started_in.is_dir() else None)
    return Surroundings(world_size, describe_determinism(), describe_versions(), host, git, data)


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
    words = ("", "version of ", "machine's ", "code's ", "data of ")
    found = [
        f"the {what}{name} was {old[name]!r:.80} and is now {new[name]!r:.80}"
        for what, old, new in zip(words, then[1:], now[1:], strict=True)
        for name in old
        if name in new and old[name] != new[name]
    ]
    if then.world_size != now.world_size:
        found.append(f"there were {then.world_size} ranks, now there are {now.world_size}")
    return tuple(found)


def _only(names: Sequence[str], told: Mapping[str, Any] | None) -> dict[str, Any]:
    return {name: told[name] for name in names if told and name in told}
