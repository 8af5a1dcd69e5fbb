import errno
import gzip
import os
from pathlib import Path
from typing import Any

import pytest

from sonde.data import binarise
from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.datasets import open_pairs
from sonde.data.directory import DataDirectory
from sonde.data.token_file import TokenFile
from sonde.errors import DamagedFile, SettingError, SondeError
from sonde.records import disk

ENGLISH = [f"sentence number {number} of the text ." for number in range(60)]
GERMAN = [f"Satz Nummer {number} des Textes ." for number in range(60)]


def write_texts(
    directory: Path, english: list[str] = ENGLISH, german: list[str] = GERMAN
) -> dict[str, Path]:
    paths = {"en": directory / "corpus.en", "de": directory / "corpus.de"}
    for language, lines in (("en", english), ("de", german)):
        paths[language].write_text("".join(f"{line}\n" for line in lines), newline="")
    return paths


def settings_for(tmp_path: Path, texts: dict[str, Path], **changes: Any) -> PrepareSettings:
    defaults: dict[str, Any] = {"tokenizer": "word", "vocab_size": None, "block_bytes": 200}
    return PrepareSettings(
        splits={"train": texts}, out=tmp_path / "data", **{**defaults, **changes}
    )


def everything(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


@pytest.mark.parametrize("tokenizer", ["bpe", "unigram", "word", "bytes"])
@pytest.mark.parametrize("layout", ["fairseq", "megatron"])
def test_what_was_prepared_decodes_to_the_text(tmp_path: Path, tokenizer: str, layout: str) -> None:
    texts = write_texts(tmp_path)
    prepare(settings_for(tmp_path, texts, tokenizer=tokenizer, vocab_size=300, layout=layout))
    data = DataDirectory(tmp_path / "data")
    pairs = open_pairs(data)
    words = data.tokenizer()
    assert [words.decode(pairs.source[sample]) for sample in range(60)] == ENGLISH
    assert [words.decode(pairs[sample].target) for sample in range(60)] == GERMAN
    assert data.tokens("train", "en").index.layout == layout
    data.tokens("train", "en").verify()


def test_the_size_of_blocks_changes_nothing(tmp_path: Path) -> None:
    texts = write_texts(tmp_path)
    prepare(settings_for(tmp_path, texts))
    first = everything(tmp_path / "data")
    prepare(settings_for(tmp_path, texts, block_bytes=1 << 20))
    assert everything(tmp_path / "data") == first
    assert sorted(first) == sorted(
        [
            f"train.{language}.{end}"
            for language in ("en", "de")
            for end in ("bin", "idx", "json", "lines.npy")
        ]
        + ["dict.txt"]
    )


def test_compressed_text_gives_the_same_tokens(tmp_path: Path) -> None:
    texts = write_texts(tmp_path)
    prepare(settings_for(tmp_path, texts))
    plain = everything(tmp_path / "data")
    packed = {language: Path(f"{path}.gz") for language, path in texts.items()}
    for language, path in packed.items():
        path.write_bytes(gzip.compress(texts[language].read_bytes()))
    prepare(settings_for(tmp_path, packed))
    again = everything(tmp_path / "data")
    assert {name for name in plain if plain[name] != again[name]} == {
        "train.en.json",
        "train.de.json",
    }


def test_a_bad_line_leaves_its_pair_out_and_is_named(tmp_path: Path) -> None:
    english = list(ENGLISH)
    german = list(GERMAN)
    english[3] = ""
    german[7] = "   "
    english[9] = "x" * 600
    texts = write_texts(tmp_path, english, german)
    texts["de"].write_bytes(texts["de"].read_bytes().replace(b"Nummer 20", b"Numm\xffer 20"))
    done = prepare(settings_for(tmp_path, texts, max_line_bytes=500))
    named = {(Path(line.source).name, line.line, line.kind) for line in done.bad_lines}
    assert named == {
        ("corpus.en", 4, "empty"),
        ("corpus.de", 8, "empty"),
        ("corpus.en", 10, "over-long"),
        ("corpus.de", 21, "bad UTF-8"),
    }
    assert f"{texts['en']}:4: empty\n" in (tmp_path / "data" / "bad-lines.txt").read_text()
    pairs = open_pairs(tmp_path / "data")
    assert len(pairs) == 56
    words = DataDirectory(tmp_path / "data").tokenizer()
    for sample in range(len(pairs)):
        line = pairs.source.origin(sample)[1]
        assert pairs.target.origin(sample) == (str(texts["de"]), line)
        assert words.decode(pairs.source[sample]) == ENGLISH[line - 1]
        assert words.decode(pairs.target[sample]) == GERMAN[line - 1]
    sidecar = pairs.source.sidecar
    assert sidecar is not None
    assert sidecar.left_out == {"bad UTF-8": 1, "empty": 2, "over-long": 1}


@pytest.mark.parametrize("compressed", [False, True])
def test_unequal_parallel_texts_are_refused_saying_where_they_end(
    tmp_path: Path, compressed: bool
) -> None:
    texts = write_texts(tmp_path, ENGLISH, GERMAN[:-2])
    if compressed:
        for path in texts.values():
            path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(SettingError) as caught:
        prepare(settings_for(tmp_path, texts))
    assert f"{texts['en']} ends after line 60" in str(caught.value)
    assert f"{texts['de']} ends after line 58" in str(caught.value)
    assert not (tmp_path / "data" / "train.en.bin").exists()


def test_a_run_started_again_takes_up_the_parts_that_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = write_texts(tmp_path)
    settings = settings_for(tmp_path, texts)
    prepare(settings)
    expected = everything(tmp_path / "data")
    for path in (tmp_path / "data").iterdir():
        path.unlink()
    calls = []

    def stop_at_fifth(*arguments: Any) -> None:
        calls.append(arguments)
        if len(calls) == 5:
            raise KeyboardInterrupt
        save(*arguments)

    save = binarise._save
    with monkeypatch.context() as patch:
        patch.setattr(binarise, "_save", stop_at_fifth)
        with pytest.raises(KeyboardInterrupt):
            prepare(settings)
    done = prepare(settings)
    assert done.num_reused_parts == 4
    assert done.num_parts > 10
    assert everything(tmp_path / "data") == expected


def test_an_edited_text_is_encoded_again_only_where_it_changed(tmp_path: Path) -> None:
    texts = {"en": write_texts(tmp_path)["en"]}
    dictionary = tmp_path / "dict.txt"
    dictionary.write_text("of 1\ntext 1\n")
    settings = settings_for(tmp_path, texts, tokenizer=str(dictionary))
    parts = tmp_path / "data" / ".parts"
    kept = tmp_path / "kept"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sonde.data.binarise.shutil.rmtree", lambda path, **_: os.rename(path, kept))
        first = prepare(settings)
    kept.rename(parts)
    texts["en"].write_text(texts["en"].read_text().replace("number 59", "Number 59"))
    assert prepare(settings).num_reused_parts == first.num_parts - 1


@pytest.mark.parametrize("num_writes", [0, 1, 4, 9, 14, 20, 24])
def test_a_full_disk_leaves_no_half_file_and_can_be_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_writes: int
) -> None:
    settings = settings_for(tmp_path, write_texts(tmp_path))
    left = [num_writes]

    def write(descriptor: int, payload: Any) -> int:
        if left[0] == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        left[0] -= 1
        return os.write(descriptor, payload)

    with monkeypatch.context() as patch:
        patch.setattr(disk, "write", write)
        with pytest.raises(SondeError) as caught:
            prepare(settings)
    assert "No space left" in str(caught.value)
    assert not [path for path in (tmp_path / "data").rglob("*") if "tmp" in path.name]
    prepare(settings)
    assert len(open_pairs(tmp_path / "data")) == 60


