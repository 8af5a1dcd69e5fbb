"""`Batch`, a frozen object with tensors and the origin of every row, and `Collater`, the `collate_fn` that builds one.

The collater works in any DataLoader. Sonde's datasets return `Rows`; samples of any other dataset are converted first.
Cost: 256 rows of 20 tokens in about 0.1 ms (benchmarks/data.py).

Shapes: B rows, S source tokens, T target tokens.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sonde.data.samples import NO_SAMPLE, Ragged, Rows, Sample, rows_of_samples
from sonde.data.tokenizer import SpecialIds
from sonde.errors import Positive, check_fields


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """One batch of training samples."""

    target: Tensor
    """Ids to predict, (B, T), padded."""
    target_lengths: Tensor
    """Length of each row without padding, (B,)."""
    decoder_input: Tensor
    """`target` shifted right by one with `eos` in front, (B, T), padded in the same way."""
    source: Tensor | None
    """Source ids, (B, S), padded; None for a language model."""
    source_lengths: Tensor | None
    """Length of each source row without padding, (B,); None for a language model."""
    weights: Tensor
    """Loss weight of each row, (B,), float32; all zero in an empty batch."""
    ntokens: int
    """Number of target ids, without padding, in rows with non-zero weight."""
    names: tuple[str, ...]
    """Names of the datasets in this batch."""
    dataset_of_row: NDArray[np.int32]
    """For each row, the position of its dataset in `names`."""
    sample_ids: NDArray[np.int64]
    """For each row, its sample number in that dataset; -1 for the row of an empty batch."""

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def is_empty(self) -> bool:
        """Whether the batch only keeps a rank in step: one row of weight zero and no sample."""
        return self.ntokens == 0

    @property
    def provenance(self) -> list[tuple[str, int]]:
        """Dataset and sample number of each row."""
        datasets = [self.names[number] for number in self.dataset_of_row.tolist()]
        return list(zip(datasets, self.sample_ids.tolist(), strict=True))

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """Return the batch with its tensors on a device."""
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """Return the batch in pinned memory. A DataLoader with `pin_memory=True` calls this."""
        return self._with_tensors(lambda tensor: tensor.pin_memory())

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        changed: dict[str, Any] = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
        return dataclasses.replace(self, **changed)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Collater:
    """Turns samples into a `Batch`. An empty list gives an empty batch: one row with a single `eos` and weight zero."""

    pad: int = 1
    """Padding id."""
    eos: int = 2
    """First id of the decoder input."""
    pad_source: Literal["left", "right"] = "left"
    """Side on which sources are padded."""
    pad_target: Literal["left", "right"] = "right"
    """Side on which targets are padded."""
    pad_to_multiple: Positive = 1
    """Widths are rounded up to a multiple of this."""
    has_source: bool = True
    """Whether an empty batch has a source. Other batches show it themselves."""

    def __post_init__(self) -> None:
        check_fields(self)

    @classmethod
    def of(cls, specials: SpecialIds, *, has_source: bool = True) -> "Collater":
        """Return a collater with the special ids of a tokenizer."""
        return cls(pad=specials.pad, eos=specials.eos, has_source=has_source)

    def __call__(self, samples: Sequence[Any] | Rows) -> Batch:
        """Return the batch of these samples, with rows in the same order."""
        if not len(samples):
            return self._empty()
        rows = samples if isinstance(samples, Rows) else rows_of_samples(samples)
        target, source = rows.target, rows.source
        padded = self._pad(target, self.pad_target)
        return Batch(
            target=torch.from_numpy(padded),
            target_lengths=torch.from_numpy(target.lengths),
            decoder_input=torch.from_numpy(self._shift(padded, target.lengths)),
            source=None if source is None else torch.from_numpy(self._pad(source, self.pad_source)),
            source_lengths=None if source is None else torch.from_numpy(source.lengths),
            weights=torch.from_numpy(rows.weights.copy()),
            ntokens=int(target.lengths[rows.weights != 0].sum()),
            names=rows.names,
            dataset_of_row=rows.dataset_of_row,
            sample_ids=rows.sample_ids,
        )

    def _pad(self, side: Ragged, where: str) -> NDArray[np.int64]:
        width = max(1, int(side.lengths.max()))
        width = -(-width // self.pad_to_multiple) * self.pad_to_multiple
        padded = np.full((len(side.lengths), width), self.pad, np.int64)
        column = np.arange(width)
        lengths = side.lengths[:, None]
        padded[column < lengths if where == "right" else column >= width - lengths] = side.flat
        return padded

    def _shift(self, padded: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Shift every row right by one: `eos` is inserted at its start and its last id is dropped."""
        num_rows, width = padded.shape
        shifted = np.empty_like(padded)
        shifted[:, 1:] = padded[:, :-1]
        is_right = self.pad_target == "right"
        shifted[:, 0], value = (self.eos, self.pad) if is_right else (self.pad, self.eos)
        places = lengths if is_right else width - lengths
        inside = places < width
        shifted[np.arange(num_rows)[inside], places[inside]] = value
        return shifted

    def _empty(self) -> Batch:
        row = np.array([self.eos])
        return self([Sample(row, row if self.has_source else None, "", NO_SAMPLE, 0.0)])
