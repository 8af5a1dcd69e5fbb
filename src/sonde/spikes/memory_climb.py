"""The memory of a process over a whole run, in few samples, and whether it climbs. Pure.

    MemorySeries         samples by step; when it is full, every other one is dropped
    memory_climbs        a finding if the memory grows and grows

Only memory of the process itself counts: pages of files that are mapped, such as a dataset, come
and go as the system likes.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from sonde.spikes.quiet_rules import QuietFinding

MEMORY: Final = "memory_climbs"

_MAX_SAMPLES: Final = 256
_MIN_SAMPLES: Final = 16
_MIN_STEPS: Final = 500
"""A shorter climb is a beginning."""
_MIN_GROWTH: Final = 1 << 30
_FACTOR: Final = 2.0
_RISING: Final = 0.75
"""So many of the samples must be higher than the one before."""
_LATE_SHARE: Final = 0.2
"""So much of the growth must be in the last third, or it has come to rest."""


class MemorySeries:
    """How much memory a process had, by step."""

    def __init__(self) -> None:
        self._samples: list[tuple[int, int]] = []
        self._stride = 1
        self._num_offered = 0

    def add(self, step: int, num_bytes: int) -> None:
        """Add a sample, taken at regular times. Of a long run, few are kept."""
        is_wanted = self._num_offered % self._stride == 0
        self._num_offered += 1
        if not is_wanted:
            return
        samples = [*self._samples, (step, num_bytes)]
        if len(samples) == _MAX_SAMPLES:
            samples = samples[::2]
            self._stride *= 2
        self._samples = samples  # a new list: another thread may read the old one

    @property
    def samples(self) -> Sequence[tuple[int, int]]:
        """The samples: step and bytes, oldest first."""
        return self._samples


def memory_climbs(samples: Sequence[tuple[int, int]]) -> QuietFinding | None:
    """Find memory that has more than doubled and still grows."""
    if len(samples) < _MIN_SAMPLES:
        return None
    first_step, first = samples[0]
    last_step, last = samples[-1]
    growth = last - first
    if last_step - first_step < _MIN_STEPS or growth < _MIN_GROWTH or last < _FACTOR * first:
        return None
    late = last - samples[-(len(samples) // 3)][1]
    num_rising = sum(after > before for (_, before), (_, after) in pairwise(samples))
    if late < _LATE_SHARE * growth or num_rising < _RISING * (len(samples) - 1):
        return None
    return QuietFinding(
        kind=MEMORY,
        step=last_step,
        sentence=(
            f"the memory of the process grew from {first / 1e9:.1f} GB to {last / 1e9:.1f} GB in"
            f" {last_step - first_step} steps, and still grows"
        ),
        look_at=(
            "lists that keep tensors, such as losses that are collected with their graph, and"
            " caches without a limit"
        ),
    )