def test_a_new_bin_beside_an_old_sidecar_is_stale(tmp_path: Path) -> None:
    prepare(settings_for(tmp_path, write_texts(tmp_path)))
    path = tmp_path / "data" / "train.en.bin"
    path.write_bytes(bytes(len(path.read_bytes())))
    with pytest.raises(DamagedFile, match="stale"):
        TokenFile(tmp_path / "data" / "train.en")


def test_one_directory_has_one_tokenizer(tmp_path: Path) -> None:
    texts = write_texts(tmp_path)
    prepare(settings_for(tmp_path, texts))
    other = PrepareSettings(splits={"valid": texts}, out=tmp_path / "data", tokenizer="bytes")
    with pytest.raises(SettingError, match="another tokenizer"):
        prepare(other)
    again = PrepareSettings(
        splits={"valid": texts}, out=tmp_path / "data", tokenizer=str(tmp_path / "data/dict.txt")
    )
    prepare(again)
    assert set(DataDirectory(tmp_path / "data").splits) == {"train", "valid"}


def test_an_exchanged_tokenizer_is_refused(tmp_path: Path) -> None:
    prepare(settings_for(tmp_path, write_texts(tmp_path)))
    (tmp_path / "data" / "dict.txt").write_text("a 1\n")
    with pytest.raises(DamagedFile, match="not the tokenizer"):
        DataDirectory(tmp_path / "data").tokenizer()


def test_progress_reaches_the_end_in_every_stage(tmp_path: Path) -> None:
    texts = write_texts(tmp_path)
    seen: list[tuple[str, str, int, int]] = []
    prepare(settings_for(tmp_path, texts), on_progress=lambda *told: seen.append(told))
    total = sum(path.stat().st_size for path in texts.values())
    last = {stage: num_done for stage, _, num_done, _ in seen}
    assert last == {"vocabulary": total, "encode": total, "merge": total}
    assert {num_total for _, _, _, num_total in seen} == {total}


@pytest.mark.parametrize("changes", [{"layout": "x"}, {"block_bytes": 0}, {"max_line_bytes": 0}])
def test_settings_that_cannot_be_used_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        settings_for(tmp_path, {"en": tmp_path / "x"}, **changes)


def test_an_empty_text_becomes_an_empty_corpus(tmp_path: Path) -> None:
    done = prepare(settings_for(tmp_path, write_texts(tmp_path, [], [])))
    assert [sidecar.num_samples for sidecar in done.sidecars] == [0, 0]
    assert len(open_pairs(tmp_path / "data")) == 0


@pytest.mark.timeout(60)  # it would never end
def test_a_single_block_that_is_larger_than_the_sample_is_trained_on_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = write_texts(tmp_path)
    options: dict[str, Any] = {"tokenizer": "bpe", "vocab_size": 300, "block_bytes": 1 << 20}
    prepare(settings_for(tmp_path, texts, **options))
    whole = everything(tmp_path / "data")
    monkeypatch.setattr(binarise, "SAMPLE_BYTES", 10)
    # one text alone: one block
    alone = {"en": texts["en"]}
    prepare(settings_for(tmp_path / "alone", alone, **options))
    monkeypatch.undo()
    prepare(settings_for(tmp_path / "unlimited", alone, **options))
    assert everything(tmp_path / "alone" / "data") == everything(tmp_path / "unlimited" / "data")
    assert everything(tmp_path / "data") == whole
