"""`ThroughputCallback`: steps and tokens per second every few updates, over all ranks."""

import logging
import time

from sonde.callbacks.context import Context
from sonde.callbacks.periodic import PeriodicCallback, as_number

_logger = logging.getLogger("sonde")


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
        steps = self._num_steps / seconds
        tokens = self._num_tokens / seconds
        self.write(
            context, {"throughput/steps_per_second": steps, "throughput/tokens_per_second": tokens}
        )
        if self.writer is None:
            _logger.info("step %d: %.2f steps/s, %.0f tokens/s", context.step, steps, tokens)
        self._start()

    def _start(self) -> None:
        self._started = time.monotonic()
        self._num_steps = 0
        self._num_tokens = 0.0
