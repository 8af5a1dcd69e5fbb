"""What people outside see: workflows that can be run anywhere, a citation of this version, and the
name to install.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from sonde.version import __version__

PROJECT = Path(__file__).parents[2]
WORKFLOWS = sorted((PROJECT / ".github" / "workflows").glob("*.yml"))
FORMS = [PROJECT / ".github" / "ISSUE_TEMPLATE" / name for name in ("bug.yml", "idea.yml")]


def run(*command: str | Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=PROJECT, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-issue-forms", FORMS),
        ("github-issue-config", [PROJECT / ".github" / "ISSUE_TEMPLATE" / "config.yml"]),
        ("dependabot", [PROJECT / ".github" / "dependabot.yml"]),
        ("citation-file-format", [PROJECT / "CITATION.cff"]),
    ],
)
def test_files_for_the_forge_follow_their_schema(schema: str, files: list[Path]) -> None:
    assert files
    run(sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", *files)


def test_the_workflows_are_safe() -> None:
    assert "No findings" in run(
        Path(sys.executable).parent / "zizmor", "--offline", PROJECT / ".github"
    )


def test_every_step_of_a_workflow_is_a_make_target_that_exists() -> None:
    targets = set(
        re.findall(r"^([a-z][a-z -]*):", (PROJECT / "Makefile").read_text(), re.MULTILINE)
    )
    known = {name for line in targets for name in line.split()}
    steps = [
        step
        for path in WORKFLOWS
        for step in re.findall(r"^\s+(?:- )?run: (.+)$", path.read_text(), re.MULTILINE)
    ]
    assert len(steps) >= 7
    called = [
        step.removeprefix("make ").replace("${{ matrix.torch }}", release)
        for step in steps
        for release in ("oldest", "newest")
    ]
    assert [target for target in called if target not in known] == []


def test_the_citation_is_of_this_version() -> None:
    assert re.findall(r"^version: (.+)$", (PROJECT / "CITATION.cff").read_text(), re.MULTILINE) == [
        __version__
    ]


def test_no_text_tells_anyone_to_install_the_name_that_is_taken() -> None:
    """`sonde` on the package index is another project; ours is `torchsonde`."""
    taken = re.compile(
        r"""(?:pip|pipx|uv|uvx)[ \w-]* ['"]?sonde\b(?!\.)"""
        r"""|(?<![\w/-])sonde\[(?:train|text|eval|dev|\{)"""
    )
    listed = run(
        "git", "ls-files", "*.md", "*.py", "*.toml", "*.yml", "*.ipynb", "Makefile"
    ).splitlines()
    texts = {
        name: (PROJECT / name).read_text()
        for name in listed
        if name != "tests/unit/test_outside.py"
    }
    assert taken.search("pip install 'sonde[train]'")
    assert taken.search("uvx --from sonde demo")
    assert [name for name, text in texts.items() if taken.search(text)] == []
