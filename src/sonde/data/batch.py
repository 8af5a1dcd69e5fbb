"""A batch: tensors, and where every row comes from, in one frozen object.

Shapes: B rows, S source tokens, T target tokens.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """What one step of training sees."""

    target: Tensor
    """Ids to predict, (B, T), padded."""
    target_lengths: Tensor
    """Ids of each row without padding, (B,)."""
    decoder_input: Tensor
    """`target` moved one to the right with `eos` in front, (B, T), padded like it."""
    source: Tensor | None
    """Ids to predict from, (B, S), padded; None for a language model."""
    source_lengths: Tensor | None
    """Ids of each source row without padding, (B,)."""
    weights: Tensor
    """Weight of each row's loss, (B,), float32; all zero in an empty batch."""
    ntokens: int
    """Target ids, without padding, in rows whose weight is not zero."""
    names: tuple[str, ...]
    """Names of datasets."""
    dataset_of_row: NDArray[np.int32]
    """For each row the place of its dataset in `names`."""
    sample_ids: NDArray[np.int64]
    """For each row its number in that dataset; -1 for the row of an empty batch."""

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def is_empty(self) -> bool:
        """Whether it only keeps a rank in step: one row, weight zero, no sample."""
        return self.ntokens == 0

    @property
    def provenance(self) -> list[tuple[str, int]]:
        """Dataset and sample number of each row."""
        datasets = [self.names[number] for number in self.dataset_of_row.tolist()]
        return list(zip(datasets, self.sample_ids.tolist(), strict=True))

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> "Batch":
        """The batch with its tensors on a device."""
        return self._with_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "Batch":
        """The batch in pinned memory. A DataLoader with `pin_memory=True` calls this."""
        return self._with_tensors(lambda tensor: tensor.pin_memory())

    def _with_tensors(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        values = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        changed: dict[str, Any] = {name: change(value) for name, value in values.items() if isinstance(value, Tensor)}
        return dataclasses.replace(self, **changed)
