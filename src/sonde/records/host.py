"""The environment of a run: the machine, the versions, the git state, and this process's rank.

Everything is read without importing what it describes (versions come from package metadata, ranks
from torchrun's environment), and nothing here fails: unknown values are left out. Costs about 20
ms, most of it for git.
"""

import contextlib
import os
import platform
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from sonde.records.secrets import mask_command
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
    """Return this process's rank from RANK, as set by torchrun; 0 without it."""
    return _environment_int("RANK", 0)


def world_size_of_process() -> int:
    """Return the number of ranks from WORLD_SIZE, as set by torchrun; 1 without it."""
    return _environment_int("WORLD_SIZE", 1)


def pid_namespace() -> str:
    """Return the container that our process ids belong to; empty if the system does not tell."""
    try:
        return os.readlink("/proc/self/ns/pid")
    except OSError:
        return ""


def is_running(pid: int) -> bool:
    """Return whether this machine has a process with this id."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def describe_start() -> dict[str, Any]:
    """Return what a manifest says about the circumstances of a start."""
    return {
        "command": mask_command(getattr(sys, "orig_argv", sys.argv)),
        "versions": describe_versions(),
        "host": describe_host(),
        "git": describe_git(),
    }


def describe_host() -> dict[str, Any]:
    """Return the name, system and size of this machine, and this process's id and directory."""
    launcher = describe_launcher()
    return {
        "name": socket.gethostname(),
        "system": platform.platform(),
        "machine": platform.machine(),
        "num_cpus": os.cpu_count(),
        "pid": os.getpid(),
        "directory": _working_directory(),
        "launcher": launcher and mask_command(launcher),
    }


def describe_versions() -> dict[str, str]:
    """Return the versions of Python and of the installed packages that affect a run."""
    versions = {"python": platform.python_version(), "sonde": __version__}
    for package in _PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[package] = metadata.version(package)
    return versions


def describe_launcher() -> list[str] | None:
    """Return the command line of the torchrun that started this process; None if there is none or
    it is not visible.
    """
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        return None
    try:
        words = (
            Path(f"/proc/{os.getppid()}/cmdline").read_bytes().decode(errors="replace").split("\0")
        )
    except OSError:
        return None
    return [*words[:-1]] if words[-1] == "" else words


def describe_git(directory: Path | None = None) -> dict[str, Any] | None:
    """Return commit, branch and number of changed files of the checkout around `directory`; None if
    there is none.
    """
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
    except OSError:  # it was deleted
        return None


def _environment_int(name: str, default: int) -> int:
    try:
        return int(os.environ[name])
    except (KeyError, ValueError):
        return default
