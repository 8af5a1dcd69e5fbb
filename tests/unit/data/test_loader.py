import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from sonde.data.batching import Position, ShardedBatchSampler, batch_by_tokens
from sonde.data.datasets import PairDataset
from sonde.data.loader import Batch, Collater, LoaderSettings, TokenLoader, rank_and_world_size
from sonde.data.skip_list import SkipList
from sonde.errors import SettingError

MakePairs = Callable[..., PairDataset]


def loader_of(pairs: PairDataset, **settings: Any) -> TokenLoader:
    return TokenLoader(
        pairs, Collater(), LoaderSettings(**{"max_tokens": 40, "multiple_of": 1, **settings})
    )


def samples_of(batch: Batch) -> list[int]:
    return [sample for _, sample in batch.provenance]


def test_every_sample_once_an_epoch_and_then_the_next(make_pairs: MakePairs) -> None:
    loader = loader_of(make_pairs(100))
    first = [samples_of(batch) for batch in loader]
    assert sorted(number for batch in first for number in batch) == list(range(100))
    assert loader.sampler.position == Position(epoch=2, offset=0)
    second = [samples_of(batch) for batch in loader]
    assert sorted(map(sorted, second)) == sorted(map(sorted, first))  # the same batches
    assert second != first  # in another order


def test_without_shuffle_batches_come_by_length(make_pairs: MakePairs) -> None:
    loader = loader_of(make_pairs(100), shuffle=False)
    longest = [
        int(batch.source_lengths.max()) for batch in loader if batch.source_lengths is not None
    ]
    assert longest == sorted(longest)


def test_stopping_and_resuming_continues_the_order(make_pairs: MakePairs) -> None:
    pairs = make_pairs(100)
    whole = [samples_of(batch) for batch in loader_of(pairs)]
    loader = loader_of(pairs)
    head = []
    for batch in loader:
        head.append(samples_of(batch))
        if len(head) == 5:
            break
    resumed = loader_of(pairs)
    resumed.load_state_dict(loader.state_dict())
    assert len(resumed) == len(whole) - 5
    assert head + [samples_of(batch) for batch in resumed] == whole
    assert head + [samples_of(batch) for batch in loader] == whole


def test_the_state_is_a_few_integers(make_pairs: MakePairs) -> None:
    state = loader_of(make_pairs(100)).state_dict()
    assert len(state) == 6
    assert all(isinstance(value, int) for value in state.values())


@pytest.mark.parametrize("change", [{"max_tokens": 30}, {"seed": 2}])
def test_a_position_in_other_batches_is_refused(
    make_pairs: MakePairs, change: dict[str, int]
) -> None:
    pairs = make_pairs(100)
    state = loader_of(pairs).state_dict()
    with pytest.raises(SettingError, match="cannot resume"):
        loader_of(pairs, **change).load_state_dict(state)
    with pytest.raises(SettingError, match="not the state"):
        loader_of(pairs).load_state_dict({"epoch": 1})
    with pytest.raises(SettingError, match="at batch 1000000"):
        loader_of(pairs).load_state_dict({**state, "offset": 1_000_000})


def test_the_last_uneven_round_gives_empty_batches(make_pairs: MakePairs) -> None:
    pairs = make_pairs(100)
    num_batches = len(loader_of(pairs).sampler.batches)
    num_shards = next(num for num in (3, 4, 5, 7) if num_batches % num)
    ranks = [
        list(loader_of(pairs, num_shards=num_shards, shard_id=shard)) for shard in range(num_shards)
    ]
    assert len({len(batches) for batches in ranks}) == 1
    seen = [
        number
        for batches in ranks
        for batch in batches
        if not batch.is_empty
        for number in samples_of(batch)
    ]
    assert sorted(seen) == list(range(100))
    assert (
        sum(batch.is_empty for batches in ranks for batch in batches) == -num_batches % num_shards
    )


