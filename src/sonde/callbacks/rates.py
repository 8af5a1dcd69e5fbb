"""`LearningRateCallback` and `ThroughputCallback`: write numbers to TensorBoard, or to logging without a writer."""

import logging
import time
from abc import ABC
from typing import Any, ClassVar

from typing_extensions import override

from sonde.callbacks.base import Callback, Context
from sonde.callbacks.named_values import as_number, check_every, is_due

_logger = logging.getLogger("sonde")


class NumbersCallback(Callback, ABC):
    """Base class of callbacks that write a few numbers every `step_freq` updates."""

    asks: ClassVar[bool] = False

    def __init__(self, step_freq: int = 25, tb_writer: Any = None) -> None:
        check_every("step_freq", step_freq)
        self._step_freq = step_freq
        self._writer = tb_writer

    @override
    def on_run_start(self, context: Context) -> None:
        """Have the writer closed at the end of the run."""
        context.close_at_end(self._writer)

    def _write(self, context: Context, line: str, **numbers: float) -> None:
        """Write numbers by their tags to TensorBoard, or a line to logging."""
        if self._writer is None:
            _logger.info("step %d: %s", context.step, line)
        for tag, number in numbers.items() if self._writer is not None else ():
            self._writer.add_scalar(tag, number, context.step)


class LearningRateCallback(NumbersCallback):
    """Writes the learning rate (`param/lr`) of the update just made, after the first and every `step_freq`, on rank 0."""

    @override
    def on_step_end(self, context: Context) -> None:
        """Write the learning rate if it is due."""
        if context.rank == 0 and is_due(context.step, self._step_freq):
            self._write(context, f"learning rate {context.lr:.6g}", **{"param/lr": context.lr})


class ThroughputCallback(NumbersCallback):
    """Writes steps and target tokens per second over all ranks since the last report, on rank 0.

    They count by wall time, which includes evaluation and saving.
    """

    @override
    def on_run_start(self, context: Context) -> None:
        """Start the clock."""
        super().on_run_start(context)
        self._start()

    @override
    def on_step_end(self, context: Context) -> None:
        """Count the update, and write the throughput if it is due."""
        self._num_steps += 1
        self._num_tokens += as_number(context.weight)
        if context.rank != 0 or context.step % self._step_freq:
            return
        seconds = max(time.monotonic() - self._started, 1e-9)
        steps, tokens = self._num_steps / seconds, self._num_tokens / seconds
        numbers = {"throughput/steps_per_second": steps, "throughput/tokens_per_second": tokens}
        self._write(context, f"{steps:.2f} steps/s, {tokens:.0f} tokens/s", **numbers)
        self._start()

    def _start(self) -> None:
        self._started = time.monotonic()
        self._num_steps, self._num_tokens = 0, 0.0
