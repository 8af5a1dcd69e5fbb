"""The compiled kernel: equal to the one in numpy, absent without a compiler, and safe to load."""

import ctypes
import os
import zlib
from pathlib import Path

import numpy as np
import pytest

from sonde.probe import blocks, compiled
from sonde.probe.compiled import FLOATS, INTEGERS

SIZES = (0, 1, 7, 16, 17, 2047, 2048, 2049, 5000, 70_000)


def sample(name: str, num: int, *, seed: int = 0) -> np.ndarray:
    generator = np.random.default_rng(seed)
    if name in INTEGERS:
        limits = np.iinfo(name)
        values = generator.integers(limits.min, limits.max, num, dtype=name, endpoint=True)
        values[::5] = 0
        return values
    values = generator.normal(size=num) * 1e3
    values[::7] = 0
    if name == "bfloat16":
        return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    return values.astype(name)


def the_kernel() -> dict[str, compiled.Measure]:
    measures = compiled.load()
    if measures is None:
        pytest.skip("this machine has no C compiler")
    return measures


@pytest.mark.parametrize("name", [*FLOATS, *INTEGERS])
def test_the_compiled_kernel_and_the_one_in_numpy_agree(name: str) -> None:
    ours, theirs = the_kernel()[name], blocks.measures()[name]
    for num in SIZES:
        values = sample(name, num)
        (a, crc_a), (b, crc_b) = ours(values.ctypes.data, num, 0), theirs(values.ctypes.data, num, 0)
        assert (a.num, a.max, a.min, a.num_zero) == (b.num, b.max, b.min, b.num_zero)
        assert a.sum == pytest.approx(b.sum, rel=1e-9, abs=1e-6 * max(abs(b.norm), 1e-300))
        assert a.norm == pytest.approx(b.norm, rel=1e-13)
        assert crc_a == crc_b == zlib.crc32(values.tobytes())


@pytest.mark.parametrize("name", ["float16", "float32", "float64"])
@pytest.mark.parametrize("engine", ["compiled", "numpy"])
def test_what_is_not_finite_is_counted_wherever_it_stands(name: str, engine: str) -> None:
    measure = (the_kernel() if engine == "compiled" else blocks.measures())[name]
    for position in (0, 15, 16, 2047, 2048, 4999):
        values = sample(name, 5000)
        values[position] = np.nan
        values[(position + 1) % 5000] = np.inf
        values[(position + 2) % 5000] = -np.inf
        moments, _ = measure(values.ctypes.data, values.size, None)
        finite = values[np.isfinite(values)].astype(np.float64)
        assert (moments.num_nan, moments.num_plus_inf, moments.num_minus_inf) == (1, 1, 1)
        assert (moments.max, moments.min) == (finite.max(), finite.min())
        assert moments.norm == pytest.approx(np.linalg.norm(finite), rel=1e-12)
        assert moments.num_zero == np.count_nonzero(finite == 0)


@pytest.mark.parametrize("scale", [1e300, 1e-300])
@pytest.mark.parametrize("engine", ["compiled", "numpy"])
def test_norms_of_doubles_neither_overflow_nor_vanish(scale: float, engine: str) -> None:
    measure = (the_kernel() if engine == "compiled" else blocks.measures())["float64"]
    values = np.array([3.0, 4.0]) * scale
    assert measure(values.ctypes.data, 2, None)[0].norm == pytest.approx(5 * scale)


def test_a_crc_goes_on_over_pieces() -> None:
    values = sample("float32", 10_000)
    measure = the_kernel()["float32"]
    _, first = measure(values.ctypes.data, 3_001, 0)
    _, both = measure(values.ctypes.data + 4 * 3_001, 10_000 - 3_001, first)
    assert both == zlib.crc32(values.tobytes())


def test_a_crc_is_right_where_the_processor_has_no_quick_way() -> None:
    library = ctypes.CDLL(str(compiled._find_or_build()))
    measure = compiled._measure_float(library, "float32", fuse=False)
    values = sample("float32", 1_000)
    assert measure(values.ctypes.data, 1_000, 0)[1] == zlib.crc32(values.tobytes())


def test_without_a_compiler_there_is_no_kernel_and_no_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert compiled.load.__wrapped__() is None


def test_a_compiler_that_fails_is_as_good_as_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    broken = tmp_path / "broken-cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("CC", str(broken))
    assert compiled.load.__wrapped__() is None
    assert not list((tmp_path / "cache").rglob("*.so"))


def test_a_cache_that_others_can_write_is_not_loaded_from(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    folder = tmp_path / "sonde" / "probe"
    folder.mkdir(parents=True)
    folder.chmod(0o777)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert compiled.load.__wrapped__() is None


@pytest.mark.slow
def test_the_kernel_is_built_once_and_kept_privately(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    the_kernel()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = compiled._find_or_build()
    stamp = first.stat().st_mtime_ns
    assert compiled._find_or_build() == first
    assert first.stat().st_mtime_ns == stamp
    assert os.listdir(first.parent) == [first.name]
