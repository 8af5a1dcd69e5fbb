"""What determines the last bits of a result: random generators, thread counts, and modes of torch.

The random numbers of a training run depend only on (seed, update, micro-batch), see
`seed_generators`. The states of all generators are still part of every checkpoint, because user
code may draw from them. A run records threads and modes; a resume warns about changes, and a replay
applies them.
"""

import contextlib
import logging
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

from sonde.records.journal import read_events

EVENT: Final = "determinism"
"""The event in which a run records these settings."""

_logger = logging.getLogger("sonde")
_MASK: Final = (1 << 64) - 1
_MODES: Final[Mapping[str, tuple[Callable[[], Any], Callable[[Any], object]]]] = {
    "num_threads": (torch.get_num_threads, torch.set_num_threads),
    "deterministic_algorithms": (
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
    ),
    "cudnn_benchmark": (
        lambda: torch.backends.cudnn.benchmark,
        partial(setattr, torch.backends.cudnn, "benchmark"),
    ),
    "matmul_precision": (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
}
"""How each setting is read and changed."""


def mix(*numbers: int) -> int:
    """Mix several numbers into one 63-bit number, by folding the finaliser of SplitMix64 over
    them.
    """
    state = 0
    for number in numbers:
        state = (state + 0x9E3779B97F4A7C15 + (number & _MASK)) & _MASK
        state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
        state ^= state >> 31
    return state >> 1


def seed_generators(seed: int, update: int, micro_batch: int) -> None:
    """Seed torch's default generators for one micro-batch, on the CPU and on the current device."""
    mixed = mix(seed, update, micro_batch)
    torch.default_generator.manual_seed(mixed)
    if torch.cuda.is_initialized():
        torch.cuda.manual_seed(mixed)


def generators() -> dict[str, Any]:
    """Return the states of the python, numpy and torch generators of this process, as plain
    data.
    """
    # the global one, which user code draws from
    numpy = np.random.get_state(legacy=False)  # noqa: NPY002
    assert isinstance(numpy, dict)
    state = dict(numpy["state"])
    found = {
        "python": list(random.getstate()),
        "numpy": {**numpy, "state": {**state, "key": state["key"].tobytes()}},
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if torch.cuda.is_initialized():
        states = torch.cuda.get_rng_state_all()
        found["cuda"] = [state.numpy().tobytes() for state in states]
    return found


def set_generators(state: Mapping[str, Any]) -> None:
    """Restore the generator states that `generators` returned."""
    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    numpy = state["numpy"]
    key = np.frombuffer(numpy["state"]["key"], dtype=np.uint32)
    # the user's own generator, put back
    np.random.set_state({**numpy, "state": {**numpy["state"], "key": key}})  # noqa: NPY002
    torch.set_rng_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))
    devices = state.get("cuda", [])
    if torch.cuda.is_initialized() and len(devices) == torch.cuda.device_count():
        states = [torch.frombuffer(bytearray(device), dtype=torch.uint8) for device in devices]
        torch.cuda.set_rng_state_all(states)


@contextlib.contextmanager
def generators_restored() -> Iterator[None]:
    """Restore the python, numpy and torch generators when the block ends."""
    before = generators()
    try:
        yield
    finally:
        set_generators(before)


def describe_determinism() -> dict[str, Any]:
    """Return the thread count and torch modes of this process."""
    return {name: read() for name, (read, _) in _MODES.items()}


def set_determinism(recorded: Mapping[str, Any]) -> None:
    """Apply the settings that another process recorded. What it did not record, or torch refuses,
    stays as it is.
    """
    for name, (read, change) in _MODES.items():
        value = recorded.get(name)
        # Only what differs: setting a value again can import torch's whole compiler, a second of
        # CPU.
        if type(value) is type(read()) and value != read():
            with contextlib.suppress(RuntimeError, ValueError, UserWarning):
                change(value)


def recorded_determinism(run: Path, rank: int = 0) -> Mapping[str, Any]:
    """Return the settings that a rank recorded when the run last started; empty if it recorded
    none.
    """
    return [{}, *read_events(run, EVENT, rank=rank)][-1]


def warn_about_changes(run: Path) -> None:
    """Warn about settings that changed since the last start of a run."""
    before = recorded_determinism(run)
    for name, value in describe_determinism().items():
        if before.get(name, value) != value:
            _logger.warning(
                "%s is %s, and was %s when this run last started: from here on its last bits may"
                " differ",
                name.replace("_", " ").replace("num ", "the number of "),
                value,
                before[name],
            )
