import io
import logging
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from sonde.log import Logger, StdOutBackend, Verbosity

SCRIPT = """
import sys
from sonde.log import Logger, StdOutBackend
logger = Logger([StdOutBackend()])
logger.metadata("ips", {"unit": "imgs/s", "format": ":.1f"})
for step in range(int(sys.argv[1])):
    logger.log((0, step), {"loss": 0.5, "[red]": "[bold]", "ips": 3.0})
print(logger.num_lost, file=sys.stderr)
"""


def test_it_writes_to_the_current_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    logger = Logger([StdOutBackend(Verbosity.DEFAULT)])
    logger.log(1, {"loss": 0.5})
    assert "Iteration: 1  loss : 0.5 \n" in capsys.readouterr().out
    other = io.StringIO()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", other)
        logger.log(2, {"loss": 0.5})
    assert "Iteration: 2" in other.getvalue()
    assert capsys.readouterr().out == ""
    logger.close()


def test_metadata_calls_add_up_and_print_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with Logger([StdOutBackend()]) as logger:
        logger.metadata("ips", {"unit": "imgs/s"})
        logger.metadata("ips", {"format": ":.2f"})
        logger.metadata("ips", None)
        assert capsys.readouterr().out == ""
        logger.log(1, {"ips": 3.0})
    assert capsys.readouterr().out.endswith("ips : 3.00 imgs/s\n")


@pytest.mark.parametrize("state", ["closed", "none"])
def test_a_closed_stdout_is_counted_and_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, state: str
) -> None:
    out = io.StringIO()
    out.close()
    monkeypatch.setattr(sys, "stdout", out if state == "closed" else None)
    logger = Logger([StdOutBackend()])
    with caplog.at_level(logging.WARNING, "sonde"):
        logger.log(1, {"loss": 0.5})
        logger.info("x")
    assert logger.num_lost == 2
    assert len(caplog.records) == 1
    logger.close()


def test_a_reader_that_goes_away_harms_neither_the_run_nor_its_exit_code() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "2000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert "Iteration: 0" in child.stdout.readline()
    child.stdout.close()
    assert child.stderr is not None
    said = child.stderr.read().splitlines()
    assert child.wait() == 0
    assert said[0].startswith("StdOutBackend loses records: BrokenPipeError")
    assert int(said[-1]) >= 1
    assert len(said) == 2
    child.stderr.close()


def run_on_terminal(environment: dict[str, str]) -> str:
    ours, theirs = pty.openpty()
    child = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, "1"],
        stdout=theirs,
        stderr=subprocess.PIPE,
        env={**os.environ, "TERM": "xterm-256color", **environment},
    )
    os.close(theirs)
    chunks = []
    try:
        while chunk := os.read(ours, 65536):
            chunks.append(chunk)
    except OSError:  # how a terminal ends on Linux
        pass
    os.close(ours)
    assert child.stderr is not None
    child.stderr.close()
    assert child.wait() == 0
    return b"".join(chunks).decode()


def plain(text: str) -> str:
    import re

    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def test_a_terminal_gets_colour_and_the_same_words() -> None:
    coloured = run_on_terminal({"COLORTERM": "truecolor", "NO_COLOR": ""})
    assert "\x1b[" in coloured
    words = plain(coloured).replace("\r\n", "\n")
    assert words.endswith("Epoch: 0 Iteration: 0  loss : 0.5  [red] : [bold]  ips : 3.0 imgs/s\n")


def test_no_color_is_honoured() -> None:
    assert "\x1b[" not in run_on_terminal({"NO_COLOR": "1"})


def test_piped_lines_are_whole_at_once(tmp_path: Path) -> None:
    with (tmp_path / "out.txt").open("w") as out, pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", out)
        logger = Logger([StdOutBackend()])
        logger.log(1, {"loss": 0.5})
        assert (tmp_path / "out.txt").read_text().endswith("loss : 0.5 \n")
    logger.close()
