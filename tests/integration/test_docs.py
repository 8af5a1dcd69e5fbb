"""The documents are held to the code: every Python block in them runs, every relative link leads
somewhere.
"""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])
BLOCK = re.compile(r"^(?:```python|<!-- given:)\n(.*?)^(?:```|-->)$", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"# (\w+\.py)\n")
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)(?:#[^)]*)?\)")
ANCHOR = re.compile(r"\]\((?!https?://)([^)#\s]*)#([^)]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.slow
@pytest.mark.parametrize(
    "page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=name_of
)
def test_the_python_blocks_of_a_page_run_in_order(page: Path, tmp_path: Path) -> None:
    # In a process of its own, as a reader would: what a page opens and leaves open is not the next
    # test's.
    blocks = BLOCK.findall(page.read_text())
    assert blocks
    pasted = []
    for block in blocks:
        named = FILE.match(block)  # the page says: save this as …
        if named:
            (tmp_path / named[1]).write_text(block)
        else:
            pasted.append(block)
    (tmp_path / "page.py").write_text("\n".join(pasted))
    done = subprocess.run(
        [sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr


def test_every_block_that_runs_is_visible() -> None:
    hiding = {name_of(page) for page in PAGES if "\n<!-- given:" in page.read_text()}
    assert hiding == set()


FIRST_RUN = (ROOT / "examples" / "first_run.py").read_text().partition('"""\n\n')[2]


@pytest.mark.parametrize("page", ["README.md", "docs/get-started.md"])
def test_the_first_run_is_the_same_on_every_page(page: str) -> None:
    assert f"```python\n{FIRST_RUN}```\n" in (ROOT / page).read_text()


@pytest.mark.slow
def test_get_started_leads_from_nothing_to_a_verdict(tmp_path: Path) -> None:
    page = (ROOT / "docs" / "get-started.md").read_text()
    shell = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    (tmp_path / "first_run.py").write_text(FIRST_RUN)
    said = ""
    for line in "".join(shell).splitlines():
        if line.startswith("pip") or line == "sonde demo":
            continue  # test_wheel.py and test_demo.py do these
        words = line.partition("  #")[0].replace("sonde ", "python -m sonde ", 1).split()
        words = [sys.executable if word == "python" else word for word in words]
        done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=110)
        assert done.returncode == 0, f"{line}: {done.stdout}{done.stderr}"
        said += done.stdout + done.stderr
    assert "step 300: loss 3." in said
    assert "reproduced bit for bit" in said
    assert "The batch holds garbled text." in said


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_relative_links_lead_to_files(page: Path) -> None:
    prose = BLOCK.sub("", page.read_text())
    missing = [link for link in LINK.findall(prose) if not (page.parent / link).exists()]
    assert missing == []


def anchors_of(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading) for heading in headings]
    return {re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-") for words in plain}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_anchors_of_links_are_headings(page: Path) -> None:
    missing = []
    for path, anchor in ANCHOR.findall(FENCE.sub("", page.read_text())):
        target = page.parent / path if path else page
        if target.suffix == ".md" and anchor not in anchors_of(target):
            missing.append(f"{path}#{anchor}")
    assert missing == []
