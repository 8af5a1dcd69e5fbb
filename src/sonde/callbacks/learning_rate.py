"""`LearningRateCallback`: writes the learning rate to TensorBoard as `param/lr`, or to logging without a writer."""

import logging
from typing import Any, ClassVar, final

from typing_extensions import override

from sonde.callbacks.base import Callback, Context
from sonde.callbacks.named_values import check_every, is_due

_logger = logging.getLogger("sonde")


@final
class LearningRateCallback(Callback):
    """Writes the learning rate of the update just made, after the first and every `step_freq`, on rank 0."""

    asks: ClassVar[bool] = False

    def __init__(self, step_freq: int = 25, tb_writer: Any = None) -> None:
        check_every("step_freq", step_freq)
        self._step_freq = step_freq
        self._writer = tb_writer

    @override
    def on_run_start(self, context: Context) -> None:
        """Have the writer closed at the end of the run."""
        if context.rank == 0 and self._writer is not None:
            context.close_at_end(self._writer)

    @override
    def on_step_end(self, context: Context) -> None:
        """Write the learning rate if it is due."""
        if context.rank != 0 or not is_due(context.step, self._step_freq):
            return
        if self._writer is not None:
            self._writer.add_scalar("param/lr", context.lr, context.step)
        else:
            _logger.info("step %d: learning rate %.6g", context.step, context.lr)
