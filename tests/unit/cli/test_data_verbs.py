import gzip
import io
import json
import os
import time
from pathlib import Path

import numpy as np
import pytest

from sonde.cli.prepare import (
    PrepareOptions,
    expand_braces,
    histogram,
    inspect,
    name_languages,
    prepare,
    progress_on,
)
from sonde.errors import SettingError

ENGLISH = "".join(f"A man sees {number} trees .\n" for number in range(50))
GERMAN = "".join(f"Ein Mann sieht {number} Bäume .\n" for number in range(50))


def prepare_small(tmp_path: Path) -> Path:
    (tmp_path / "corpus.en").write_text(ENGLISH)
    (tmp_path / "corpus.de.gz").write_bytes(
        gzip.compress(GERMAN.replace("Ein Mann sieht 7 Bäume .", "").encode())
    )
    texts = [str(tmp_path / "corpus.en"), str(tmp_path / "corpus.de.gz")]
    prepare(PrepareOptions(train=texts, valid=texts, out=tmp_path / "data", tokenizer="word"))
    return tmp_path / "data"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return prepare_small(tmp_path)


def test_prepare_says_what_it_made_and_what_was_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prepare_small(tmp_path)
    printed = capsys.readouterr()
    assert "train.en" in printed.out
    assert "tokenizer" in printed.out
    assert "2 empty" in printed.out
    assert "corpus.de.gz:8: empty" in printed.out
    assert "encode …" in printed.err


def test_inspect_shows_sizes_lengths_padding_and_text(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    inspect(data, sample=[7], max_tokens=64, verify=True)
    printed = capsys.readouterr().out
    assert "train.de" in printed
    assert "valid.en" in printed
    assert "tokens per sample, train.en" in printed
    assert "█" in printed
    assert "at max_tokens 64" in printed
    assert "Ein Mann sieht 8 Bäume ." in printed  # line 8 was empty, so that sample 7 is line 9
    assert "corpus.de.gz:9" in printed
    assert "every byte" in printed


def test_inspect_speaks_json(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    inspect(data, split="valid", sample=[0, 1], json=True)
    document = json.loads(capsys.readouterr().out)
    assert [sample["text"] for sample in document["samples"]][:2] == [
        "A man sees 0 trees .",
        "Ein Mann sieht 0 Bäume .",
    ]
    assert document["splits"]["valid"][0]["num_samples"] == 49
    assert 0 < document["batches"]["padding_efficiency"]["en"] <= 1


def test_inspect_refuses_what_is_not_there(data: Path, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no sample 49"):
        inspect(data, sample=[49])
    with pytest.raises(SettingError, match="no split 'trian'") as caught:
        inspect(data, split="trian")
    assert "did you mean 'train'" in str(caught.value)
    with pytest.raises(SettingError, match="no prepared data"):
        inspect(tmp_path)


def test_standard_input_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "text").write_text("one two\nthree\n")
    kept = os.dup(0)
    descriptor = os.open(tmp_path / "text", os.O_RDONLY)
    os.dup2(descriptor, 0)
    try:
        prepare(PrepareOptions(train=["-"], out=tmp_path / "data", tokenizer="bytes"))
    finally:
        os.dup2(kept, 0)
        os.close(kept)
        os.close(descriptor)
    inspect(tmp_path / "data", sample=[1])
    assert "standard input:2" in capsys.readouterr().out


def test_braces_stand_for_several_files() -> None:
    assert expand_braces(["a.{en,de}.gz", "b"]) == ["a.en.gz", "a.de.gz", "b"]


def test_languages_are_what_names_end_in() -> None:
    assert list(name_languages(["x/corpus.en.gz", "corpus.de"])) == ["en", "de"]
    assert list(name_languages(["corpus.txt.zst"])) == ["text"]
    assert list(name_languages(["-"])) == ["text"]
    with pytest.raises(SettingError, match="would both be 'en'"):
        name_languages(["a.en", "b.en"])


def test_a_histogram_counts_every_length() -> None:
    lengths = np.random.default_rng(0).geometric(0.1, 1000).astype(np.int32)
    bars = histogram(lengths)
    assert sum(count for _, _, count in bars) == 1000
    assert bars[0][0] == lengths.min()
    assert bars[-1][1] == lengths.max()
    assert histogram(np.zeros(0, np.int32)) == []
    assert histogram(np.full(3, 7, np.int32)) == [(7, 7, 3)]


def test_a_terminal_gets_a_bar_with_speed_and_remaining_time() -> None:
    from rich.console import Console

    screen = io.StringIO()
    with progress_on(Console(file=screen, force_terminal=True, width=120)) as report:
        for num_done in range(4):
            report("encode", "train.text", num_done * 1_000_000, 4_000_000)
            time.sleep(0.05)
    assert "encode train.text" in screen.getvalue()
    assert "MB/s" in screen.getvalue()
    assert "0:00:0" in screen.getvalue()
