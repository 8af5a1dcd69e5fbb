"""A running, robust model of the loss by sample length, and how far a sample is above it.

    z = (loss - level - center[length]) / scale[length]

`level` follows the loss during training, within a few steps. `center` and `scale` are curves over
the logarithm of the length, in bins of a quarter octave: medians and upper deviations of the last
2,048 good samples, smoothed over neighboring bins where there are few. Short samples vary more than
long ones, which the scale curve captures. Losses are means per token. If lengths are unknown, all
samples count as equally long.

A few extreme samples change nothing, and non-finite values are ignored. Memory is constant, and
`state_dict` resumes bit for bit. `LengthModel.fit` fits a model to arrays, for a single batch or
file. Pure numpy.
"""

import base64
import math
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.floating[Any]]
Counts: TypeAlias = NDArray[np.integer[Any]]
Bins: TypeAlias = NDArray[np.intp]

_LONGEST: Final = 1 << 16
"""Longer samples are treated as this long."""
_BIN_OF: Final[Bins] = np.floor(4 * np.log2(np.maximum(np.arange(_LONGEST + 1), 1))).astype(np.intp)
_NUM_BINS: Final = int(_BIN_OF[-1]) + 1
_END_OF_BIN: Final = np.searchsorted(_BIN_OF, np.arange(_NUM_BINS), "right")
_EVERY_BIN: Final = np.arange(_NUM_BINS)
_RING: Final = 2048
"""The number of samples that the curves are fitted to."""
_FIRST_FIT: Final = 64
"""The number of samples before the first fit."""
_READY: Final = 1024
"""The number of samples before anything is judged."""
_FIT_EVERY: Final = 256
"""The number of steps between two fits; fewer at the beginning."""
_MIN_IN_GROUP: Final = 8
"""Bins with fewer samples than about this are merged with their neighbors."""
_LEAST_SHARE: Final = 0.25
"""The minimum deviation of a bin, as a fraction of the mean over all bins."""
_LEAST_OF_START: Final = 0.03
"""The minimum deviation as a fraction of the first loss: when nearly all samples are memorized,
small differences mean nothing.
"""
_FOLLOW: Final = 0.2
"""The fraction of a step's deviation by which the level moves."""
_FOLLOW_TREND: Final = 0.005
"""The fraction of a step's deviation by which the trend of the level moves."""
_UPPER: Final = 0.8413
"""The fraction of a normal distribution below one deviation."""
_NEIGHBOURHOOD: Final = 3.0
"""Bins within about this distance are similar."""
_STRIDE: Final = 4096.0
"""The offset between bins, so that the values of several bins can be sorted at once."""
_LARGEST: Final = 1000.0
"""The largest allowed value, as required by `_STRIDE`."""


