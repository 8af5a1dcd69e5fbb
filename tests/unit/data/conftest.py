"""A small corpus on disk, for the tests of this package."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from sonde.data.datasets import PairDataset
from sonde.data.mmididx import Layout, write_index
from sonde.data.token_file import TokenFile


@pytest.fixture
def make_tokens(tmp_path: Path) -> Callable[..., TokenFile]:
    def make(name: str, sequences: list[list[int]], layout: Layout = "fairseq") -> TokenFile:
        prefix = tmp_path / name
        sizes = np.array([len(sequence) for sequence in sequences], np.int32)
        with Path(f"{prefix}.idx").open("wb") as file:
            write_index(file, [sizes], dtype=np.dtype("<u2"), layout=layout)
        flat = [token for sequence in sequences for token in sequence]
        Path(f"{prefix}.bin").write_bytes(np.array(flat, "<u2").tobytes())
        return TokenFile(prefix)

    return make


@pytest.fixture
def make_pairs(make_tokens: Callable[..., TokenFile]) -> Callable[..., PairDataset]:
    def make(num_pairs: int, name: str = "train") -> PairDataset:
        chance = np.random.default_rng(num_pairs)
        sides = []
        for side in ("en", "de"):
            rows = [
                [*chance.integers(4, 99, chance.integers(0, 9)).tolist(), 2]
                for _ in range(num_pairs)
            ]
            sides.append(make_tokens(f"{name}.{side}", rows))
        return PairDataset(sides[0], sides[1], name=name)

    return make
