"""What samples of a length usually lose, as a running and robust model; and how far above that a sample is.

    z = (loss - level - center[length]) / scale[length]

`level` follows the loss as training goes on, within a few steps. `center` and `scale` are curves over the logarithm of the length, in bins of
a quarter of an octave: medians and upper deviations of the last 2,048 good samples, smoothed over neighbouring bins where they have seen few. Short samples
vary more than long ones; the curve of the scale says how much. Losses are means per token. Where lengths are not known, all samples count as equally long.

A few wild samples change nothing, and nothing is learnt from what is not finite. Memory is constant, and `state_dict` resumes to the bit.
`LengthModel.fit` makes a model of arrays, for a batch or a file at rest. Pure numpy.
"""

import base64
import math
from collections.abc import Mapping
from typing import Any, Final, TypeAlias, final

import numpy as np
from numpy.typing import NDArray

Numbers: TypeAlias = NDArray[np.floating[Any]]
Counts: TypeAlias = NDArray[np.integer[Any]]
Bins: TypeAlias = NDArray[np.intp]

_LONGEST: Final = 1 << 16
"""Longer samples count as this long."""
_BIN_OF: Final[Bins] = np.floor(4 * np.log2(np.maximum(np.arange(_LONGEST + 1), 1))).astype(np.intp)
_NUM_BINS: Final = int(_BIN_OF[-1]) + 1
_END_OF_BIN: Final = np.searchsorted(_BIN_OF, np.arange(_NUM_BINS), "right")
_EVERY_BIN: Final = np.arange(_NUM_BINS)
_RING: Final = 2048
"""Samples that the curves are fitted to."""
_FIRST_FIT: Final = 64
"""Samples before the first fit."""
_READY: Final = 1024
"""Samples before anything is judged."""
_FIT_EVERY: Final = 256
"""Steps between two fits; fewer in the beginning."""
_MIN_IN_GROUP: Final = 8
"""Bins with fewer samples than this, about, are taken together with their neighbours."""
_LEAST_SHARE: Final = 0.25
"""No bin's deviation is less than this share of the mean over all."""
_LEAST_OF_START: Final = 0.03
"""Nor than this share of the first loss: where nearly all samples are known by heart, small differences are no news."""
_FOLLOW: Final = 0.2
"""How much of a step's deviation the level follows,"""
_FOLLOW_TREND: Final = 0.005
"""and how much of it its fall or rise by the step does."""
_UPPER: Final = 0.8413
"""The share of a normal law that is below one deviation."""
_NEIGHBOURHOOD: Final = 3.0
"""Bins within about this distance are alike."""
_STRIDE: Final = 4096.0
"""Apart by this, the values of several bins are sorted in one go,"""
_LARGEST: Final = 1000.0
"""which needs that none is larger."""


