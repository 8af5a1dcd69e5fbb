"""Statistics of arrays in memory, against numpy in float64."""

import zlib

import numpy as np
import pytest

from sonde.probe.numpy_arrays import BLOCK, ROW, measure, new_hash

FLOATS = ("float16", "float32", "float64")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SIZES = (1, 7, ROW - 1, ROW, ROW + 1, 5000, BLOCK, BLOCK + 3000)


def sample(name: str, num: int, *, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if name in INTEGERS:
        limits = np.iinfo(name)
        values = generator.integers(limits.min, limits.max, num, dtype=name, endpoint=True)
        values[::5] = 0
        return values
    values = generator.normal(size=num) * 1e3
    values[::7] = 0
    return values.astype(name)


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
@pytest.mark.parametrize("num", SIZES)
def test_the_moments_are_those_of_numpy_in_float64(name: str, num: int) -> None:
    values = sample(name, num)
    moments = measure(values)
    wide = values.astype(np.float64)
    assert (moments.num, moments.max, moments.min) == (num, values.max(), values.min())
    assert moments.num_zero == np.count_nonzero(values == 0)
    assert moments.norm == pytest.approx(np.linalg.norm(wide), rel=1e-7)
    assert moments.sum == pytest.approx(wide.sum(), rel=1e-7, abs=1e-7 * np.abs(wide).sum())


def test_nothing_has_no_moments() -> None:
    assert measure(np.zeros(0, np.float32)).num == 0


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("position", [0, 1023, 1024, 4999])
def test_what_is_not_finite_is_counted_wherever_it_stands(name: str, position: int) -> None:
    values = sample(name, 5000)
    values[position] = np.nan
    values[(position + 1) % 5000] = np.inf
    values[(position + 2) % 5000] = -np.inf
    moments = measure(values)
    finite = values[np.isfinite(values)].astype(np.float64)
    assert (moments.num_nan, moments.num_plus_inf, moments.num_minus_inf) == (1, 1, 1)
    assert (moments.max, moments.min) == (finite.max(), finite.min())
    assert moments.norm == pytest.approx(np.linalg.norm(finite), rel=1e-12)
    assert moments.num_zero == np.count_nonzero(finite == 0)


@pytest.mark.parametrize(
    ("name", "scale"),
    [("float64", 1e300), ("float64", 1e-300), ("float32", 1e37), ("float32", 1e-37)],
)
@pytest.mark.parametrize("num", [2, 2 * ROW])
def test_norms_neither_overflow_nor_vanish(name: str, scale: float, num: int) -> None:
    values = np.tile(np.array([3.0, 4.0]) * scale, num // 2).astype(name)
    assert measure(values).norm == pytest.approx(5 * scale * np.sqrt(num / 2), rel=1e-6)


def test_a_norm_of_many_values_does_not_drift() -> None:
    values = np.random.default_rng(0).random(1 << 20, dtype=np.float32) + 1
    assert measure(values).norm == pytest.approx(
        np.linalg.norm(values.astype(np.float64)), rel=2e-8
    )


def test_the_bytes_are_hashed_on_the_way() -> None:
    values = sample("float32", BLOCK + 5)
    content = new_hash("md5")
    assert content is not None
    measure(values, content)
    assert content.hexdigest() == f"{zlib.crc32(values.tobytes()):08x}"
