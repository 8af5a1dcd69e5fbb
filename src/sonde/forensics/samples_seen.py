"""The samples of a step beside those of the corpus: how far each loss is above samples of its length, and what its text looks like.

Pure decisions over numbers and texts; `Evidence` brings them together. A sample's `tail` is the answer to "how often would a batch like this have one
so far out?", as a power of ten, from the tail of the samples it is compared with: what is usual in a rough corpus is no alarm there.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, final

import numpy as np
from numpy.typing import NDArray

from sonde.forensics.losses import SampleLoss
from sonde.forensics.seams import Row
from sonde.spikes.length_model import LengthModel
from sonde.texts.signs import Sign

_TAIL_FROM: Final = 0.95
"""The tail of the reference begins where so much of it lies below,"""
_LEAST_SLOPE: Final = 0.4
"""and falls no faster than by a factor of e in so many deviations."""
_LARGEST_TAIL: Final = 12.0
_ALIKE: Final = 0.5
"""Samples of a batch may be alike: several of them far out say less than their number would."""
_MORE_BY_BITS: Final = 1.0
_LONG_TAIL: Final = 0.5
_LARGEST_Z: Final = 1000.0


@final
@dataclass(frozen=True, slots=True)
class Matched:
    """A number of many samples against their length, and the tail of it."""

    model: LengthModel
    """What is usual for a length."""
    start: float
    """Where the tail of z begins,"""
    slope: float
    """and how slowly it falls."""

    def tail(self, z: float, num_rows: int) -> float:
        """How rare it is that one of so many samples is so far out, as a negative power of ten; 0 and below is no surprise."""
        if not math.isfinite(z):
            return _LARGEST_TAIL
        rarity = -math.log10((1 - _TAIL_FROM) * max(num_rows, 1))
        if z <= self.start:
            return min(rarity, 0.0)  # not even in the tail
        return min((z - self.start) / self.slope / math.log(10) + rarity, _LARGEST_TAIL)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """Samples that stand for usual ones, at the state of the step."""

    losses: Matched
    """Loss per token."""
    bits: Matched | None
    """Bits per character; None without text."""

    def rarities(self, samples: Sequence[SampleLoss]) -> list[float]:
        """How rare the losses of some samples are, each by itself."""
        return [self.losses.tail(one, 1) for one in self.losses_z(samples)]

    def losses_z(self, samples: Sequence[SampleLoss]) -> list[float]:
        """How far the losses of some samples are above usual ones of their lengths."""
        found: list[float] = self.losses.model.z(*_numbers(samples)).tolist()
        return [one for one in found if math.isfinite(one)]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SeenSample:
    """One sample of the step."""

    row: Row
    """Its tokens."""
    sample: SampleLoss
    """Its loss."""
    rank: int
    """The rank that had it."""
    z: float
    """Deviations above samples of its length; infinite when the loss is not finite."""
    bits_z: float
    """The same for bits per character; NaN without text."""
    bits: float
    """Bits per character; NaN without text."""
    tail: float
    """How rare it is that a batch has a sample so far out: see `Matched.tail`."""
    rarity: float
    """How rare its loss is by itself, as a negative power of ten; 0 when it is not in the tail."""
    excess: float
    """What it adds to the sum of losses, above a usual sample of its length."""
    signs: tuple[Sign, ...] = ()
    """What is odd about its text, strongest first."""
    bits_rarity: float = 0.0
    """How rare its bits per character are, as `rarity` tells it of its loss."""

    @property
    def strangeness(self) -> float:
        """How rare it is: by its loss, and a little more where its bits per character are rarer still; names and capitals take many bits by themselves."""
        return self.rarity + min(max(self.bits_rarity - self.rarity, 0.0), _MORE_BY_BITS) if self.rarity > 0 else 0.0


def surprise(rarities: Sequence[float], num_rows: int) -> float:
    """How rare it is that a batch of so many has samples whose losses are so rare, one or several, as a negative power of ten; 0 for no surprise."""
    rarest = sorted((one for one in rarities if one > 0), reverse=True)
    found = max(rarest[0] - math.log10(max(num_rows, 1)), 0.0) if rarest else 0.0
    for num, rarity in enumerate(rarest[1:], 2):
        found = max(found, _ALIKE * rarity_of(num, num_rows * 10.0**-rarity))
    return found


def rarity_of(num: int, expected: float) -> float:
    """How rare it is to see so many, or more, where so many are expected, as a negative power of ten."""
    fewer = sum(math.exp(-expected) * expected**count / math.factorial(count) for count in range(num))
    return -math.log10(max(1 - fewer, 10.0**-_LARGEST_TAIL))


def make_reference(samples: Sequence[SampleLoss], num_characters: Sequence[int] | None) -> Reference:
    """The reference made of these samples; with the characters of their texts, where there are any."""
    lengths, losses = _numbers(samples)
    bits = None if num_characters is None else _matched(lengths, bits_per_character(samples, num_characters))
    return Reference(losses=_matched(lengths, losses), bits=bits)


def _matched(lengths: NDArray[np.int64], values: NDArray[np.float64]) -> Matched:
    model = LengthModel.fit(lengths, values)
    z = model.z(lengths, values)
    z = z[np.isfinite(z)]
    start = float(np.quantile(z, _TAIL_FROM)) if len(z) else 3.0
    beyond = z[z > start] - start
    # A handful says little about a tail: as if one deviation had been seen a few times more.
    slope = (float(beyond.sum()) + 5.0) / (len(beyond) + 5)
    return Matched(model, start, max(slope, _LEAST_SLOPE))


def see(
    samples: Sequence[SampleLoss],
    rows: Sequence[Row],
    ranks: Sequence[int],
    reference: Reference,
    num_characters: Sequence[int] | None,
) -> list[SeenSample]:
    """The samples of a step beside the reference, in their order; `rows` and `ranks` stand beside them."""
    lengths, losses = _numbers(samples)
    z = reference.losses.model.z(lengths, losses)
    above = losses - reference.losses.model.expected(lengths, len(losses))
    bits = np.full(len(samples), math.nan)
    bits_z = bits
    if num_characters is not None and reference.bits is not None:
        bits = bits_per_character(samples, num_characters)
        bits_z = reference.bits.model.z(lengths, bits)
    found = []
    for place, (sample, row, rank) in enumerate(zip(samples, rows, ranks, strict=True)):
        own_z = float(z[place]) if math.isfinite(float(losses[place])) else math.inf
        tail, bits_rarity = reference.losses.tail(own_z, len(samples)), 0.0
        if reference.bits is not None and math.isfinite(float(bits_z[place])):
            # Capitals and names take more tokens; that alone does not make them far out.
            tail = max(tail, min(reference.bits.tail(float(bits_z[place]), len(samples)), _LONG_TAIL))
            bits_rarity = reference.bits.tail(float(bits_z[place]), 1)
        found.append(
            SeenSample(
                row=row,
                sample=sample,
                rank=rank,
                z=min(own_z, _LARGEST_Z) if math.isfinite(own_z) else own_z,
                bits_z=float(bits_z[place]),
                bits=float(bits[place]),
                tail=tail,
                rarity=reference.losses.tail(own_z, 1),
                bits_rarity=bits_rarity,
                excess=float(above[place]) * (sample.num_tokens or 1),
            )
        )
    return found


def bits_per_character(samples: Sequence[SampleLoss], num_characters: Sequence[int]) -> NDArray[np.float64]:
    """What each sample costs a character."""
    lengths, losses = _numbers(samples)
    found: NDArray[np.float64] = losses * lengths / math.log(2) / np.maximum(np.asarray(num_characters, np.float64), 1)
    return found


def _numbers(samples: Sequence[SampleLoss]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    lengths = np.array([one.num_tokens or 1 for one in samples], np.int64)
    losses = np.array([math.nan if one.loss is None else one.loss for one in samples], np.float64)
    return lengths, losses
