"""What a run started from is described without importing it, and nothing in it can fail a run."""

import os
import socket
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from fault_injection import run_in_child

from sonde.records.host import (
    describe_git,
    describe_host,
    describe_start,
    describe_versions,
    rank_of_process,
    world_size_of_process,
)


def git(directory: Path, *arguments: str) -> str:
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    command = ["git", "-c", "init.defaultBranch=trunk", *arguments]
    done = subprocess.run(
        command,
        cwd=directory,
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | identity,
    )
    return done.stdout.strip()


def test_the_rank_comes_from_torchruns_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    assert (rank_of_process(), world_size_of_process()) == (0, 1)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert (rank_of_process(), world_size_of_process()) == (3, 8)
    monkeypatch.setenv("RANK", "three")
    assert rank_of_process() == 0


def test_the_host_and_the_process_are_named() -> None:
    host = describe_host()
    assert (host["name"], host["pid"], host["directory"]) == (
        socket.gethostname(),
        os.getpid(),
        os.getcwd(),
    )
    assert host["num_cpus"] == os.cpu_count()


def test_versions_are_those_of_the_package_metadata_and_absent_packages_are_left_out() -> None:
    versions = describe_versions()
    assert versions["numpy"] == metadata.version("numpy")
    assert versions["python"].startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert "mindspore" not in versions


def test_the_command_is_the_whole_command_line() -> None:
    code = "from sonde.records.host import describe_start; print(describe_start()['command'])"
    done = subprocess.run(
        [sys.executable, "-c", code, "--rate", "3"], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str([sys.executable, "-c", code, "--rate", "3"])
    assert describe_start()["command"]


def test_git_state_is_commit_branch_and_number_of_changed_files(tmp_path: Path) -> None:
    assert describe_git(tmp_path) is None
    git(tmp_path, "init", "-q")
    assert describe_git(tmp_path) is None  # nothing committed yet
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("1")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "-q", "-m", "first")
    commit = git(tmp_path, "rev-parse", "HEAD")
    assert describe_git(tmp_path) == {"commit": commit, "branch": "trunk", "num_changed_files": 0}
    (tmp_path / "a").write_text("2")
    (tmp_path / "untracked").write_text("")
    assert describe_git(tmp_path) == {"commit": commit, "branch": "trunk", "num_changed_files": 1}


def test_without_git_there_is_no_git_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert describe_git() is None


def test_a_deleted_working_directory_fails_nothing(tmp_path: Path) -> None:
    def describe_from_nowhere() -> None:
        os.chdir(tmp_path)
        tmp_path.rmdir()
        assert describe_host()["directory"] is None
        assert describe_git() is None

    assert run_in_child(describe_from_nowhere) == 0
