"""Directories of fairseq-preprocess, read as they are; ours, as fairseq reads them.

`write_as_fairseq` and `read_as_fairseq` restate fairseq's MMapIndexedDatasetBuilder and
MMapIndexedDataset from their documented format.
"""

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from small_corpus import TINY, sentences

from sonde.cli.main import run
from sonde.data.datasets import open_pairs
from sonde.data.directory import DataDirectory
from sonde.spikes.decoding import SampleDecoder
from sonde.spikes.spike_log import RankedSample
from sonde.train.session import train_run
from sonde.train.settings import settings_from
from sonde.train.translation import open_translator


def write_as_fairseq(prefix: Path, rows: list[list[int]]) -> None:
    """uint16 tokens; sizes as int32, then byte pointers as int64."""
    Path(f"{prefix}.bin").write_bytes(b"".join(np.array(row, np.uint16).tobytes() for row in rows))
    sizes = np.array([len(row) for row in rows], np.int32)
    pointers = np.concatenate([[0], np.cumsum(sizes[:-1].astype(np.int64) * 2)]).astype(np.int64)
    header = (
        b"MMIDIDX\x00\x00"
        + struct.pack("<Q", 1)
        + struct.pack("<B", 8)
        + struct.pack("<Q", len(rows))
    )
    Path(f"{prefix}.idx").write_bytes(header + sizes.tobytes() + pointers.tobytes())


def read_as_fairseq(prefix: Path) -> list[list[int]]:
    index = Path(f"{prefix}.idx").read_bytes()
    tokens = Path(f"{prefix}.bin").read_bytes()
    assert index[:9] == b"MMIDIDX\x00\x00"
    assert struct.unpack("<Q", index[9:17]) == (1,)
    dtype = {8: np.uint16, 9: np.uint32}[index[17]]
    (num,) = struct.unpack("<Q", index[18:26])
    sizes = np.frombuffer(index, np.int32, num, 26)
    pointers = np.frombuffer(index, np.int64, num, 26 + 4 * num)
    return [
        np.frombuffer(tokens, dtype, size, at).tolist()
        for size, at in zip(sizes, pointers, strict=True)
    ]


