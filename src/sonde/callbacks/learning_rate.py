"""`LearningRateCallback`: the learning rate every few updates, to TensorBoard or the screen."""

import logging

from sonde.callbacks.context import Context
from sonde.callbacks.periodic import PeriodicCallback

_logger = logging.getLogger("sonde")


class LearningRateCallback(PeriodicCallback):
    """Writes the learning rate (`param/lr`) of the update just made, after the first and every
    `step_freq`, on rank 0.
    """

    def log(self, context: Context) -> None:
        """Write the learning rate."""
        self.write(context, {"param/lr": context.lr})
        if self.writer is None:
            _logger.info("step %d: learning rate %.6g", context.step, context.lr)
