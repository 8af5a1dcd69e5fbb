"""Faults of what a rank is fed: another order of the data on one of two ranks, and data made with
another tokenizer.
"""

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
import torch.distributed as dist
from benchmarks.planted_site import Planted, Site, go_on

from sonde.data.batching import ShardedBatchSampler
from sonde.data.directory import DataDirectory
from sonde.data.token_file import beside, read_sidecar, stamp_file, write_sidecar
from sonde.records.checksums import file_digest
from sonde.train.trainer import Trainer

_NUM_SPECIALS: Final = 4
_RANK: Final = 1
_TIMEOUT: Final = timedelta(seconds=60)


def misorder(site: Site) -> Planted:
    """Two ranks go on with the training; from one step on, one of them takes other batches than
    those in its turn.
    """
    how = ("another rank's", "not shuffled", "standing still", "lagging")[site.seed // 2 % 4]
    children = [_fork(site, rank, how) for rank in range(2)]
    for child in children:
        _, status = os.waitpid(child, 0)
        if status:
            raise RuntimeError(f"a rank ended with {status}")
    return Planted(cause="data_order", step=site.step, rank=_RANK, how=how)


def change_tokenizer(site: Site) -> Planted:
    """The data of the run, encoded again with a tokenizer that numbers some of its pieces
    differently.
    """
    directory = DataDirectory(site.data)
    stamp = directory.splits["train"][0].tokenizer
    generator = site.generator
    path = site.data / stamp.file
    tokenizer = json.loads(path.read_text())
    ids = list(range(_NUM_SPECIALS, stamp.vocab_size))
    moved = sorted(generator.sample(ids, round(len(ids) * generator.uniform(0.3, 1.0))))
    turned = moved[:]
    generator.shuffle(turned)
    new_id = np.arange(stamp.vocab_size)
    new_id[moved] = turned
    vocab = tokenizer["model"]["vocab"]
    tokenizer["model"]["vocab"] = {piece: int(new_id[number]) for piece, number in vocab.items()}
    path.write_text(json.dumps(tokenizer))
    for sidecar in directory.splits["train"]:
        prefix = site.data / f"train.{sidecar.language}"
        tokens = np.fromfile(
            beside(prefix, ".bin"), directory.tokens("train", sidecar.language).index.dtype
        )
        beside(prefix, ".bin").write_bytes(new_id[tokens].astype(tokens.dtype).tobytes())
        old = read_sidecar(prefix)
        assert old is not None
        new_stamp = replace(old.tokenizer, digest=file_digest(path))
        write_sidecar(
            prefix, replace(old, tokenizer=new_stamp, bin=stamp_file(beside(prefix, ".bin")))
        )
    go_on(site)
    return Planted(cause="changed_tokenizer", step=site.base.last + 1)


def _fork(site: Site, rank: int, how: str) -> int:
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        torch.set_num_threads(1)
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
        store = f"file://{Path(site.run).absolute().parent}/store"
        dist.init_process_group(
            "gloo", init_method=store, rank=rank, world_size=2, timeout=_TIMEOUT
        )

        def change(trainer: Trainer) -> None:
            if rank == _RANK:
                data: Any = trainer.data
                data.sampler = _Misordered(data.sampler, site.step - site.base.last - 1, how)

        go_on(site, change=change, rank=rank, world_size=2)
        dist.destroy_process_group()
        status = 0
    finally:
        sys.stdout.flush()
        os._exit(status)


class _Misordered:
    """A batch sampler that from some round on hands out batches of other places."""

    def __init__(self, sampler: ShardedBatchSampler, good_rounds: int, how: str) -> None:
        self._sampler = sampler
        self._good_rounds = good_rounds
        self._how = how

    def __len__(self) -> int:
        return len(self._sampler)

    def __iter__(self) -> Iterator[list[int]]:
        sampler = self._sampler
        right = list(sampler)
        order = sampler.global_order(sampler.position.epoch)
        offset = sampler.position.offset
        for number, samples in enumerate(right):
            if number < self._good_rounds:
                yield samples
                continue
            place = offset + 2 * number
            wrong = {
                "another rank's": int(order[place]),
                "not shuffled": place + _RANK,
                "standing still": int(order[offset + 2 * (self._good_rounds - 1) + _RANK]),
                "lagging": int(order[place - 6 + _RANK]),
            }[self._how]
            yield [int(sample) for sample in sampler.batches[wrong]]

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sampler, name)
