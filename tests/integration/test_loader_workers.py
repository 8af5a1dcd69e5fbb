"""The loader with real worker processes: the same batches, and one that dies or stalls is named
within seconds.
"""

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonde.data.datasets import PairDataset, Rows
from sonde.data.loader import Batch, Collater, LoaderSettings, TokenLoader
from sonde.data.mmididx import write_index
from sonde.data.token_file import TokenFile
from sonde.errors import SondeError

pytestmark = [
    pytest.mark.slow,
    # torch itself forks its workers from a process with threads
    pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning"),
]


class TroubleDataset:
    """Pairs; the worker that is asked for sample 40 gets into trouble."""

    def __init__(self, pairs: PairDataset, trouble: str) -> None:
        self.pairs = pairs
        self.trouble = trouble

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> object:
        return self.pairs[index]

    def __getitems__(self, indices: list[int]) -> Rows:
        if 40 in indices:
            if self.trouble == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif self.trouble == "gone":
                os._exit(3)
            elif self.trouble == "stalled":
                time.sleep(600)
            else:
                raise RuntimeError("the 41st")
        return self.pairs.__getitems__(indices)

    @property
    def lengths(self) -> np.ndarray:
        return self.pairs.lengths

    def indices_of(self, dataset: str, samples: np.ndarray) -> np.ndarray:
        return self.pairs.indices_of(dataset, samples)


@pytest.fixture
def pairs(tmp_path: Path) -> PairDataset:
    chance = np.random.default_rng(0)
    sides = []
    for side in ("en", "de"):
        sizes = chance.integers(1, 9, 300).astype(np.int32)
        with (tmp_path / f"{side}.idx").open("wb") as file:
            write_index(file, [sizes], dtype=np.dtype("<u2"))
        (tmp_path / f"{side}.bin").write_bytes(
            chance.integers(4, 99, int(sizes.sum())).astype("<u2").tobytes()
        )
        sides.append(TokenFile(tmp_path / side))
    return PairDataset(sides[0], sides[1], name="train")


def test_workers_change_nothing_and_a_run_resumes_with_another_number(pairs: PairDataset) -> None:
    alone = TokenLoader(pairs, Collater(), LoaderSettings(max_tokens=64))
    expected = [batch.target.tolist() for batch in alone]
    two = TokenLoader(pairs, Collater(), LoaderSettings(max_tokens=64, num_workers=2))
    found = []
    for batch in two:
        found.append(batch.target.tolist())
        if len(found) == 7:
            break
    assert two.sampler.position.offset == 7  # not where the workers are
    one = TokenLoader(pairs, Collater(), LoaderSettings(max_tokens=64, num_workers=1))
    one.load_state_dict(two.state_dict())
    assert found + [batch.target.tolist() for batch in one] == expected


@pytest.mark.parametrize(
    ("trouble", "words"),
    [
        ("killed", "killed by signal 9"),
        ("gone", "ended with code 3"),
        ("stalled", "not answered for 2 seconds"),
    ],
)
def test_a_worker_in_trouble_is_named_within_seconds(
    pairs: PairDataset, trouble: str, words: str
) -> None:
    dataset = TroubleDataset(pairs, trouble)
    settings = LoaderSettings(max_tokens=64, num_workers=2, stall_seconds=2.0)
    # a dataset that fails on purpose
    loader = TokenLoader(dataset, Collater(), settings)  # type: ignore[arg-type]
    batches: list[Batch] = []
    started = time.monotonic()
    with pytest.raises(SondeError) as caught:
        batches.extend(loader)
    assert time.monotonic() - started < 30
    assert words in caught.value.message
    assert "data worker" in caught.value.message
    assert "(process " in caught.value.message
    assert loader.sampler.position.offset == len(batches)


def test_an_error_of_the_dataset_comes_out_as_it_is(pairs: PairDataset) -> None:
    settings = LoaderSettings(num_workers=1, max_tokens=64)
    failing: Any = TroubleDataset(pairs, "wrong")
    loader = TokenLoader(failing, Collater(), settings)
    with pytest.raises(RuntimeError, match="the 41st"):
        list(loader)
