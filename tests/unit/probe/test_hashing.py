"""Hashes over pieces."""

import zlib

import pytest

from sonde.probe.moments import Leaf
from sonde.probe.numpy_arrays import ContentHash, new_hash
from sonde.probe.settings import MD5, NO_HASH, XXH3


def test_a_hash_goes_on_over_pieces() -> None:
    content = ContentHash(MD5)
    content.update(b"ab")
    content.update(b"c")
    leaf: Leaf = {}
    content.write(leaf)
    assert leaf == {"md5": f"{zlib.crc32(b'abc'):08x}"}


def test_the_quick_hash_has_a_field_of_its_own() -> None:
    xxhash = pytest.importorskip("xxhash")
    content = ContentHash(XXH3)
    content.update(b"abc")
    leaf: Leaf = {}
    content.write(leaf)
    assert leaf == {"xxh3": xxhash.xxh3_128(b"abc").hexdigest()}


def test_no_hash_is_none() -> None:
    assert new_hash(NO_HASH) is None
