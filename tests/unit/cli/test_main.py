"""The command line as a whole: its frozen list of verbs and flags, its help, its errors and exit
codes.
"""

import importlib
import json
import os
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import pytest

from sonde.cli.examples import EXAMPLES
from sonde.cli.main import GROUPS, VERBS, build_app, run
from sonde.version import __version__

ROOT = Path(__file__).parents[3]


def test_help_lists_every_verb_with_its_summary_on_one_line_of_80(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert run(["--help"]) == 0
    lines = [line.strip("│ ") for line in capsys.readouterr().out.splitlines()]
    listed = dict(line.split(maxsplit=1) for line in lines if " " in line)
    for verb, module in VERBS.items():
        function = getattr(importlib.import_module(f"sonde.cli.{module}"), verb.replace("-", "_"))
        assert listed[verb] == function.__doc__.splitlines()[0]


def test_help_has_the_verbs_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    printed = capsys.readouterr().out
    for (title, verbs), following in pairwise([*GROUPS.items(), ("Flags", {})]):
        panel = printed.partition(f"─ {title} ─")[2].partition(f"─ {following[0]} ─")[0]
        words = panel.split()
        assert [verb for verb in verbs if verb not in words] == []


@pytest.mark.parametrize("verb", VERBS)
def test_help_of_a_verb_has_examples_that_it_understands_and_no_default_of_a_switch(
    verb: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run(["help", verb]) == 0
    printed = capsys.readouterr().out
    assert "default: False" not in printed
    assert 1 <= len(EXAMPLES[verb]) <= 3
    for example in EXAMPLES[verb]:
        assert example in printed
        line = example.removeprefix("source <(").removesuffix(")").partition(" > ")[0]
        program, *words = shlex.split(line)
        assert program == "sonde"
        assert words[0] == verb
        build_app(verb).parse_args(words)  # raises if it does not understand


def test_help_and_version_may_be_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    as_a_flag = capsys.readouterr().out
    assert run(["help"]) == 0
    assert capsys.readouterr().out == as_a_flag
    assert run(["version"]) == 0
    assert capsys.readouterr().out.strip() == __version__
    assert run(["help", "no-such-verb"]) == 2


def test_the_flags_of_train_stand_in_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["train", "--help"]) == 0
    printed = capsys.readouterr().out
    places = [
        printed.index(text)
        for text in ("─ Healing ─", "--heal-patience", "─ Model ─", "--num-heads")
    ]
    places += [printed.index(text) for text in ("─ Learning rate ─", "--warmup", "─ Training ─")]
    assert places == sorted(places)


def test_help_of_a_verb_is_its_whole_docstring(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["replay", "--help"]) == 0
    printed = capsys.readouterr().out
    assert "give its command" in " ".join(printed.split())
    assert "-----" not in printed


def test_help_of_all_verbs_imports_no_verb() -> None:
    code = (
        "import sys; from sonde.cli.main import run; run(['--help']);print([m for m in sys.modules"
        " if m.startswith('sonde.cli.') and m[10:] not in ('main', 'terminal', 'examples')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    assert capsys.readouterr().out.strip() == __version__


def test_an_unknown_verb_is_a_usage_error_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["rusn"]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error:")
    assert "runs" in error
    assert "hint:" in error


def test_an_unknown_flag_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["runs", "--jsno"]) == 2
    assert "--json" in capsys.readouterr().err


def test_a_failure_says_error_cause_and_hint_and_exits_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["show", str(tmp_path)]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "hint"]


def test_a_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    command = f"{sys.executable} -m sonde completion bash | head -n 1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert done.stdout.splitlines()[-1] == "0"
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_know_the_verbs(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert [verb for verb in VERBS if verb not in script] == []


def test_bash_accepts_its_completion_script(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["completion", "bash"])
    (tmp_path / "script").write_text(capsys.readouterr().out)
    done = subprocess.run(["bash", "-n", str(tmp_path / "script")], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.slow
def test_colour_follows_no_color(tmp_path: Path) -> None:
    def output(**environment: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "sonde", "show", str(tmp_path)],
            capture_output=True,
            text=True,
            env={"TERM": "xterm-256color", **environment},
        )
        return done.stderr

    assert "\x1b[" in output(FORCE_COLOR="1")
    # The standard takes away colours; bold may stay.
    assert "\x1b[31m" not in output(FORCE_COLOR="1", NO_COLOR="1")
    assert "[1;31m" not in output(FORCE_COLOR="1", NO_COLOR="1")
    assert "\x1b[" not in output()


def test_json_is_one_document_on_standard_output(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["runs", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == []


def test_a_terminal_that_is_not_utf8_gets_escapes(tmp_path: Path) -> None:
    path = tmp_path / "größe.jsonl"
    path.write_text('{"type": "LOG", "step": 1, "data": {"größe": 1.0}}\n')
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "log", str(path)],
        capture_output=True,
        env={**os.environ, "PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert b"gr\\xf6" in done.stdout


def test_a_file_that_fails_is_said_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.json").mkdir()
    for verb in ("show", "report", "log"):
        assert run([verb, str(tmp_path)]) == 1
        assert "error:" in capsys.readouterr().err
    assert run(["show", str(tmp_path / ("x" * 5000))]) == 1
    assert "File name too long" in capsys.readouterr().err


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: 8 bytes\nat")],
)
def test_a_lack_of_memory_is_said_in_a_line(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("sonde.cli.runs.runs", fail)
    assert run(["runs"]) == 1
    assert capsys.readouterr().err.startswith("error: there is not enough memory for this\n")


def test_any_other_error_of_ours_is_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("a defect")

    monkeypatch.setattr("sonde.cli.runs.runs", fail)
    with pytest.raises(RuntimeError, match="a defect"):
        run(["runs"])


def test_a_run_is_not_copied_to_a_place_without_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sync", str(tmp_path), ""]) == 1
    assert "the place to copy to is empty" in capsys.readouterr().err