def dictionary(texts: list[str]) -> dict[str, int]:
    """Count descending, ties alphabetical, after the four specials."""
    counts: dict[str, int] = {}
    for word in " ".join(texts).split():
        counts[word] = counts.get(word, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def preprocess(folder: Path, texts: dict[str, list[str]], *, joined: bool = True) -> Path:
    """What `fairseq-preprocess -s en -t de --joined-dictionary` makes of texts by language."""
    folder.mkdir()
    pair = "-".join(texts)
    for language, lines in texts.items():
        words = dictionary([line for text in texts.values() for line in text] if joined else lines)
        (folder / f"dict.{language}.txt").write_text(
            "".join(f"{word} {count}\n" for word, count in words.items())
        )
        ids = {word: 4 + number for number, word in enumerate(words)}
        rows = [[*(ids[word] for word in line.split()), 2] for line in lines]
        write_as_fairseq(folder / f"train.{pair}.{language}", rows)
        write_as_fairseq(folder / f"valid.{pair}.{language}", rows[:4])
    return folder


@pytest.fixture
def texts() -> dict[str, list[str]]:
    return {"en": sentences("en", 40), "de": sentences("de", 40)}


def test_a_directory_of_fairseq_is_read_as_it_is(
    tmp_path: Path, texts: dict[str, list[str]]
) -> None:
    directory = DataDirectory(preprocess(tmp_path / "data-bin", texts))
    assert {split: directory.languages(split) for split in directory.splits} == {
        "train": ("en", "de"),
        "valid": ("en", "de"),
    }
    pairs = open_pairs(directory)
    tokenizer = directory.tokenizer()
    for number, (source, target) in enumerate(zip(texts["en"], texts["de"], strict=True)):
        assert pairs[number].source is not None
        # pairs have a source
        assert tokenizer.decode(pairs[number].source) == " ".join(source.split())  # type: ignore[arg-type]
        assert tokenizer.decode(pairs[number].target) == " ".join(target.split())
    assert directory.splits["train"][0].num_samples == 40


def test_inspect_shows_it(
    tmp_path: Path, texts: dict[str, list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    for joined in (True, False):
        folder = preprocess(tmp_path / f"data-{joined}", texts, joined=joined)
        assert run(["inspect", str(folder)]) == 0
        printed = capsys.readouterr().out
        assert "train.en" in printed
        assert " ".join(texts["de"][0].split()) in " ".join(printed.split())


@pytest.mark.slow
@pytest.mark.parametrize("joined", [True, False])
def test_a_model_is_trained_on_it_and_translates(
    tmp_path: Path, texts: dict[str, list[str]], joined: bool
) -> None:
    texts["en"].append("a word that only English has , and another")
    texts["de"].append("ein Wort")
    folder = preprocess(tmp_path / "data-bin", texts, joined=joined)
    given: dict[str, Any] = {
        "data": str(folder),
        **TINY,
        "max_tokens": 64,
        "max_updates": 3,
        "warmup": 2,
    }
    assert train_run(settings_from(given), tmp_path / "run").startswith("max_updates")
    translator = open_translator(tmp_path / "run")
    model = translator.model
    sizes = [num_words(folder / f"dict.{language}.txt") + 4 for language in ("en", "de")]
    assert (sizes[0] == sizes[1]) is joined
    assert [len(model.source_embed.weight), len(model.embed.weight)] == sizes
    assert (model.source_embed is model.embed) is joined
    translated = translator.translate(texts["en"][-2:], translator.search(beam=1, max_len=5))
    german = set((folder / "dict.de.txt").read_text().split()) | {"<unk>"}
    assert set(" ".join(translation.text for translation in translated).split()) <= german
    (scored,) = translator.score([(texts["en"][-1], "ein Wort")])
    assert len(scored.tokens) == 3


def num_words(dictionary: Path) -> int:
    return len(dictionary.read_text().splitlines())


def test_each_side_of_a_pair_is_read_with_its_own_dictionary(
    tmp_path: Path, texts: dict[str, list[str]]
) -> None:
    texts["en"].append("only English")
    texts["de"].append("nur Deutsch hier")
    directory = DataDirectory(preprocess(tmp_path / "data-bin", texts, joined=False))
    sample = open_pairs(directory)[40]
    source = directory.source_tokenizer()
    assert source is not None
    assert sample.source is not None
    assert (source.decode(sample.source), directory.tokenizer().decode(sample.target)) == (
        "only English",
        "nur Deutsch hier",
    )
    (row,) = SampleDecoder({}, directory=directory.path).decode(
        [RankedSample(rank=0, dataset="train", sample=40, loss=1.0, num_tokens=4, share=1.0)]
    )
    assert (row.source_text, row.text) == ("only English", "nur Deutsch hier")


def test_text_of_one_language_has_a_plain_dictionary(tmp_path: Path) -> None:
    (tmp_path / "dict.txt").write_text("a 3\nb 1\n")
    write_as_fairseq(tmp_path / "train", [[4, 5, 2], [4, 2]])
    directory = DataDirectory(tmp_path)
    assert directory.languages("train") == ("text",)
    assert directory.tokenizer().decode(directory.tokens("train")[0]) == "a b"


@pytest.mark.parametrize("tokenizer", ["word", "bpe"])
def test_prepare_writes_a_directory_that_fairseq_reads(
    tmp_path: Path, texts: dict[str, list[str]], tokenizer: str
) -> None:
    for language, lines in texts.items():
        (tmp_path / f"t.{language}").write_text("\n".join(lines) + "\n")
    out = tmp_path / "out"
    sentences = [
        "prepare",
        "--train",
        str(tmp_path / "t.{en,de}"),
        "--valid",
        str(tmp_path / "t.{en,de}"),
        "--out",
        str(out),
    ]
    assert (
        run([*sentences, "--tokenizer", tokenizer, "--vocab-size", "400", "--layout", "fairseq"])
        == 0
    )
    ours = DataDirectory(out)
    for split in ("train", "valid"):
        for language in ("en", "de"):
            rows = read_as_fairseq(out / f"{split}.en-de.{language}")
            assert rows == [
                row.tolist() for row in (ours.tokens(split, language)[n] for n in range(len(rows)))
            ]
            assert all(row[-1] == 2 for row in rows)
    assert (out / "dict.en.txt").read_bytes() == (out / "dict.de.txt").read_bytes()
    lines = (out / "dict.en.txt").read_text().splitlines()
    assert len(lines) + 4 == ours.tokenizer().vocab_size
    assert all(len(line.split(" ")) == 2 and line.split(" ")[1].isdecimal() for line in lines)
    alone = tmp_path / "alone"  # as fairseq would see it, without ours beside it
    alone.mkdir()
    for path in [*out.glob("*.en-de.*"), *out.glob("dict.*.txt")]:
        (alone / path.name).write_bytes(path.read_bytes())
    assert DataDirectory(alone).tokenizer().vocab_size == ours.tokenizer().vocab_size


def test_a_tokenizer_that_fairseq_has_no_dictionary_for_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("a b\n")
    sentences = [
        "prepare",
        "--train",
        str(tmp_path / "t.txt"),
        "--out",
        str(tmp_path / "out"),
        "--tokenizer",
        "bytes",
    ]
    assert run([*sentences, "--layout", "fairseq"]) == 1
