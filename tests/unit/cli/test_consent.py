"""Before a recorded command is run, a person sees all of it, and nothing but it."""

import io
import sys
from pathlib import Path

import pytest

from sonde.cli.flags import Script, command_of
from sonde.errors import SettingError
from sonde.records.manifest import Manifest, write_manifest
from sonde.records.replay_order import ReplayOptions

HOSTILE = ["python", "\x1b[2K\x1b[1Atrain.py", "-c", "a\n\n[y/N] y\nb", "\u202eevil", "\x9b31m"]


def recorded(folder: Path, command: list[str]) -> Path:
    folder.mkdir()
    write_manifest(folder, Manifest(run_id="r", created=1.0, command=command))
    return folder


def ask(run: Path, script: Script) -> object:
    return command_of(run, [], script, ReplayOptions())


def test_a_hostile_command_is_shown_one_argument_a_line_and_acts_on_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded(tmp_path / "run", HOSTILE)
    assert ask(run, Script(again=True, yes=True)) is not None
    shown = capsys.readouterr().err
    assert not any(character in shown for character in ("\x1b", "\x9b", "\u202e"))
    assert len(shown.splitlines()) == 1 + len(HOSTILE)


def test_the_question_is_asked_in_full(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stdin", Terminal("n\n"))
    run = recorded(tmp_path / "run", ["python", "train.py"])
    with pytest.raises(SettingError, match="was not run"):
        ask(run, Script(again=True))
    assert capsys.readouterr().err.endswith("  python\n  train.py\nrun it? [y/N] ")


def test_a_command_whose_secret_was_masked_is_not_run(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run", ["python", "train.py", "--api-key", "***"])
    with pytest.raises(SettingError, match="cannot be started as it was recorded"):
        ask(run, Script(again=True, yes=True))
