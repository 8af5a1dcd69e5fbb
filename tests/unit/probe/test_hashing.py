"""Hashes over pieces."""

import zlib

import pytest

from sonde.probe.numpy_arrays import new_hash


def test_a_hash_goes_on_over_pieces() -> None:
    content = new_hash("md5")
    assert content is not None
    content.update(b"ab")
    content.update(b"c")
    assert content.hexdigest() == f"{zlib.crc32(b'abc'):08x}"


def test_the_quick_hash_has_128_bits() -> None:
    xxhash = pytest.importorskip("xxhash")
    content = new_hash("xxh3")
    assert content is not None
    content.update(b"abc")
    assert content.hexdigest() == xxhash.xxh3_128(b"abc").hexdigest()


def test_without_a_hash_there_is_none() -> None:
    assert new_hash("statistics") is None
