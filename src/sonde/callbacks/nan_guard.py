"""`NanGuard`: names the first non-finite value, stops a run that will not recover, and protects its
good checkpoints.

    NanGuard(model)

A loss that is NaN for a step may come from one bad batch, and the trainer skips an update whose
gradients are not finite. The guard reports it and waits for up to `patience` bad steps in a row.
Weights that are NaN do not recover: the guard asks the run to stop and marks later checkpoints, so
that they do not replace good ones. Costs one pass over the weights every `weights_every` steps.
"""

import logging
import math
from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from torch import nn

from sonde.callbacks.base import Callback, Order
from sonde.callbacks.context import Context
from sonde.errors import check_at_least

_logger = logging.getLogger("sonde")


def first_bad(values: Iterable[tuple[str, Any]]) -> str | None:
    """Return the name of the first value that contains a NaN or an infinity, or None."""
    for name, value in values:
        if isinstance(value, float):
            if not math.isfinite(value):
                return name
        elif isinstance(value, torch.Tensor) and not bool(torch.isfinite(value).all()):
            return name
    return None


class NanGuard(Callback):
    """Watches the named values of each step and the weights of a model.

    ```python
    import torch
    from sonde.callbacks import NanGuard

    guard = NanGuard(torch.nn.Linear(4, 1), patience=3)
    ```

    Pass it on: `trainer.train(stop=…, callbacks=[guard])`.
    """

    order: ClassVar[Order] = Order.EVALUATE  # before a checkpoint is saved

    def __init__(
        self, model: nn.Module | None = None, *, patience: int = 10, weights_every: int = 100
    ) -> None:
        """Prepare to watch.

        Args:
            model: Its weights are checked when a value is not finite; without it, only the values
                of the step are.
            patience: Stop after this many steps in a row with a value that is not finite.
            weights_every: Check the weights every this many steps in any case.
        """
        check_at_least(1, patience=patience, weights_every=weights_every)
        self._model = model
        self._patience = patience
        self._weights_every = weights_every
        self._num_bad = 0

    def on_step_end(self, context: Context) -> None:
        """Check the step's values, and the weights if a value is bad or a check is due."""
        bad = first_bad(context.tensors.items())
        if bad is not None or context.step % self._weights_every == 0:
            self._look_at_weights(context)
        if bad is None:
            self._num_bad = 0
            return
        self._num_bad += 1
        if self._num_bad == 1:
            _logger.warning("step %d: %s is not finite", context.step, bad)
        if self._num_bad >= self._patience:
            context.ask_to_stop(f"{bad} was not finite for {self._num_bad} steps")

    def on_epoch_end(self, context: Context) -> None:
        """Check the weights before they may be saved."""
        self._look_at_weights(context)

    def state_dict(self) -> dict[str, Any]:
        """Return the number of consecutive bad steps."""
        return {"num_bad": self._num_bad}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`."""
        self._num_bad = int(state.get("num_bad", 0))

    def _look_at_weights(self, context: Context) -> None:
        if self._model is None:
            return
        bad = first_bad(self._model.named_parameters())
        if bad is None:
            context.distrust(None)
            return
        if context.distrusted is None:
            _logger.warning("step %d: the weight %s is not finite", context.step, bad)
        context.distrust(f"the weight {bad} is not finite")
        context.ask_to_stop(f"the weight {bad} is not finite")
