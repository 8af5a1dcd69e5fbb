"""What a look at a scene may take: seconds, and no more memory than the training has taken.

Memory is the peak that torch's allocator counts on a GPU, and that of the resident set elsewhere.
Both are read between forward passes, and nothing of the user's is reset. The seconds of a forward
pass are known from the step itself before one has been made, so that none is begun that does not
fit.
"""

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch

from sonde.errors import SondeError
from sonde.recorder.update import Update
from sonde.records.files import open_regular

_FORWARD_SHARE: Final = 1 / 3
"""How much of a step its forward passes take: backward takes twice as long."""
_SLACK: Final = 1.05
_SLACK_BYTES: Final = 100 << 20
"""Growth below this is no sign: modules are imported at the first look."""
_STATUS: Final = Path("/proc/self/status")
_ON_CPU: Final = ("DefaultCPUAllocator", "not enough memory")
"""What torch's allocator on the CPU says; it has no error of its own."""


class SceneLimits:
    """The limits of one look."""

    def __init__(self, seconds: float, device: torch.device) -> None:
        """Call this when the look begins: the peak until here is that of the training."""
        self._end = time.monotonic() + seconds
        self._device = device
        peak = peak_memory(device)
        self._most = math.inf if peak is None else max(_SLACK * peak, peak + _SLACK_BYTES)

    @property
    def seconds_left(self) -> float:
        """How many seconds are left; 0 if none are."""
        return max(self._end - time.monotonic(), 0.0)

    def allow(self, seconds: float) -> bool:
        """Return whether something that takes so long may still be begun."""
        return seconds <= self.seconds_left

    def has_room(self, num_bytes: int) -> bool:
        """Return whether so many bytes more are within what the training has taken."""
        held = _held_memory(self._device)
        return held is None or held + num_bytes <= self._most

    def is_memory_exceeded(self) -> bool:
        """Return whether the look has taken more memory than the training ever did."""
        peak = peak_memory(self._device)
        return peak is not None and peak > self._most


def forward_seconds(recent: Sequence[Update]) -> float:
    """Return how long the forward passes of an update take, by the last updates; 0 if that is not
    known.
    """
    working = [update.seconds - update.wait_seconds for update in recent]
    known = [seconds for seconds in working if math.isfinite(seconds)]
    return _FORWARD_SHARE * statistics.median(known) if known else 0.0


def peak_memory(device: torch.device) -> int | None:
    """Return the most bytes that were in use so far: those of a GPU, or the resident set. None if
    nobody counts them.
    """
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if device.type != "cpu":
        return None
    return _of_process("VmHWM:")


def _held_memory(device: torch.device) -> int | None:
    """Return the bytes that are in use now, counted as those of the peak."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return _of_process("VmRSS:") if device.type == "cpu" else None


def _of_process(name: str) -> int | None:
    try:
        with open_regular(_STATUS) as file:
            lines = file.read().decode().splitlines()
    except (OSError, SondeError, ValueError):
        return None
    found = [line.split() for line in lines if line.startswith(name)]
    return int(found[0][1]) * 1024 if found else None


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether an error says that there is no memory left."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error) for sign in _ON_CPU)
