"""`ThroughputCallback`: writes steps and target tokens per second, over all ranks, to TensorBoard or to logging."""

import logging
import time
from typing import Any, ClassVar, final

from typing_extensions import override

from sonde.callbacks.base import Callback, Context
from sonde.callbacks.named_values import as_number, check_every

_logger = logging.getLogger("sonde")


@final
class ThroughputCallback(Callback):
    """Writes the throughput since the last report, by wall time, which includes evaluation and saving."""

    asks: ClassVar[bool] = False

    def __init__(self, step_freq: int = 25, tb_writer: Any = None) -> None:
        check_every("step_freq", step_freq)
        self._step_freq = step_freq
        self._writer = tb_writer
        self._started = time.monotonic()
        self._num_steps = 0
        self._num_tokens = 0.0

    @override
    def on_run_start(self, context: Context) -> None:
        """Start the clock."""
        if context.rank == 0 and self._writer is not None:
            context.close_at_end(self._writer)
        self._started = time.monotonic()
        self._num_steps, self._num_tokens = 0, 0.0

    @override
    def on_step_end(self, context: Context) -> None:
        """Count the update, and write the throughput if it is due."""
        self._num_steps += 1
        self._num_tokens += as_number(context.weight)
        if context.rank != 0 or context.step % self._step_freq:
            return
        seconds = max(time.monotonic() - self._started, 1e-9)
        steps, tokens = self._num_steps / seconds, self._num_tokens / seconds
        if self._writer is not None:
            self._writer.add_scalar("throughput/steps_per_second", steps, context.step)
            self._writer.add_scalar("throughput/tokens_per_second", tokens, context.step)
        else:
            _logger.info("step %d: %.2f steps/s, %.0f tokens/s", context.step, steps, tokens)
        self._started = time.monotonic()
        self._num_steps, self._num_tokens = 0, 0.0