@final
class LengthModel:
    """Loss against length. `z`, `follow` and `learn` once a step; or `fit` once, and `z` as often as you like."""

    def __init__(self) -> None:
        self.num_samples = 0
        """Samples learnt from so far,"""
        self._num_kept = 0  # of them through the ring so far,
        self._num_fresh = 0  # and since the last fit
        self._num_steps = 0
        self._next_fit = 0
        self.level = math.nan
        """The loss of now, about; NaN before the first step."""
        self._least_scale = 0.0
        self._trend = 0.0
        self._center = np.zeros(_NUM_BINS)
        self._scale = np.ones(_NUM_BINS)
        self._usual_scale = 1.0
        # By length: what a loss above the level is multiplied with, and what then comes off.
        self._factors, self._offsets = np.ones(1), np.zeros(1)
        self._listed_factors, self._listed_offsets = [1.0], [0.0]
        self._levels = np.zeros(0)
        self._new: list[tuple[Counts | list[int] | None, NDArray[np.float64] | list[float]]] = []
        self._ring_bins = np.zeros(_RING, np.uint8)
        self._ring_z = np.zeros(_RING, np.float32)

    @classmethod
    def fit(cls, lengths: Counts | None, losses: Numbers) -> "LengthModel":
        """The model of samples at rest: all of them together, whatever their order."""
        losses = np.asarray(losses, np.float64)
        model = cls()
        finite = np.isfinite(losses)
        if finite.any():
            model.level = float(np.median(losses[finite]))
            model._fit_curves(_bins_of(lengths, len(losses))[finite], np.subtract(losses[finite], model.level))
            model.num_samples = int(finite.sum())
        return model

    @property
    def is_ready(self) -> bool:
        """Has it seen enough to judge?"""
        return self.num_samples >= _READY

    def expected(self, lengths: Counts | None, number: int) -> NDArray[np.float64]:
        """What `number` samples of these lengths lose now."""
        expected: NDArray[np.float64] = self._center[_bins_of(lengths, number)] + self.level
        return expected

    def scale(self, lengths: Counts | None, number: int) -> NDArray[np.float64]:
        """The deviation of `number` samples of these lengths."""
        scale: NDArray[np.float64] = self._scale[_bins_of(lengths, number)]
        return scale

    def z(self, lengths: Counts | None, losses: Numbers) -> NDArray[np.float64]:
        """How many deviations each loss is above what samples of its length lose now. The first step sets the level."""
        if self.level != self.level:
            finite = losses[np.isfinite(losses)]
            self.level = float(np.median(finite)) if len(finite) else math.nan
            self._least_scale = _LEAST_OF_START * abs(self.level) if len(finite) else 0.0
        levels = self._levels
        if len(levels) != len(losses):  # arrays of one size are subtracted in a quarter of the time that a number is
            levels = self._levels = np.empty(len(losses))
        levels.fill(self.level)
        z: NDArray[np.float64] = losses.astype(np.float64)
        z -= levels
        if lengths is None:
            lengths = np.zeros(len(losses), np.intp)
        # Samples longer than what was seen lie where the curves do not change any more.
        z *= self._factors.take(lengths, mode="clip")
        z -= self._offsets.take(lengths, mode="clip")
        return z

    def z_of_few(self, lengths: list[int] | None, losses: list[float]) -> list[float]:
        """The same of lists: between two steps of a training, every call of numpy costs as much as ten samples do here."""
        level, factors, offsets = self.level, self._listed_factors, self._listed_offsets
        if level == level:
            if lengths is None:
                factor, offset = factors[0], offsets[0]
                return [(loss - level) * factor - offset for loss in losses]
            if max(lengths) < len(factors):
                return [
                    (loss - level) * factors[length] - offsets[length]
                    for loss, length in zip(losses, lengths, strict=True)
                ]
        z: list[float] = self.z(None if lengths is None else np.array(lengths), np.array(losses)).tolist()
        return z

    def follow(self, mean_z: float) -> None:
        """Let the level follow a step whose samples have this mean z; and its fall, so that it does not lag behind."""
        deviation = mean_z * self._usual_scale
        self._trend += _FOLLOW_TREND * deviation
        self.level += _FOLLOW * deviation + self._trend

    def learn(
        self, lengths: Counts | list[int] | None, z: NDArray[np.float64] | list[float]
    ) -> NDArray[np.float64] | None:
        """Take in good samples. When the curves were fitted anew: the z of those that came since the last time, as far as kept.

        The arrays are kept until then: nobody may write to them.
        """
        number = len(z)
        self.num_samples += number
        self._num_steps += 1
        to_go = self._next_fit - self._num_steps
        if to_go * number < _RING:  # what later steps will push out of the ring need not go in
            self._new.append((lengths, z))
        if to_go > 0 or self.num_samples < _FIRST_FIT:
            return None
        return self._fit_again()

    def _fill_ring(self) -> None:
        """Put what came since the last time into the ring: once in many steps, since every call of numpy costs."""
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
        learnt, bins = z[fresh], self._ring_bins[:filled].astype(np.intp)
        values = z * self._scale[bins] + self._center[bins]
        self._fit_curves(bins, values)
        # The ring keeps z, so what is in it is told by the new curves from now on.
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
        self._center, self._scale = center, scale
        changes = np.flatnonzero((np.diff(center) != 0) | (np.diff(scale) != 0))
        bins = _BIN_OF[: _END_OF_BIN[changes[-1] + 1] if len(changes) else 1]
        self._factors, self._offsets = (1 / scale)[bins], (center / scale)[bins]
        self._listed_factors, self._listed_offsets = self._factors.tolist(), self._offsets.tolist()

    def state_dict(self) -> dict[str, Any]:
        """Everything it knows, as plain data: 15 kB."""
        self._fill_ring()
        return {
            "counts": [self.num_samples, self._num_steps, self._next_fit, self._num_fresh, self._num_kept],
            "level": self.level,
            "least_scale": self._least_scale,
            "trend": self._trend,
            "usual_scale": self._usual_scale,
            "center": packed(self._center),
            "scale": packed(self._scale),
            "ring_bins": packed(self._ring_bins),
            "ring_z": packed(self._ring_z),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Back from `state_dict`: goes on as if nothing had been interrupted."""
        counts = [*map(int, state["counts"])]
        # Earlier versions kept every sample.
        self.num_samples, self._num_steps, self._next_fit, self._num_fresh, self._num_kept = [*counts, counts[0]][:5]
        self.level = float(state["level"])
        self._least_scale = float(state.get("least_scale", 0.0))
        self._trend = float(state["trend"])
        self._usual_scale = float(state["usual_scale"])
        center, scale = (unpacked(state[name], np.float64, _NUM_BINS) for name in ("center", "scale"))
        self._set_curves(center, scale)
        self._new.clear()
        self._ring_bins = unpacked(state["ring_bins"], np.uint8, _RING)
        self._ring_z = unpacked(state["ring_z"], np.float32, _RING)


def _bins_of(lengths: Counts | list[int] | None, number: int) -> Bins:
    """The bin of each length; all the same where lengths are not known."""
    return np.zeros(number, np.intp) if lengths is None else _BIN_OF.take(lengths, mode="clip")


def _curves(bins: Bins, values: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Center and scale for every bin: the samples' median and upper deviation, smoothed where they are few."""
    counts = np.bincount(bins, minlength=_NUM_BINS)
    # Neighbouring bins with few samples are one group.
    group_of = (np.cumsum(counts) - counts) // _MIN_IN_GROUP
    groups, first = np.unique(group_of[counts > 0], return_index=True)
    seen = np.flatnonzero(counts)
    number = np.add.reduceat(counts[seen], first)
    places = np.add.reduceat(counts[seen] * seen, first) / number
    # One sort for all groups: each has its own stretch of the axis.
    offset = np.arange(len(groups)) * _STRIDE
    stretch = np.searchsorted(groups, group_of) * _STRIDE
    ordered = np.sort(stretch[bins] + np.clip(values, -_LARGEST, _LARGEST))
    start = np.cumsum(number) - number
    medians = _quantile(ordered, start, number, 0.5) - offset
    deviations = _quantile(ordered, start, number, _UPPER) - offset - medians
    # A few samples that happen to agree are no certainty.
    deviations = np.maximum(deviations, max(_LEAST_SHARE * float(number @ deviations) / float(number.sum()), 1e-9))
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
    return low + (place - below) * (high - low)  # type: ignore[no-any-return]  # numpy's stubs lose the type


def _smoothed(
    places: NDArray[np.float64], values: NDArray[np.float64], number: NDArray[np.int64], strength: float
) -> NDArray[np.float64]:
    """Values between what they are and the mean of their neighbourhood: the more samples, the nearer to what they are."""
    weights = np.exp(-(((places[:, None] - places) / _NEIGHBOURHOOD) ** 2)) * number
    around = weights @ values / weights.sum(1)
    smoothed: NDArray[np.float64] = around + number / (number + strength) * (values - around)
    return smoothed


def packed(array: NDArray[Any]) -> str:
    """An array as text, to the bit."""
    return base64.b64encode(array.tobytes()).decode()


def unpacked(text: str, dtype: Any, number: int) -> NDArray[Any]:
    """Back from text. ValueError when it has another size."""
    array: NDArray[Any] = np.frombuffer(base64.b64decode(text), dtype).copy()
    if len(array) != number:
        raise ValueError(f"{len(array)} numbers instead of {number}")
    return array
