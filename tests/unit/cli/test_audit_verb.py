"""`sonde audit`: what it prints, the page, the list of findings and the skip list."""

import json
from pathlib import Path

import pytest
from odd_texts import BAD, clean_texts

from sonde.cli.main import run
from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.skip_list import read_skip_list


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    path = tmp_path / "corpus.txt"
    lines = clean_texts()[:300]
    lines[40] = BAD[0] + " <script>alert(1)</script>"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_the_verb_counts_ranks_and_writes(
    corpus: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    page = tmp_path / "page.html"
    skip = tmp_path / "skip.txt"
    findings = tmp_path / "found.jsonl"
    options = [
        "--html",
        str(page),
        "--skip",
        str(skip),
        "--findings",
        str(findings),
        "--no-near-duplicates",
    ]
    assert run(["audit", str(corpus), *options]) == 0
    printed = capsys.readouterr().out
    assert "300 texts" in printed
    assert f"markup  1.00  {corpus}:41" in printed
    assert read_skip_list(skip).samples("corpus.txt").tolist() == [40]
    assert [json.loads(line)["line"] for line in findings.read_text().splitlines()] == [41]
    assert "<script>alert" not in page.read_text()
    assert "&lt;script&gt;alert" in page.read_text()


def test_json_holds_counts_and_findings(corpus: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["audit", str(corpus), "--json", "--no-near-duplicates"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["counts"] == {"markup": 1}
    assert document["findings"][0]["line"] == 41


def test_a_language_models_skip_list_names_blocks(
    corpus: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    data = tmp_path / "data"
    skip = tmp_path / "skip.txt"
    prepare(PrepareSettings(splits={"train": {"text": corpus}}, out=data, tokenizer="bytes"))
    assert run(["audit", str(data), "--skip", str(skip)]) == 1
    assert "--block-size" in capsys.readouterr().err
    assert (
        run(["audit", str(data), "--skip", str(skip), "--block-size", "64", "--no-near-duplicates"])
        == 0
    )
    before = sum(len(line) + 1 for line in corpus.read_text().splitlines()[:40])
    size = len(corpus.read_text().splitlines()[40]) + 1
    assert read_skip_list(skip).samples("train").tolist() == list(
        range(before // 64, -(-(before + size) // 64))
    )
