from collections.abc import Callable

import numpy as np
import pytest

from sonde.data.datasets import (
    NO_SAMPLE,
    BlockDataset,
    MixtureDataset,
    PairDataset,
    Sample,
    rows_of_samples,
)
from sonde.data.token_file import TokenFile
from sonde.errors import SettingError

MakeTokens = Callable[..., TokenFile]
MakePairs = Callable[..., PairDataset]
DOCUMENTS = [[4, 5, 6, 7, 2], [8, 2], [], [9, 10, 11, 2]]


def test_a_pair_is_two_views_with_its_name_and_number(make_pairs: MakePairs) -> None:
    pairs = make_pairs(5)
    sample = pairs[3]
    assert sample.source is not None
    assert np.shares_memory(sample.source, pairs.source.flat)
    assert np.shares_memory(sample.target, pairs.target.flat)
    assert (sample.dataset, sample.sample_id, sample.weight) == ("train", 3, 1.0)
    assert pairs[-1].sample_id == 4


def test_many_rows_are_the_same_samples_one_by_one(make_pairs: MakePairs) -> None:
    pairs = make_pairs(9)
    rows = pairs.__getitems__([7, 0, 7])
    assert len(rows) == 3
    for row, number in zip(rows, [7, 0, 7], strict=True):
        assert row.source is not None
        assert row.source.tolist() == pairs.source[number].tolist()
        assert row.target.tolist() == pairs.target[number].tolist()
        assert (row.dataset, row.sample_id) == ("train", number)
    with pytest.raises(IndexError):
        rows[3]


def test_sides_of_different_length_are_refused(make_tokens: MakeTokens) -> None:
    with pytest.raises(SettingError, match="has 1 samples and"):
        PairDataset(make_tokens("a", [[2]]), make_tokens("b", [[2], [2]]), name="x")


def test_packed_blocks_are_full_and_know_their_documents(make_tokens: MakeTokens) -> None:
    blocks = BlockDataset(make_tokens("x", DOCUMENTS), 4, name="lm", mode="pack")
    assert [blocks[number].target.tolist() for number in range(3)] == [
        [4, 5, 6, 7],
        [2, 8, 2, 9],
        [10, 11, 2],
    ]
    assert blocks.lengths.tolist() == [4, 4, 3]
    assert [blocks.document(1, position) for position in range(4)] == [0, 1, 1, 3]
    assert blocks.boundaries(0) == [0]
    assert blocks.boundaries(1) == [1, 3]
    assert np.shares_memory(blocks[0].target, blocks.target.flat)


def test_cut_blocks_never_reach_over_a_document(make_tokens: MakeTokens) -> None:
    blocks = BlockDataset(make_tokens("x", DOCUMENTS), 3, name="lm", mode="cut")
    assert [blocks[number].target.tolist() for number in range(len(blocks))] == [
        [4, 5, 6],
        [7, 2],
        [8, 2],
        [9, 10, 11],
        [2],
    ]
    assert blocks.document(1, 1) == 0
    assert blocks.document(4, 0) == 3
    assert blocks[-1].sample_id == 4
    with pytest.raises(IndexError):
        blocks[5]
    with pytest.raises(IndexError, match="no position 2"):
        blocks.document(1, 2)


def test_megatrons_documents_are_the_documents(make_tokens: MakeTokens) -> None:
    tokens = make_tokens("x", DOCUMENTS, layout="megatron")
    tokens.documents = np.array([0, 2, 4])
    blocks = BlockDataset(tokens, 100, name="lm", mode="cut")
    assert [blocks[number].target.tolist() for number in range(2)] == [
        [4, 5, 6, 7, 2, 8, 2],
        [9, 10, 11, 2],
    ]


@pytest.mark.parametrize("mode", ["cut", "pack"])
def test_no_tokens_make_no_blocks(make_tokens: MakeTokens, mode: str) -> None:
    # a literal, from a parameter
    assert len(BlockDataset(make_tokens("x", []), 4, name="lm", mode=mode)) == 0  # type: ignore[arg-type]


def test_a_mixture_repeats_by_weight_and_keeps_names_and_numbers(make_pairs: MakePairs) -> None:
    small = make_pairs(4, "small")
    large = make_pairs(10, "large")
    mixture = MixtureDataset({"a": (small, 2.0), "b": (large, 0.5), "c": (small, 1.5)})
    assert len(mixture) == 8 + 5 + 6
    seen = [
        (sample.dataset, sample.sample_id) for sample in mixture.__getitems__(range(len(mixture)))
    ]
    assert seen[:8] == [("a", number) for number in [0, 1, 2, 3] * 2]
    assert len({number for name, number in seen if name == "b"}) == 5
    assert [seen.count(("c", number)) for number in range(4)].count(2) == 2
    for index, (name, number) in enumerate(seen):
        sample = mixture[index]
        assert (
            sample.target.tolist()
            == {"a": small, "b": large, "c": small}[name].target[number].tolist()
        )
        assert sample.source is not None
        assert mixture.lengths[index].tolist() == [len(sample.source), len(sample.target)]


def test_a_mixture_finds_every_copy_of_a_sample(make_pairs: MakePairs) -> None:
    mixture = MixtureDataset({"a": (make_pairs(4, "x"), 2.0), "b": (make_pairs(5, "y"), 1.0)})
    assert mixture.indices_of("a", np.array([1, 3])).tolist() == [1, 3, 5, 7]
    assert mixture.indices_of("b", np.array([0])).tolist() == [8]
    assert mixture.indices_of("z", np.array([0])).tolist() == []


def test_a_mixture_must_be_of_one_kind(make_pairs: MakePairs, make_tokens: MakeTokens) -> None:
    blocks = BlockDataset(make_tokens("x", DOCUMENTS), 4, name="lm")
    with pytest.raises(SettingError, match="do not mix"):
        MixtureDataset({"a": (make_pairs(3), 1.0), "b": (blocks, 1.0)})
    with pytest.raises(SettingError, match="above 0"):
        MixtureDataset({"a": (blocks, 0.0)})
    with pytest.raises(SettingError, match="at least one"):
        MixtureDataset({})


def test_samples_of_any_dataset_become_rows() -> None:
    rows = rows_of_samples(
        [([4, 2], [5, 6, 2]), Sample(np.array([7, 2]), np.array([8, 2]), "mine", 3, 0.5)]
    )
    assert [sample.target.tolist() for sample in rows] == [[5, 6, 2], [7, 2]]
    assert (rows[0].sample_id, rows[1].dataset, rows[1].weight) == (NO_SAMPLE, "mine", 0.5)
    assert rows_of_samples([[4, 2], (5, 2)])[1].target.tolist() == [5, 2]


def test_samples_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(SettingError, match="some have none"):
        rows_of_samples([[4, 2], ([4, 2], [5, 2])])
    with pytest.raises(SettingError, match="not understood"):
        rows_of_samples(["text"])
