"""Data that are sorted by class: batches hold one class each, and not always the same. Pure."""

from typing import Final

from sonde.spikes.quiet_rules import QuietFinding

LABEL_ORDER: Final = "label_order"

_MIN_ROWS: Final = 4
"""Smaller batches may hold one class by chance."""
_MIN_BATCHES: Final = 6
"""So many batches of a class make a block of it."""
_MAX_MIXED: Final = 0.2
"""Data are not sorted if more than this share of the batches hold several classes."""


class LabelOrder:
    """Watches the classes of the batches of one training."""

    def __init__(self) -> None:
        self._num_of_class: dict[int, int] = {}
        """For each class, how many batches held only it."""
        self._num_mixed = 0
        self.is_over = False
        """Whether nothing more can be said: the classes are mixed."""

    def observe(self, step: int, lowest: int, highest: int, num_rows: int) -> QuietFinding | None:
        """Add a batch: the lowest and the highest class of its rows."""
        if num_rows < _MIN_ROWS:
            return None
        if lowest != highest:
            self._num_mixed += 1
        else:
            self._num_of_class[lowest] = self._num_of_class.get(lowest, 0) + 1
        num_alike = sum(self._num_of_class.values())
        num_batches = self._num_mixed + num_alike
        if self._num_mixed > _MAX_MIXED * max(num_batches, 2 * _MIN_BATCHES):
            self.is_over = True
            return None
        blocks = [num for num in self._num_of_class.values() if num >= _MIN_BATCHES]
        if len(blocks) < 2:
            return None
        self.is_over = True
        return QuietFinding(
            kind=LABEL_ORDER,
            step=step,
            sentence=(
                f"{num_alike} of {num_batches} batches held rows of one class alone, and of"
                f" {len(self._num_of_class)} classes in turn: the data are sorted by class"
            ),
            look_at="the loader: shuffle=True, or a buffer to shuffle a stream in",
        )
