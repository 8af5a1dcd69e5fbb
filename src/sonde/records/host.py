"""Where a run started from: the machine, the versions, the git state, this process's place among the ranks.

Everything here is read without importing what it describes (versions come from package metadata, ranks from the
environment that torchrun sets), and nothing here fails: what cannot be known is left out. Costs about 20 ms, most of it git.
"""

import os
import platform
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from sonde.version import __version__

_PACKAGES: Final = (
    "torch",
    "numpy",
    "tokenizers",
    "safetensors",
    "orjson",
    "msgspec",
    "mindspore",
    "transformers",
    "accelerate",
    "lightning",
    "datasets",
)
_GIT_TIMEOUT_SECONDS: Final = 5.0


def rank_of_process() -> int:
    """This process's rank, from RANK as torchrun sets it; 0 when it stands alone."""
    return _environment_int("RANK", 0)


def world_size_of_process() -> int:
    """The number of ranks, from WORLD_SIZE as torchrun sets it; 1 when it stands alone."""
    return _environment_int("WORLD_SIZE", 1)


def pid_namespace() -> str:
    """The container that our process ids belong to; empty where the system does not tell."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Does this machine have a process of this number?"""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def describe_host() -> dict[str, Any]:
    """Name, system and size of this machine, and who we are on it."""
    return {
        "name": socket.gethostname(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "num_cpus": os.cpu_count(),
        "pid": os.getpid(),
        "directory": _working_directory(),
        "launcher": describe_launcher(),
    }


def describe_versions() -> dict[str, str]:
    """The versions of Python and of the packages that shape a run, where they are installed."""
    versions = {"python": platform.python_version(), "sonde": __version__}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions


def describe_command() -> list[str]:
    """The command line of this process."""
    return list(getattr(sys, "orig_argv", sys.argv))


def describe_launcher() -> list[str] | None:
    """The command line of the torchrun that started this process; None when none did, or it cannot be seen."""
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return None
    return [*words[:-1]] if words[-1] == "" else words


def describe_git(directory: Path | None = None) -> dict[str, Any] | None:
    """Commit, branch and number of changed files of the checkout around `directory`; None when there is none."""
    commit = _git(directory, "rev-parse", "HEAD")
    if commit is None:
        return None
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no") or ""
    return {
        "commit": commit,
        "branch": _git(directory, "rev-parse", "--abbrev-ref", "HEAD"),
        "num_changed_files": len(changes.splitlines()),
    }


def _git(directory: Path | None, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "--no-optional-locks", *arguments],
            cwd=directory,
            capture_output=True,
            text=True,
            timeout=_GIT_TIMEOUT_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError, UnicodeDecodeError):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was deleted under us
        return None


def _environment_int(name: str, default: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default
