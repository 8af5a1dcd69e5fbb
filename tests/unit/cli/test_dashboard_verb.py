"""`sonde dashboard`: one line with the address, a browser only where there is a desktop, and what
is missing said.
"""

import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from sonde.cli.main import run
from sonde.dashboard import serve


@pytest.mark.slow
def test_it_prints_the_address_serves_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "sonde",
        "dashboard",
        str(tmp_path),
        "--no-open",
        "--port",
        "0",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = re.search(r" at (http://127\.0\.0\.1:\d+/) ", process.stdout.readline())
        assert address is not None
        with urllib.request.urlopen(address[1]) as answer:
            assert b"There are no runs here yet" in answer.read()
    finally:
        process.send_signal(signal.SIGINT)
        rest, complaints = process.communicate(timeout=30)
    assert (process.returncode, rest, complaints) == (130, "", "")


def test_what_is_no_folder_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["dashboard", str(tmp_path / "none")]) == 1
    assert "is not a directory" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.startswith("sonde.dashboard")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert run(["dashboard"]) == 1
    assert "[dashboard]'" in capsys.readouterr().err


def test_a_browser_is_opened_only_where_there_is_a_desktop(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []

    def note(address: str) -> bool:
        opened.append(address)
        return True

    monkeypatch.setattr("webbrowser.open", note)
    for name in ("DISPLAY", "WAYLAND_DISPLAY", "SSH_CONNECTION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "platform", "linux")
    assert not serve.open_browser("here")
    monkeypatch.setenv("DISPLAY", ":0")
    assert serve.open_browser("here")
    monkeypatch.setenv("SSH_CONNECTION", "1")
    assert not serve.open_browser("here")
    assert opened == ["here"]
