"""The scripts that are committed are those that web/ builds."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PROJECT = Path(__file__).parents[2]
BUILT = ("report/html/curve.js", "dashboard/static/dashboard.js")


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def test_building_again_gives_the_committed_scripts(tmp_path: Path) -> None:
    if shutil.which("npm") is None:
        pytest.skip("NO NPM: the scripts were not built again")
    web = tmp_path / "web"
    shutil.copytree(PROJECT / "web", web, ignore=shutil.ignore_patterns("node_modules"))
    installed = run("npm", "ci", "--no-audit", "--no-fund", "--prefer-offline", cwd=web)
    if installed.returncode and not os.environ.get("CI"):
        pytest.skip(f"NO REGISTRY: the scripts were not built again: {installed.stderr[-300:]}")
    assert installed.returncode == 0, installed.stderr
    checked = run("npm", "run", "--silent", "check", cwd=web)
    assert checked.returncode == 0, checked.stdout
    built = run("node", "build.mjs", tmp_path / "out", cwd=web)
    assert built.returncode == 0, built.stderr
    for name in BUILT:
        committed = (PROJECT / "src" / "sonde" / name).read_text(encoding="utf-8")
        assert (tmp_path / "out" / name).read_text(encoding="utf-8") == committed, (
            f"{name} is not what web/ builds"
        )
