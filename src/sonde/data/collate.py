"""Samples into one padded batch: a `collate_fn` for any DataLoader.

Rows that come as `Rows` are gathered out of the memory map in a few array operations, whatever their number; samples of any
other dataset are put into that form first.

Cost: 256 rows of 20 tokens in about 0.1 ms (benchmarks/data.py).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, final

import numpy as np
import torch
from numpy.typing import NDArray

from sonde.data.batch import Batch
from sonde.data.samples import NO_SAMPLE, Rows, Sample, Spans, rows_of_samples
from sonde.data.tokenizer import SpecialIds
from sonde.errors import SettingError


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class CollateSettings:
    """How rows become a rectangle."""

    pad: int = 1
    """Id that fills a row up."""
    eos: int = 2
    """First id of the decoder's input."""
    pad_source: Literal["left", "right"] = "left"
    """Side on which a source is filled up."""
    pad_target: Literal["left", "right"] = "right"
    """Side on which a target is filled up."""
    pad_to_multiple: int = 1
    """Widths are rounded up to a multiple of this."""
    has_source: bool = True
    """Whether an empty batch has a source; other batches show it themselves."""

    def __post_init__(self) -> None:
        for name in ("pad_source", "pad_target"):
            if getattr(self, name) not in ("left", "right"):
                raise SettingError(f"{name} must be 'left' or 'right', not {getattr(self, name)!r}")
        if self.pad_to_multiple < 1:
            raise SettingError(f"pad_to_multiple must be at least 1, not {self.pad_to_multiple}")


def collate_settings(specials: SpecialIds, *, has_source: bool = True) -> CollateSettings:
    """Settings with the ids of a tokenizer."""
    return CollateSettings(pad=specials.pad, eos=specials.eos, has_source=has_source)


class _Side(NamedTuple):
    """All rows of one side, one after the other."""

    flat: NDArray[np.int64]
    lengths: NDArray[np.int64]


@final
class Collater:
    """Turns samples into a `Batch`. No samples make an empty batch: one row of one `eos`, weight zero."""

    def __init__(self, settings: CollateSettings | None = None) -> None:
        self.settings = settings or CollateSettings()
        """How."""

    def __call__(self, samples: Sequence[Any]) -> Batch:
        """The batch of these samples, rows in their order."""
        if not len(samples):
            return self._empty()
        settings = self.settings
        rows = samples if isinstance(samples, Rows) else rows_of_samples(samples)
        target = _read(rows, [group.target for group in rows.groups])
        padded = self._pad(target, settings.pad_target)
        source = None
        sources = [group.source for group in rows.groups if group.source is not None]
        if sources:
            source = _read(rows, sources)
        return Batch(
            target=torch.from_numpy(padded),
            target_lengths=torch.from_numpy(target.lengths),
            decoder_input=torch.from_numpy(self._shift(padded, target.lengths)),
            source=None if source is None else torch.from_numpy(self._pad(source, settings.pad_source)),
            source_lengths=None if source is None else torch.from_numpy(source.lengths),
            weights=torch.from_numpy(rows.weights.copy()),
            ntokens=int(target.lengths[rows.weights != 0].sum()),
            names=rows.names,
            dataset_of_row=rows.dataset_of_row,
            sample_ids=rows.sample_ids,
        )

    def _pad(self, side: _Side, where: str) -> NDArray[np.int64]:
        settings = self.settings
        width = max(1, int(side.lengths.max()))
        width = -(-width // settings.pad_to_multiple) * settings.pad_to_multiple
        padded = np.full((len(side.lengths), width), settings.pad, np.int64)
        column = np.arange(width)
        lengths = side.lengths[:, None]
        padded[column < lengths if where == "right" else column >= width - lengths] = side.flat
        return padded

    def _shift(self, padded: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Every row one to the right: `eos` comes in where it begins, its last id goes."""
        settings = self.settings
        num_rows, width = padded.shape
        shifted = np.empty_like(padded)
        shifted[:, 1:] = padded[:, :-1]
        if settings.pad_target == "right":
            shifted[:, 0] = settings.eos
            rows, places, value = np.arange(num_rows), lengths, settings.pad
        else:
            shifted[:, 0] = settings.pad
            rows, places, value = np.arange(num_rows), width - lengths, settings.eos
        inside = places < width
        shifted[rows[inside], places[inside]] = value
        return shifted

    def _empty(self) -> Batch:
        row = np.array([self.settings.eos])
        return self([Sample(row, row if self.settings.has_source else None, "", NO_SAMPLE, 0.0)])


def _read(rows: Rows, spans: Sequence[Spans]) -> _Side:
    """The tokens of all rows, row after row, out of the files they lie in."""
    if len(spans) == 1:
        return _gather(spans[0])
    sides = [_gather(span) for span in spans]
    lengths = np.zeros(len(rows), np.int64)
    for group, side in zip(rows.groups, sides, strict=True):
        lengths[group.rows] = side.lengths
    starts = np.cumsum(lengths) - lengths
    flat = np.empty(int(lengths.sum()), np.int64)
    for group, side in zip(rows.groups, sides, strict=True):
        flat[_places(starts[group.rows], side.lengths)] = side.flat
    return _Side(flat, lengths)


def _gather(spans: Spans) -> _Side:
    return _Side(spans.tokens[_places(spans.starts, spans.lengths)].astype(np.int64), spans.lengths)


def _places(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """start, start+1, …, start+length-1 of every row, one row after the other."""
    ends = np.cumsum(lengths)
    places = np.repeat(starts - ends + lengths, lengths)
    places += np.arange(len(places))
    return places
