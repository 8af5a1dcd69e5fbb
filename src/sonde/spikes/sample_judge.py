"""Judge the single samples of a step by their losses, or by their bits per character where no loss
stands out and characters can be counted; and their mean, adjusted for their lengths.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sonde.spikes.bits_watch import BitsWatch
from sonde.spikes.detectors import Event
from sonde.spikes.held_values import are_few
from sonde.spikes.sample_watch import SampleEvent, SampleWatch
from sonde.spikes.step_entry import StepEntry

CountCharacters: TypeAlias = Callable[[StepEntry, Sequence[int]], Sequence[int] | None]
"""Counts the characters of some rows of a step; None if it cannot."""


class SamplesJudged(NamedTuple):
    """What was found in the samples of a step."""

    z: NDArray[np.float64] | list[float]
    """How far each loss is above samples of its length, in deviations."""
    outliers: SampleEvent | None
    """The samples that stand out."""
    begun: Event | None
    """The event of their mean that begins with this step."""


class SampleJudge:
    """Judges the samples of one rank."""

    def __init__(self, risk: float, characters: CountCharacters | None) -> None:
        """`risk` is the probability per sample that noise alone makes it an outlier."""
        self._losses = SampleWatch(risk)
        self._bits = None if characters is None else BitsWatch(risk)
        self._characters = characters

    def judge(self, entry: StepEntry) -> SamplesJudged:
        """Judge the samples of a step, whose losses have arrived."""
        losses = entry.sample_losses
        counts = entry.token_counts
        if not (are_few(losses, float) and (counts is None or are_few(counts, int))):
            losses = np.asarray(losses)
            counts = None if counts is None else np.asarray(counts)
        z, outliers, begun = self._losses.observe(entry.step, losses, counts)
        if outliers is None and self._bits is not None and counts is not None:
            outliers = self._judge_bits(self._bits, entry, z, losses, counts)
        return SamplesJudged(z, outliers, begun)

    @property
    def open_event(self) -> Event | None:
        """The event of the mean that goes on, if any."""
        return self._losses.mean.open

    def _judge_bits(
        self, bits: BitsWatch, entry: StepEntry, z: Any, losses: Any, counts: Any
    ) -> SampleEvent | None:
        """Judge the bits per character of a few samples of a step."""
        assert self._characters is not None
        rows = bits.rows_wanted(entry.step, z)
        characters = self._characters(entry, rows) if rows else None
        if characters is None:
            return None
        lengths = [int(counts[row]) for row in rows]
        expected = self._losses.model.expected(np.asarray(lengths), len(rows))
        return bits.observe(
            entry.step,
            rows,
            losses=[float(losses[row]) for row in rows],
            lengths=lengths,
            characters=characters,
            expected=expected.tolist(),
        )

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the watches as plain data."""
        return {
            "watch": self._losses.state_dict(),
            "bits": None if self._bits is None else self._bits.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore from `state_dict`. A state from before bits were watched has none."""
        self._losses.load_state_dict(state["watch"])
        if self._bits is not None and state.get("bits") is not None:
            self._bits.load_state_dict(state["bits"])
