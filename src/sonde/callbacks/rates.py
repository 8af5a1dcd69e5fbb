"""`LearningRateCallback` and `ThroughputCallback`: write numbers to TensorBoard, or to logging without a writer."""

import logging
import time

from sonde.callbacks.base import Context
from sonde.callbacks.periodic import PeriodicCallback, as_number

_logger = logging.getLogger("sonde")


class LearningRateCallback(PeriodicCallback):
    """Writes the learning rate (`param/lr`) of the update just made, after the first and every `step_freq`, on rank 0."""

    def log(self, context: Context) -> None:
        """Write the learning rate."""
        self._write(context, {"param/lr": context.lr})
        if self._writer is None:
            _logger.info("step %d: learning rate %.6g", context.step, context.lr)


class ThroughputCallback(PeriodicCallback):
    """Writes steps and target tokens per second over all ranks since the last report, on rank 0.

    They count by wall time, which includes evaluation and saving.
    """

    def on_run_start(self, context: Context) -> None:
        """Start the clock."""
        super().on_run_start(context)
        self._start()

    def on_step_end(self, context: Context) -> None:
        """Count the update, and write the throughput if it is due."""
        self._num_steps += 1
        self._num_tokens += as_number(context.weight)
        if context.step % self._step_freq == 0:
            self.log(context)

    def log(self, context: Context) -> None:
        """Write the throughput, and count anew."""
        seconds = max(time.monotonic() - self._started, 1e-9)
        steps, tokens = self._num_steps / seconds, self._num_tokens / seconds
        self._write(context, {"throughput/steps_per_second": steps, "throughput/tokens_per_second": tokens})
        if self._writer is None:
            _logger.info("step %d: %.2f steps/s, %.0f tokens/s", context.step, steps, tokens)
        self._start()

    def _start(self) -> None:
        self._started = time.monotonic()
        self._num_steps, self._num_tokens = 0, 0.0
