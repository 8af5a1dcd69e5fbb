"""`sonde worst`: the samples that were worst over all epochs, with text, trend, duplicates, as
table, JSON, CSV and skip list.
"""

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from sonde.cli.main import run as run_cli
from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.datasets import open_pairs
from sonde.data.skip_list import CONTENT, read_skip_list
from sonde.run import Run


@pytest.fixture
def trained(tmp_path: Path) -> Path:
    """Two epochs over 400 pairs; 77 and 78 say the same and are bad both times, 5 is bad the first
    time only.
    """
    for name, word in (("t.en", "source"), ("t.de", "target")):
        lines = [f"{word} of line {line}" for line in range(400)]
        lines[77] = lines[78] = f"{word} of nonsense"
        lines[5] = f"={word} of line 5"
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    splits = {"train": {"en": tmp_path / "t.en", "de": tmp_path / "t.de"}}
    prepare(
        PrepareSettings(splits=splits, out=tmp_path / "data", tokenizer="word", vocab_size=None)
    )
    with Run(tmp_path / "run") as run:
        recorder = run.spikes(datasets={"train": open_pairs(tmp_path / "data")})
        generator = np.random.default_rng(1)
        for step in range(1, 1001):
            rows = [(8 * (step - 1) + row) % 400 for row in range(8)]
            losses = generator.normal(3, 0.3, 8)
            for place, row in enumerate(rows):
                if row in (77, 78):
                    losses[place] += 4.0
                elif row == 5 and step < 500:
                    losses[place] += 5.0
            recorder.observe(
                step,
                float(losses.mean()),
                sample_ids=[("train", row) for row in rows],
                sample_losses=losses,
            )
    return tmp_path / "run"


def test_only_what_stands_out_is_shown_with_text_trend_and_duplicates(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["worst", str(trained)]) == 0
    headline, *rest = capsys.readouterr().out.splitlines()
    assert headline.startswith("2 of 400 samples")
    first = " ".join(" ".join(rest).split("2. ")[0].split())
    assert "never learnt" in first
    assert "1 other" in first
    ends = ("t.de:78", "t.de:79")
    place = next(number for number, line in enumerate(rest) if line.endswith(ends))
    assert rest[place + 1].strip() == "target of nonsense"
    assert [line[:3] for line in rest if line[:2] in ("2.", "3.")] == ["2. "]
    assert f"    sonde worst {trained} --skip" in rest


def test_more_are_listed_if_a_number_is_given(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["worst", str(trained), "--num", "3"]) == 0
    printed = capsys.readouterr().out
    assert [place for place in "1234" if f"\n{place}. " in printed] == ["1", "2", "3"]


def test_nothing_is_shown_or_skipped_if_nothing_stands_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(3)
    with Run(tmp_path / "run") as run:
        recorder = run.spikes()
        for step in range(1, 301):
            losses = generator.normal(3, 0.3, 8)
            rows = range(8 * step, 8 * step + 8)
            recorder.observe(
                step,
                float(losses.mean()),
                sample_ids=[("train", row) for row in rows],
                sample_losses=losses,
            )
    assert run_cli(["worst", str(tmp_path / "run"), "--skip"]) == 0
    printed = capsys.readouterr().out
    assert "None of" in printed
    assert "1. " not in printed
    assert not (tmp_path / "run" / "skip-list.txt").exists()
    assert run_cli(["worst", str(tmp_path / "run"), "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["worst"]) == 20


def test_json_and_csv_say_the_same(
    trained: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run_cli(["worst", str(trained), "--num", "3", "--json", "--csv", str(tmp_path / "w.csv")])
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    rows = list(csv.DictReader((tmp_path / "w.csv").read_text().splitlines()))
    assert document["num_samples"] == 400
    assert "'=target of line 5" in [row["text"] for row in rows]  # a spreadsheet would compute it
    assert [row["sample"] for row in rows] == [str(entry["sample"]) for entry in document["worst"]]
    assert document["worst"][0]["source_text"] == "source of nonsense"
    assert {document["worst"][0]["sample"], document["worst"][0]["duplicates"][0]["sample"]} == {
        77,
        78,
    }
    assert document["worst"][0]["line"] == document["worst"][0]["sample"] + 1


def test_skip_puts_them_on_the_skip_list_with_those_that_say_the_same(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_cli(["worst", str(trained), "--num", "1", "--skip"]) == 0
    assert "2 samples added" in capsys.readouterr().out
    assert read_skip_list(trained / "skip-list.txt").samples("train").tolist() == [77, 78]


def test_a_run_without_losses_of_samples_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path / "run") as run:
        run.spikes().observe(1, 3.0)
    assert run_cli(["worst", str(tmp_path / "run")]) == 0
    assert "has no ledger of samples" in capsys.readouterr().out
    assert run_cli(["worst", str(tmp_path / "run"), "--num", "0"]) != 0


def test_samples_known_by_their_content_alone_can_be_skipped(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(1)
    with Run(tmp_path / "run") as run:
        recorder = run.spikes()
        for step in range(1, 301):
            losses = generator.normal(3, 0.3, 8)
            if step == 250:
                losses[0] += 4.0
            recorder.observe(
                step,
                float(losses.mean()),
                sample_ids=[(CONTENT, (1 << 60) + 8 * step + row) for row in range(8)],
                sample_losses=losses,
            )
    assert run_cli(["worst", str(tmp_path / "run"), "--skip"]) == 0
    assert "#10000000000007d0" in capsys.readouterr().out
    skipped = read_skip_list(tmp_path / "run" / "skip-list.txt")
    assert (1 << 60) + 2000 in skipped.samples(CONTENT).tolist()
