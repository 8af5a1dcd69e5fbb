"""Compare the samples of a step with the corpus: how far each loss is above samples of its length,
and the signs of its text.

Pure functions over numbers and texts, used by `Evidence`. A sample's `tail` answers "how often
would a batch like this contain a sample this far out?" as a power of ten, from the tail of the
samples it is compared with. What is usual in a rough corpus is therefore no alarm there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.forensics.seams import Row, SampleLoss
from sonde.spikes.length_model import LengthModel
from sonde.texts.signs import Sign

_TAIL_FROM: Final = 0.95
"""The tail of the reference begins at this quantile."""
_LEAST_SLOPE: Final = 0.4
"""The minimum scale of the tail, in deviations per factor of e."""
_LARGEST_TAIL: Final = 12.0
_ALIKE: Final = 0.5
"""Samples of a batch may be similar, so several outliers count for less than their number."""
_LONG_TAIL: Final = 0.5
_LARGEST_Z: Final = 1000.0


class Matched:
    """A statistic of samples relative to their length, and its tail."""

    def __init__(self, lengths: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        self.model = LengthModel.fit(lengths, values)
        """The usual value by length."""
        z = self.model.z(lengths, values)
        z = z[np.isfinite(z)]
        self.start = float(np.quantile(z, _TAIL_FROM)) if len(z) else 3.0
        """The z at which the tail begins."""
        beyond = z[z > self.start] - self.start
        # Few samples say little about a tail, so add a prior of five samples with a slope of one
        # deviation.
        self.slope = max((float(beyond.sum()) + 5.0) / (len(beyond) + 5), _LEAST_SLOPE)
        """The scale of the tail: how slowly it falls."""

    def tail(self, z: float, num_rows: int) -> float:
        """Return how rare it is that one of `num_rows` samples is this far out, as a negative power
        of ten; 0 or below is no surprise.
        """
        if not math.isfinite(z):
            return _LARGEST_TAIL
        rarity = -math.log10((1 - _TAIL_FROM) * max(num_rows, 1))
        if z <= self.start:
            return min(rarity, 0.0)  # not in the tail
        return min((z - self.start) / self.slope / math.log(10) + rarity, _LARGEST_TAIL)


class Reference:
    """Samples that represent usual ones, at the state of the step."""

    def __init__(self, samples: Sequence[SampleLoss], num_characters: Sequence[int] | None) -> None:
        """`num_characters` are the lengths of their texts, if there are texts."""
        lengths, losses = _numbers(samples)
        self.losses = Matched(lengths, losses)
        """The loss per token."""
        self.bits = (
            None
            if num_characters is None
            else Matched(lengths, _bits(lengths, losses, num_characters))
        )
        """Bits per character; None without text."""

    def losses_z(self, samples: Sequence[SampleLoss]) -> list[float]:
        """Return how far the losses of samples are above usual ones of their length, in
        deviations.
        """
        deviations: list[float] = self.losses.model.z(*_numbers(samples)).tolist()
        return [deviation for deviation in deviations if math.isfinite(deviation)]


@dataclass(frozen=True, kw_only=True, slots=True)
class SeenSample:
    """One sample of the step."""

    row: Row
    """The sample's name and tokens."""
    sample: SampleLoss
    """The sample's loss."""
    rank: int
    """The rank that had the sample."""
    z: float
    """Deviations of the loss above samples of its length; infinite if the loss is not finite."""
    bits_z: float
    """The same for bits per character; NaN without text."""
    bits: float
    """Bits per character; NaN without text."""
    tail: float
    """How rare it is that a batch has a sample this far out; see `Matched.tail`."""
    rarity: float
    """How rare its loss is by itself, as a negative power of ten; 0 if it is not in the tail."""
    excess: float
    """What it adds to the sum of losses, above a usual sample of its length."""
    signs: tuple[Sign, ...] = ()
    """The signs of its text, strongest first."""
    bits_rarity: float = 0.0
    """How rare its bits per character are; the counterpart of `rarity`."""

    @property
    def strangeness(self) -> float:
        """How rare the sample is by its loss and by its bits per character, on average; by its loss
        without text.
        """
        return self.rarity if math.isnan(self.bits_z) else (self.rarity + self.bits_rarity) / 2


def surprise(rarities: Sequence[float], num_rows: int) -> float:
    """Return how rare such losses are, alone or together, in a batch of `num_rows`, as a negative
    power of ten; 0 for no surprise.
    """
    rarest = sorted((rarity for rarity in rarities if rarity > 0), reverse=True)
    found = max(rarest[0] - math.log10(max(num_rows, 1)), 0.0) if rarest else 0.0
    for num, rarity in enumerate(rarest[1:], 2):
        found = max(found, _ALIKE * rarity_of(num, num_rows * 10.0**-rarity))
    return found


def rarity_of(num: int, expected: float) -> float:
    """Return how rare it is to see at least `num` where `expected` are expected (Poisson), as a
    negative power of ten.
    """
    fewer = sum(
        math.exp(-expected) * expected**count / math.factorial(count) for count in range(num)
    )
    return -math.log10(max(1 - fewer, 10.0**-_LARGEST_TAIL))


def see(
    samples: Sequence[SampleLoss],
    rows: Sequence[Row],
    ranks: Sequence[int],
    reference: Reference,
    num_characters: Sequence[int] | None,
) -> list[SeenSample]:
    """Compare the samples of a step with the reference, in order. `rows` and `ranks` are parallel
    to `samples`.
    """
    lengths, losses = _numbers(samples)
    model = reference.losses.model
    found = []
    all_z = np.where(np.isfinite(losses), model.z(lengths, losses), math.inf).tolist()
    excess = ((losses - model.expected(lengths, len(losses))) * lengths).tolist()
    bits = all_bits_z = np.full(len(samples), math.nan)
    if num_characters is not None and reference.bits is not None:
        bits = _bits(lengths, losses, num_characters)
        all_bits_z = reference.bits.model.z(lengths, bits)
    for place, (z, bits_z) in enumerate(zip(all_z, all_bits_z.tolist(), strict=True)):
        tail = reference.losses.tail(z, len(samples))
        bits_rarity = 0.0
        if reference.bits is not None and math.isfinite(bits_z):
            # Capitals and names take more tokens, which alone does not make them outliers.
            tail = max(tail, min(reference.bits.tail(bits_z, len(samples)), _LONG_TAIL))
            bits_rarity = reference.bits.tail(bits_z, 1)
        found.append(
            SeenSample(
                row=rows[place],
                sample=samples[place],
                rank=ranks[place],
                z=min(z, _LARGEST_Z) if math.isfinite(z) else z,
                bits_z=bits_z,
                bits=float(bits[place]),
                tail=tail,
                rarity=reference.losses.tail(z, 1),
                bits_rarity=bits_rarity,
                excess=excess[place],
            )
        )
    return found


def _bits(
    lengths: NDArray[np.int64], losses: NDArray[np.float64], num_characters: Sequence[int]
) -> NDArray[np.float64]:
    """Return bits per character."""
    return losses * lengths / math.log(2) / np.maximum(num_characters, 1)


def _numbers(samples: Sequence[SampleLoss]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    lengths = np.array([sample.num_tokens or 1 for sample in samples], np.int64)
    losses = np.array(
        [math.nan if sample.loss is None else sample.loss for sample in samples], np.float64
    )
    return lengths, losses
