"""The updates of sonde's own trainer in a check: each goes through a recorder, which makes the
check after the first ones and ends the process.

The trainer seeds the generators of every micro-batch by its number, so that a repeated step could
not get other random numbers. Here the number is drawn from torch's own generator, which an
experiment puts back or seeds anew.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

from sonde.recorder.recorder import Recorder
from sonde.run import Run
from sonde.train.check_seam import UpdateMaker
from sonde.train.loss_scale import LossScale
from sonde.train.step import StepResult

_MAX_NUMBER: Final = 1 << 31


@dataclass
class _Several:
    """The micro-batches of one update."""

    micro_batches: list[Any]


class CheckedSteps:
    """Makes the updates of a trainer through a recorder."""

    def __init__(
        self,
        maker: UpdateMaker,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        run: Run | str | Path,
    ) -> None:
        """`maker` makes the updates."""
        self._maker = maker
        self._recorder = Recorder(run, model, optimizer)

    @property
    def scale(self) -> LossScale:
        """The loss scale of float16 training."""
        return self._maker.scale

    def run(
        self,
        update: int,
        micro_batches: Sequence[tuple[int, Any]],
        *,
        wants_stop: bool = False,
        on_gradients: Callable[[float], None] | None = None,
    ) -> StepResult:
        """Make an update through the recorder, which takes its micro-batches as one batch."""
        del update
        results: list[StepResult] = []
        maker = self._maker

        def train_step(batch: Any) -> Tensor:
            given = batch.micro_batches if isinstance(batch, _Several) else [batch]
            made = maker.run(
                int(torch.randint(_MAX_NUMBER, ())),
                list(enumerate(given)),
                wants_stop=wants_stop,
                on_gradients=on_gradients,
            )
            results.append(made)
            return torch.tensor(made.loss)

        batches = [batch for _, batch in micro_batches]
        self._recorder.step(train_step, batches[0] if len(batches) == 1 else _Several(batches))
        return results[-1]
