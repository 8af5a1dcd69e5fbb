"""The documentation site builds strictly: no broken link, no page that the menu does not reach."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
pytestmark = pytest.mark.slow


def test_the_site_builds_without_a_broken_link_or_an_orphan_page(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "PYTHONWARNINGS": "default"}
    done = subprocess.run(
        command, cwd=PROJECT, env=env, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr
    pages = {
        path.relative_to(tmp_path / "site").as_posix()
        for path in (tmp_path / "site").rglob("*.html")
    }
    assert {"index.html", "cli/index.html", "repository/benchmarks/RESULTS/index.html"} <= pages
    reference = (tmp_path / "site" / "reference" / "sonde.train" / "index.html").read_text()
    # the API from its docstrings, methods included
    assert 'id="sonde.train.trainer.Trainer.train"' in reference
    outside = [page for page in pages if "https://fonts." in (tmp_path / "site" / page).read_text()]
    assert outside == []  # a reader's browser asks no other host for fonts
