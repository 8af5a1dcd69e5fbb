"""From a sample's name to document, file, line and text, by any tokenizer."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from sonde.compat.atorch.loss_lines import ids_text
from sonde.compat.atorch.loss_spike import DatasetLossSpike, sample_info
from sonde.data.datasets import BlockDataset, open_pairs
from sonde.data.directory import DataDirectory
from sonde.spikes.decoding import SampleDecoder, describe_datasets, sample_text, token_texts
from sonde.spikes.spike_log import RankedSample, read_spikes

SAMPLE = RankedSample(rank=0, dataset="train", sample=5, loss=2.0, num_tokens=5, share=0.5)


def test_the_worst_sample_of_a_run_is_named_down_to_its_line(
    spiked_run: Path, corpus: Path
) -> None:
    log = read_spikes(spiked_run)
    worst = SampleDecoder(log.datasets).decode(log.spikes[0].samples()[:1], with_tokens=True)[0]
    assert (worst.text, worst.source_text) == ("target of line 7", "source number 7")
    assert (worst.document, worst.file, worst.line) == (5, str(corpus.parent / "text.de"), 7)
    assert worst.problem == ""
    assert "".join(worst.token_texts) == "target of line 7"
    assert worst.token_texts[3].strip() == "7"


def test_blocks_are_decoded_and_lead_to_the_document_of_their_worst_token(corpus: Path) -> None:
    blocks = BlockDataset(DataDirectory(corpus).tokens("train", "de"), 7, name="lm")
    ranked = dataclasses.replace(
        SAMPLE, dataset="lm", sample=0, token_losses=(1.0, 1, 1, 1, 1, 1, 9.0)
    )
    (found,) = SampleDecoder(describe_datasets({"lm": blocks})).decode([ranked])
    assert (found.document, found.line) == (1, 2)
    assert found.text.startswith("target of line 1")


def test_data_that_was_moved_is_found_again_and_other_data_is_refused(
    corpus: Path, tmp_path: Path
) -> None:
    descriptions = describe_datasets({"train": open_pairs(corpus)})
    moved = shutil.copytree(corpus, tmp_path / "moved")
    gone: dict[str, Any] = {
        "train": {**descriptions["train"], "target": {"prefix": "/gone/train.de", "sha256": None}}
    }
    assert "/gone/train.de" in SampleDecoder(gone).decode([SAMPLE])[0].problem
    assert SampleDecoder(gone, directory=moved).decode([SAMPLE])[0].text == "target of line 7"
    assert SampleDecoder({}, directory=moved).decode([SAMPLE])[0].text == "target of line 7"
    other = {
        "train": {
            **descriptions["train"],
            "target": {**descriptions["train"]["target"], "sha256": "0" * 64},
        }
    }
    assert "not the data that was trained on" in SampleDecoder(other).decode([SAMPLE])[0].problem


def test_where_the_data_cannot_be_opened_a_text_that_is_known_is_shown() -> None:
    decoder = SampleDecoder({}, known={("train", 5): "noise"})
    found, other = decoder.decode([SAMPLE, dataclasses.replace(SAMPLE, sample=6)])
    assert (found.text, found.problem) == ("noise", "")
    assert "does not say where" in other.problem


@pytest.mark.parametrize("sample", [99, "text", -1])
def test_a_sample_that_is_not_there_is_told_not_raised(corpus: Path, sample: int | str) -> None:
    decoder = SampleDecoder(describe_datasets({"train": open_pairs(corpus)}))
    (found,) = decoder.decode([dataclasses.replace(SAMPLE, sample=sample)])
    assert "has no sample" in found.problem
    (unknown,) = decoder.decode([dataclasses.replace(SAMPLE, dataset="other")])
    assert "'other'" in unknown.problem


def test_datasets_of_other_kinds_are_left_out_of_the_description(corpus: Path) -> None:
    assert describe_datasets({"own": object(), "train": open_pairs(corpus)}).keys() == {"train"}


def words() -> Any:
    tokenizer = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="a"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


class Bytes:
    """Like tiktoken: a token may be part of a character."""

    def decode(self, ids: list[int]) -> str:
        return bytes(ids).decode(errors="replace")


def test_any_tokenizer_with_decode_gives_text_and_texts_of_tokens() -> None:
    assert sample_text([0, 1, 2], words()) == "a b c"
    assert token_texts([0, 1, 2], words()) == ["a", " b", " c"]
    ids = list("aé€b".encode())
    assert token_texts(ids, Bytes()) == ["a", "", "é", "", "", "€", "b"]
    assert "".join(token_texts(ids, Bytes())) == sample_text(ids, Bytes())


def test_ids_without_a_tokenizer_are_whole_and_on_one_line() -> None:
    assert ids_text([]) == "[]"
    assert ids_text([7]) == "[7]"
    assert ids_text(range(3000)).count(" ") > 2998
    assert "\n" not in ids_text(range(3000))


def test_the_second_layout_decodes_sondes_own_datasets(corpus: Path, tmp_path: Path) -> None:
    spike = DatasetLossSpike(tmp_path / "s", {"train": open_pairs(corpus)}, min_iter=0, min_loss=1)
    spike.save_loss(None, 9.0, 1, [1.0, 7.0], [sample_info("train", 0), sample_info("train", 2)])
    spike.save_loss(None, 9.0, 2, [1.0], ["train:99"])
    spike.save_loss(None, 9.0, 3, [1.0], ["other:1"])
    spike.save_loss(None, 9.0, 4, [1.0], ["nonsense"])
    summary = spike.decode_loss_spike(tmp_path / "out.txt", DataDirectory(corpus).tokenizer())
    assert (
        tmp_path / "out.txt"
    ).read_text() == "==========train  7.0================\ntarget of line 4\n\n\n\n"
    assert [bad.reason.split(": ", 1)[1][:20] for bad in summary.bad] == [
        "there is no sample 9",
        "there is no dataset ",
        "not of the form DATA",
    ]
