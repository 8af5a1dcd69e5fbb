"""`sonde replay` on several local ranks ends as rank 0 does, and says which rank failed if rank 0 hangs."""

import sys
from pathlib import Path

import pytest

from sonde.cli import replay
from sonde.errors import SondeError


def _ranks_run(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every rank run this shell script instead of Python."""
    script = tmp_path / "rank.sh"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(script))


def test_the_exit_code_is_that_of_rank_0_and_the_others_are_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done = tmp_path / "done"
    _ranks_run(f'[ "$RANK" = 0 ] || {{ sleep 0.3; touch {done}; }}', tmp_path, monkeypatch)
    assert replay._on_local_ranks([], 2) == 0
    assert done.exists()


def test_rank_0_may_say_why_after_another_rank_has_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ranks_run('[ "$RANK" = 1 ] && exit 3; sleep 0.3; exit 1', tmp_path, monkeypatch)
    assert replay._on_local_ranks([], 2) == 1


def test_a_rank_that_fails_while_rank_0_hangs_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _ranks_run('[ "$RANK" = 1 ] && { echo out of luck >&2; exit 3; }; exec sleep 60', tmp_path, monkeypatch)
    monkeypatch.setattr(replay, "_GRACE_SECONDS", 0.2)
    with pytest.raises(SondeError, match="rank 1 of 2 ended with 3") as raised:
        replay._on_local_ranks([], 2)
    assert raised.value.cause == "out of luck"