class LengthModel:
    """A model of loss by length. Call `z`, `follow` and `learn` once per step; or `fit` once and
    then `z`.
    """

    def __init__(self) -> None:
        self.num_samples = 0
        """The number of samples learned from so far."""
        self._num_kept = 0  # of them added to the ring so far
        self._num_fresh = 0  # and since the last fit
        self._num_steps = 0
        self._next_fit = 0
        self.level = math.nan
        """The approximate current loss; NaN before the first step."""
        self._least_scale = 0.0
        self._trend = 0.0
        self._center = np.zeros(_NUM_BINS)
        self._scale = np.ones(_NUM_BINS)
        self._usual_scale = 1.0
        # By length: the factor for a loss above the level, and the offset subtracted afterwards.
        self._factors = np.ones(1)
        self._offsets = np.zeros(1)
        self._listed_factors = [1.0]
        self._listed_offsets = [0.0]
        self._new: list[tuple[Counts | list[int] | None, NDArray[np.float64] | list[float]]] = []
        self._ring_bins = np.zeros(_RING, np.uint8)
        self._ring_z = np.zeros(_RING, np.float32)

    @classmethod
    def fit(cls, lengths: Counts | None, losses: Numbers) -> "LengthModel":
        """Fit a model to a fixed set of samples; their order does not matter."""
        losses = np.asarray(losses, np.float64)
        model = cls()
        finite = np.isfinite(losses)
        if finite.any():
            model.level = float(np.median(losses[finite]))
            model._fit_curves(
                _bins_of(lengths, len(losses))[finite], np.subtract(losses[finite], model.level)
            )
            model.num_samples = int(finite.sum())
        return model

    @property
    def is_ready(self) -> bool:
        """Whether it has seen enough samples to judge."""
        return self.num_samples >= _READY

    def expected(self, lengths: Counts | None, number: int) -> NDArray[np.float64]:
        """Return the expected losses of `number` samples with these lengths."""
        expected: NDArray[np.float64] = self._center[_bins_of(lengths, number)] + self.level
        return expected

    def scale(self, lengths: Counts | None, number: int) -> NDArray[np.float64]:
        """Return the deviations of `number` samples with these lengths."""
        scale: NDArray[np.float64] = self._scale[_bins_of(lengths, number)]
        return scale

    def z(self, lengths: Counts | None, losses: Numbers) -> NDArray[np.float64]:
        """Return how many deviations each loss is above that of samples of its length. The first
        step sets the level.
        """
        if self.level != self.level:
            finite = losses[np.isfinite(losses)]
            self.level = float(np.median(finite)) if len(finite) else math.nan
            self._least_scale = _LEAST_OF_START * abs(self.level) if len(finite) else 0.0
        z: NDArray[np.float64] = np.subtract(losses, self.level, dtype=np.float64)
        if lengths is None:
            lengths = np.zeros(len(losses), np.intp)
        # Lengths beyond those seen are clipped: the curves are constant there.
        z *= self._factors.take(lengths, mode="clip")
        z -= self._offsets.take(lengths, mode="clip")
        return z

    def z_of_few(self, lengths: list[int] | None, losses: list[float]) -> list[float]:
        """Like `z`, but for short lists: here every numpy call costs as much as ten samples."""
        level = self.level
        factors = self._listed_factors
        offsets = self._listed_offsets
        if level == level:
            if lengths is None:
                factor = factors[0]
                offset = offsets[0]
                return [(loss - level) * factor - offset for loss in losses]
            if max(lengths) < len(factors):
                return [
                    (loss - level) * factors[length] - offsets[length]
                    for loss, length in zip(losses, lengths, strict=True)
                ]
        z: list[float] = self.z(
            None if lengths is None else np.array(lengths), np.array(losses)
        ).tolist()
        return z

    def follow(self, mean_z: float) -> None:
        """Move the level, and its trend, towards a step whose samples have this mean z, so that it
        does not lag behind.
        """
        deviation = mean_z * self._usual_scale
        self._trend += _FOLLOW_TREND * deviation
        self.level += _FOLLOW * deviation + self._trend

    def learn(
        self, lengths: Counts | list[int] | None, z: NDArray[np.float64] | list[float]
    ) -> NDArray[np.float64] | None:
        """Learn from good samples. After a new fit, return the z of the samples since the last one,
        as far as they were kept.

        The arrays are kept until then and must not be modified.
        """
        number = len(z)
        self.num_samples += number
        self._num_steps += 1
        to_go = self._next_fit - self._num_steps
        # samples that later steps would push out of the ring need not be added
        if to_go * number < _RING:
            self._new.append((lengths, z))
        if to_go > 0 or self.num_samples < _FIRST_FIT:
            return None
        return self._fit_again()

    def _fill_ring(self) -> None:
        """Add the samples since the last call to the ring; done rarely, because numpy calls are
        expensive.
        """
        if self._new:
            bins = np.concatenate([_bins_of(lengths, len(z)) for lengths, z in self._new])[-_RING:]
            z = np.concatenate([z for _, z in self._new])[-_RING:]
            places = np.arange(self._num_kept, self._num_kept + len(z)) % _RING
            self._ring_bins[places] = bins
            self._ring_z[places] = z
            self._num_kept += len(z)
            self._num_fresh += len(z)
            self._new.clear()

    def _fit_again(self) -> NDArray[np.float64]:
        self._fill_ring()
        filled = min(self._num_kept, _RING)
        fresh = np.arange(self._num_kept - min(self._num_fresh, filled), self._num_kept) % _RING
        z = self._ring_z[:filled].astype(np.float64)
        learnt = z[fresh]
        bins = self._ring_bins[:filled].astype(np.intp)
        values = z * self._scale[bins] + self._center[bins]
        self._fit_curves(bins, values)
        # The ring stores z, so convert its values to the new curves.
        self._ring_z[:filled] = (values - self._center[bins]) / self._scale[bins]
        self._num_fresh = 0
        self._next_fit = self._num_steps + min(_FIT_EVERY, max(self._num_steps // 4, 4))
        return learnt

    def _fit_curves(self, bins: Bins, values: NDArray[np.float64]) -> None:
        center, scale = _curves(bins, values)
        scale = np.maximum(scale, max(1e-3 * abs(self.level), self._least_scale, 1e-6))
        self._usual_scale = float(np.mean(scale[bins]))
        self._set_curves(center, scale)

    def _set_curves(self, center: NDArray[np.float64], scale: NDArray[np.float64]) -> None:
        self._center = center
        self._scale = scale
        changes = np.flatnonzero((np.diff(center) != 0) | (np.diff(scale) != 0))
        bins = _BIN_OF[: _END_OF_BIN[changes[-1] + 1] if len(changes) else 1]
        self._factors = (1 / scale)[bins]
        self._offsets = (center / scale)[bins]
        self._listed_factors = self._factors.tolist()
        self._listed_offsets = self._offsets.tolist()

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as plain data (15 kB)."""
        self._fill_ring()
        return {
            "counts": [
                self.num_samples,
                self._num_steps,
                self._next_fit,
                self._num_fresh,
                self._num_kept,
            ],
            "level": self.level,
            "least_scale": self._least_scale,
            "trend": self._trend,
            "usual_scale": self._usual_scale,
            **{
                name: packed(getattr(self, f"_{name}"))
                for name in ("center", "scale", "ring_bins", "ring_z")
            },
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore from `state_dict` and continue exactly where it was saved."""
        counts = [*map(int, state["counts"])]
        # Earlier versions kept every sample.
        self.num_samples, self._num_steps, self._next_fit, self._num_fresh, self._num_kept = [
            *counts,
            counts[0],
        ][:5]
        self.level = float(state["level"])
        self._least_scale = float(state.get("least_scale", 0.0))
        self._trend = float(state["trend"])
        self._usual_scale = float(state["usual_scale"])
        center, scale = (
            unpacked(state[name], np.float64, _NUM_BINS) for name in ("center", "scale")
        )
        self._set_curves(center, scale)
        self._new.clear()
        self._ring_bins = unpacked(state["ring_bins"], np.uint8, _RING)
        self._ring_z = unpacked(state["ring_z"], np.float32, _RING)


def _bins_of(lengths: Counts | list[int] | None, number: int) -> Bins:
    """Return the bin of each length; all the same if lengths are unknown."""
    return np.zeros(number, np.intp) if lengths is None else _BIN_OF.take(lengths, mode="clip")


def _curves(
    bins: Bins, values: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the center and scale of every bin: the median and upper deviation of its samples,
    smoothed where there are few.
    """
    counts = np.bincount(bins, minlength=_NUM_BINS)
    # Neighboring bins with few samples form one group.
    group_of = (np.cumsum(counts) - counts) // _MIN_IN_GROUP
    groups, first = np.unique(group_of[counts > 0], return_index=True)
    seen = np.flatnonzero(counts)
    number = np.add.reduceat(counts[seen], first)
    places = np.add.reduceat(counts[seen] * seen, first) / number
    # A single sort for all groups: each has its own range of values.
    offset = np.arange(len(groups)) * _STRIDE
    stretch = np.searchsorted(groups, group_of) * _STRIDE
    ordered = np.sort(stretch[bins] + np.clip(values, -_LARGEST, _LARGEST))
    start = np.cumsum(number) - number
    medians = _quantile(ordered, start, number, 0.5) - offset
    deviations = _quantile(ordered, start, number, _UPPER) - offset - medians
    # A few samples that happen to agree do not make the deviation 0.
    deviations = np.maximum(
        deviations, max(_LEAST_SHARE * float(number @ deviations) / float(number.sum()), 1e-9)
    )
    centers = _smoothed(places, medians, number, 16.0)
    logs = _smoothed(places, np.log(deviations), number, 32.0)
    return np.interp(_EVERY_BIN, places, centers), np.exp(np.interp(_EVERY_BIN, places, logs))


def _quantile(
    ordered: NDArray[np.float64], first: NDArray[np.int64], number: NDArray[np.int64], share: float
) -> NDArray[np.float64]:
    place = (number - 1) * share
    below = place.astype(np.int64)
    low = ordered[first + below]
    high = ordered[first + np.minimum(below + 1, number - 1)]
    # numpy's stubs lose the type
    return low + (place - below) * (high - low)  # type: ignore[no-any-return]


def _smoothed(
    places: NDArray[np.float64],
    values: NDArray[np.float64],
    number: NDArray[np.int64],
    strength: float,
) -> NDArray[np.float64]:
    """Shrink values towards the mean of their neighborhood: the more samples, the less."""
    weights = np.exp(-(((places[:, None] - places) / _NEIGHBOURHOOD) ** 2)) * number
    around = weights @ values / weights.sum(1)
    # as above
    return around + number / (number + strength) * (values - around)  # type: ignore[no-any-return]


def packed(array: NDArray[Any]) -> str:
    """Encode an array as text, bit for bit."""
    return base64.b64encode(array.tobytes()).decode()


def unpacked(text: str, dtype: Any, number: int) -> NDArray[Any]:
    """Decode an array from text. Raises ValueError if its size is wrong."""
    array: NDArray[Any] = np.frombuffer(base64.b64decode(text), dtype).copy()
    if len(array) != number:
        raise ValueError(f"{len(array)} numbers instead of {number}")
    return array