def test_the_skip_list_is_obeyed_and_nothing_else_moves(make_pairs: MakePairs) -> None:
    pairs = make_pairs(100)
    plain = [samples_of(batch) for batch in loader_of(pairs)]
    gone = {*plain[2], plain[0][0]}
    skip = SkipList({"train": gone, "other": [1, 2, 3]})
    settings = LoaderSettings(max_tokens=40, multiple_of=1)
    batches = list(TokenLoader(pairs, Collater(), settings, skip_list=skip))
    found = [[] if batch.is_empty else samples_of(batch) for batch in batches]
    assert found == [[number for number in batch if number not in gone] for batch in plain]
    assert batches[2].is_empty
    state = TokenLoader(pairs, Collater(), settings, skip_list=skip).state_dict()
    loader_of(pairs).load_state_dict(state)  # a skip list does not make other batches


def test_resuming_deep_in_an_epoch_takes_milliseconds() -> None:
    batches = batch_by_tokens(np.random.default_rng(0).integers(1, 60, 1_000_000), 400)
    sampler = ShardedBatchSampler(batches)
    state = sampler.state_dict()
    started = time.process_time()
    sampler.load_state_dict({**state, "offset": len(batches) - 2})
    assert len(list(sampler)) == 2
    assert time.process_time() - started < 0.5


def test_sampler_and_collater_serve_a_plain_data_loader_and_a_foreign_dataset() -> None:
    class Mine(Dataset[tuple[torch.Tensor, torch.Tensor]]):
        def __len__(self) -> int:
            return 20

        def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
            return torch.tensor([4] * (index % 5) + [2]), torch.tensor([5, 2])

    mine = Mine()
    lengths = np.array([[len(mine[index][0]), len(mine[index][1])] for index in range(20)])
    sampler = ShardedBatchSampler(batch_by_tokens(lengths, 20))
    batches = list(DataLoader(mine, batch_sampler=sampler, collate_fn=Collater()))
    assert sum(len(batch) for batch in batches) == 20
    assert all(batch.target.numel() <= 20 for batch in batches)
    assert all(batch.source.numel() <= 20 for batch in batches)


def test_a_sonde_dataset_serves_a_plain_data_loader(make_pairs: MakePairs) -> None:
    pairs: Any = make_pairs(10)
    found = list(DataLoader(pairs, batch_size=4, collate_fn=list))
    assert [sample.sample_id for batch in found for sample in batch] == list(range(10))


def test_rank_and_world_size_come_from_the_launcher(
    make_pairs: MakePairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert rank_and_world_size() == (0, 1)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    sampler = loader_of(make_pairs(10)).sampler
    assert (sampler.shard_id, sampler.num_shards) == (2, 4)


def test_the_number_of_processes_on_a_node_changes_nothing(
    make_pairs: MakePairs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    orders = []
    for local_world_size in ("1", "2", "4"):
        monkeypatch.setenv("LOCAL_WORLD_SIZE", local_world_size)
        orders.append([batch.provenance for batch in loader_of(make_pairs(10))])
    assert orders[0]
    assert orders == [orders[0]] * 3


def test_settings_that_cannot_be_used_are_refused(make_pairs: MakePairs) -> None:
    wrong: tuple[dict[str, Any], ...] = (
        {"num_workers": -1},
        {"prefetch": 0},
        {"stall_seconds": 0.0},
    )
    for setting in wrong:
        with pytest.raises(SettingError):
            LoaderSettings(**setting)
    with pytest.raises(SettingError, match="no shard 3 of 3"):
        loader_of(make_pairs(10), num_shards=3, shard_id=3)
    loader = loader_of(make_pairs(10))
    with pytest.raises(SettingError, match="epoch 0"):
        loader.load_state_dict({**loader.state_dict(), "epoch": 0})


def test_fairseqs_expectations_of_shards_and_resume() -> None:
    batches = batch_by_tokens(np.ones(10, np.int64), None, 1)
    shards = [
        list(ShardedBatchSampler(batches, shuffle=False, num_shards=3, shard_id=shard))
        for shard in range(3)
    ]
    assert shards == [[[0], [3], [6], [9]], [[1], [4], [7], []], [[2], [5], [8], []]]
    many = ShardedBatchSampler(batch_by_tokens(np.ones(150, np.int64), None, 1), shuffle=False)
    many.load_state_dict({**many.state_dict(), "epoch": 2, "offset": 50})
    assert next(iter(many)) == [50]
    for _ in range(100):
        many.advance()
    assert many.position == Position(epoch=3, offset=0)
