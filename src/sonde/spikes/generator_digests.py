"""Digests of the random generators: equal digests mean equal dropout.

Getting torch's state costs 2 µs without synchronization, digesting it 6 µs more, so a step keeps
the state and a spike digests it. The states of Python and numpy cost 30 µs and more, so they are
recorded only when a spike is written.
"""

import random
import sys
import zlib
from typing import Any

import numpy as np


def take_state() -> Any:
    """Return the state of torch's CPU generator; None if torch is not loaded."""
    torch = sys.modules.get("torch")
    return None if torch is None else torch.default_generator.get_state()


def digest_of_state(state: Any) -> str | None:
    """Return a digest of the state from `take_state`."""
    return None if state is None else f"{zlib.crc32(state.numpy()):08x}"


def digests_now() -> dict[str, str]:
    """Return digests of the current states of Python's and numpy's generators."""
    # the global one, which users' code draws from
    key = np.random.get_state(legacy=True)  # noqa: NPY002
    python = zlib.crc32(repr(random.getstate()).encode())
    # numpy's legacy tuple
    return {
        "python": f"{python:08x}",
        "numpy": f"{zlib.crc32(repr((key[1].tobytes(), key[2:])).encode()):08x}",  # type: ignore[index]
    }
