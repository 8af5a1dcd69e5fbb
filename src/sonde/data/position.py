"""Where a run stands in its data: an epoch and a number of batches, counted over all ranks together.

All ranks hold the same position. It does not say how many ranks there are, so that a run may go on with another number of
them: batch `offset` of the epoch's order is the next one, whoever takes it.
"""

from dataclasses import dataclass
from typing import final

from sonde.errors import SettingError


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """The next batch."""

    epoch: int = 1
    """Epochs count from 1."""
    offset: int = 0
    """Batches of this epoch that are done, over all ranks."""

    def __post_init__(self) -> None:
        if self.epoch < 1 or self.offset < 0:
            raise SettingError(f"epochs count from 1 and batches from 0, not from {self.epoch} and {self.offset}")

    def after_round(self, num_shards: int, num_batches: int) -> "Position":
        """The position when every rank has taken one batch more; past the last batch it is the start of the next epoch."""
        offset = self.offset + num_shards
        if offset >= num_batches:
            return Position(epoch=self.epoch + 1)
        return Position(epoch=self.epoch, offset=offset)
