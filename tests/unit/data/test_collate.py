from collections.abc import Callable

import numpy as np
import pytest
import torch

from sonde.data.datasets import BlockDataset, MixtureDataset, PairDataset, Sample
from sonde.data.loader import Batch, Collater
from sonde.data.token_file import TokenFile
from sonde.data.tokenizer import SpecialIds
from sonde.errors import SettingError

SOURCES = [[4, 5, 2], [6, 2], [7, 8, 9, 10, 2]]
TARGETS = [[7, 8, 9, 10, 2], [4, 5, 2], [6, 2]]


def values(tensor: torch.Tensor | None) -> list[list[int]]:
    assert tensor is not None
    result: list[list[int]] = tensor.tolist()
    return result


def same(one: Batch, other: Batch) -> bool:
    return values(one.source) == values(other.source) and all(
        torch.equal(getattr(one, name), getattr(other, name))
        for name in ("target", "decoder_input", "target_lengths", "weights")
    )


def test_fairseqs_example(make_tokens: Callable[..., TokenFile]) -> None:
    pairs = PairDataset(make_tokens("a", SOURCES), make_tokens("b", TARGETS), name="train")
    batch = Collater()(pairs.__getitems__([2, 0, 1]))
    assert values(batch.source) == [[7, 8, 9, 10, 2], [1, 1, 4, 5, 2], [1, 1, 1, 6, 2]]
    assert values(batch.target) == [[6, 2, 1, 1, 1], [7, 8, 9, 10, 2], [4, 5, 2, 1, 1]]
    assert values(batch.decoder_input) == [[2, 6, 1, 1, 1], [2, 7, 8, 9, 10], [2, 4, 5, 1, 1]]
    assert batch.ntokens == 10
    assert batch.provenance == [("train", 2), ("train", 0), ("train", 1)]
    assert batch.target_lengths.tolist() == [2, 5, 3]
    assert batch.source_lengths is not None
    assert batch.source_lengths.tolist() == [5, 3, 2]


def test_the_other_sides_and_a_multiple() -> None:
    collater = Collater(pad_source="right", pad_target="left", pad_to_multiple=4)
    batch = collater([([4, 2], [5, 6, 2]), ([7, 8, 2], [9, 2])])
    assert values(batch.source) == [[4, 2, 1, 1], [7, 8, 2, 1]]
    assert values(batch.target) == [[1, 5, 6, 2], [1, 1, 9, 2]]
    assert values(batch.decoder_input) == [[1, 2, 5, 6], [1, 1, 2, 9]]


def test_rows_and_samples_give_the_same_batch(make_pairs: Callable[..., PairDataset]) -> None:
    pairs = make_pairs(50)
    numbers = [3, 49, 3, 0, 17]
    assert same(
        Collater()(pairs.__getitems__(numbers)), Collater()([pairs[number] for number in numbers])
    )


def test_a_mixture_is_collated_row_for_row(make_pairs: Callable[..., PairDataset]) -> None:
    mixture = MixtureDataset({"a": (make_pairs(20, "x"), 1.0), "b": (make_pairs(30, "y"), 2.0)})
    numbers = [70, 3, 25, 19, 20, 55]
    batch = Collater()(mixture.__getitems__(numbers))
    assert same(batch, Collater()([mixture[number] for number in numbers]))
    assert batch.provenance == [
        (mixture[number].dataset, mixture[number].sample_id) for number in numbers
    ]


def test_a_language_model_has_no_source(make_tokens: Callable[..., TokenFile]) -> None:
    blocks = BlockDataset(make_tokens("x", [[4, 5, 6, 2], [7, 2]]), 4, name="lm")
    batch = Collater(has_source=False)(blocks.__getitems__([0, 1]))
    assert batch.source is None
    assert batch.source_lengths is None
    assert values(batch.decoder_input) == [[2, 4, 5, 6], [2, 7, 1, 1]]


@pytest.mark.parametrize("has_source", [True, False])
def test_no_samples_make_a_batch_of_weight_zero(has_source: bool) -> None:
    batch = Collater(has_source=has_source)([])
    assert batch.is_empty
    assert (len(batch), batch.ntokens, batch.weights.tolist(), batch.provenance) == (
        1,
        0,
        [0.0],
        [("", -1)],
    )
    assert values(batch.target) == [[2]]
    assert (batch.source is not None) == has_source


def test_weights_and_tokens_leave_out_rows_of_weight_zero() -> None:
    rows = [Sample(np.array([4, 2]), weight=0.5), Sample(np.array([5, 6, 2]), weight=0.0)]
    batch = Collater()(rows)
    assert batch.weights.tolist() == [0.5, 0.0]
    assert batch.ntokens == 2
    assert not batch.is_empty


def test_empty_sequences_are_all_padding() -> None:
    batch = Collater()([([], [4, 2]), ([5, 2], [])])
    assert values(batch.source) == [[1, 1], [5, 2]]
    assert values(batch.decoder_input) == [[2, 4], [1, 1]]


def test_a_batch_goes_to_a_device_whole() -> None:
    batch = Collater()([([4, 2], [5, 2])]).to("meta")
    assert batch.target.device.type == "meta"
    assert batch.source is not None
    assert batch.source.device.type == "meta"
    assert batch.provenance == [("", -1)]


def test_the_ids_come_from_the_tokenizer() -> None:
    collater = Collater.of(SpecialIds(pad=9, eos=8), has_source=False)
    assert (collater.pad, collater.eos, collater.has_source) == (9, 8, False)


def test_settings_that_cannot_be_used_are_refused() -> None:
    with pytest.raises(SettingError, match="pad_source"):
        Collater(pad_source="top")  # type: ignore[arg-type]  # wrong on purpose
    with pytest.raises(SettingError, match="pad_to_multiple"):
        Collater(pad_to_multiple=0)
