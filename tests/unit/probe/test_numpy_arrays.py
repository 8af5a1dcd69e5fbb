"""Numpy arrays: any dtype, strides and byte order."""

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sonde.probe.numpy_arrays import describe, on_gradient, read, write


@pytest.mark.parametrize(
    "dtype",
    ["f2", "f4", "f8", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", ">f4", ">i8", "g", "c8"],
)
def test_every_numeric_dtype_has_all_four_statistics(dtype: str) -> None:
    leaf = describe(np.array([[1, 0], [3, 2]], dtype), "", [])
    assert (leaf["Max"], leaf["Min"], leaf["Mean"]) == (3, 0, 1.5)
    assert leaf["Norm"] == pytest.approx(14**0.5)


def test_views_are_hashed_in_the_order_of_their_values() -> None:
    view = np.arange(600_000, dtype=np.float32).reshape(600, 1000).T[::2]
    leaf = describe(view, "md5", [])
    assert leaf["md5"] == f"{zlib.crc32(np.ascontiguousarray(view).data):08x}"
    assert leaf["Max"] == view.max()


def test_a_mask_is_any_and_all() -> None:
    leaf = describe(np.array([True, True]), "", [])
    assert (leaf["Max"], leaf["Min"], leaf["Mean"]) == (True, True, None)


@pytest.mark.parametrize(
    "array", [np.array(["a"]), np.array([None, {}]), np.array(["2026-01-01"], "M8[D]"), np.empty(0)]
)
def test_what_is_no_number_is_described_without_statistics(array: Any) -> None:
    leaf = describe(array, "md5", [])
    assert (leaf["Max"], leaf["shape"]) == (None, list(array.shape))


def test_arrays_are_written_without_pickle(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    assert write(np.arange(3), path)
    assert read(path).tolist() == [0, 1, 2]
    assert not write(np.array([{}]), path)
    assert not write(np.empty(0), path)
    path.write_bytes(b"nothing")
    with pytest.raises(OSError, match="no array file"):
        read(path)


def test_arrays_have_no_gradients() -> None:
    assert on_gradient(np.ones(1), print) is None
