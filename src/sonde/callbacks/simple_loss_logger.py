"""`SimpleLossLoggerCallback`: prints losses and writes them to TensorBoard.

    SimpleLossLoggerCallback(
        tensors=["loss"],
        print_func=lambda values: logging.info("Loss: %.3f", values[0].item()),
        get_tb_values=lambda values: [("loss", values[0])],
        tb_writer=writer,
    )

It logs after the first update and after every `step_freq`, on rank 0. The writer is closed once at the end of the run,
after all callbacks are done with it.
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, ClassVar, TypeAlias

from typing_extensions import override

from sonde.callbacks.base import Callback, Context
from sonde.callbacks.named_values import as_number, check_every, is_due, names_of, pick

Values: TypeAlias = list[Any]

_logger = logging.getLogger("sonde")


class SimpleLossLoggerCallback(Callback):
    """Logs named values of the step every `step_freq` updates."""

    asks: ClassVar[bool] = False

    def __init__(
        self,
        tensors: str | Sequence[object],
        print_func: Callable[[Values], object] | None = None,
        get_tb_values: Callable[[Values], Iterable[Sequence[Any]]] | None = None,
        log_to_tb_func: Callable[[Any, Values, int], object] | None = None,
        step_freq: int = 25,
        tb_writer: Any = None,
    ) -> None:
        """`tensors` are names or handles with a `name`; the functions get their values in this order.

        The two TensorBoard functions are called only with a `tb_writer`.
        """
        check_every("step_freq", step_freq)
        self._names = names_of(tensors)
        self._print = print_func
        self._get_tb_values = get_tb_values
        self._log_to_tb = log_to_tb_func
        self._step_freq = step_freq
        self._writer = tb_writer
        self._run_started = self._epoch_started = time.monotonic()

    @override
    def on_run_start(self, context: Context) -> None:
        """Log that training starts."""
        if context.rank != 0:
            return
        self._run_started = time.monotonic()
        context.close_at_end(self._writer)
        _logger.info("Starting at step %d", context.step)

    @override
    def on_epoch_start(self, context: Context) -> None:
        """Log the start of an epoch."""
        self._epoch_started = time.monotonic()
        if context.rank == 0:
            _logger.info("Starting epoch %d", context.epoch)

    @override
    def on_step_end(self, context: Context) -> None:
        """Print and write the values and the duration of the step."""
        if context.rank != 0 or not is_due(context.step, self._step_freq):
            return
        values = pick(context.tensors, self._names)
        _logger.info("Step: %d", context.step)
        if self._print is not None:
            self._print(values)
        if self._writer is not None and self._get_tb_values is not None:
            for tag, value in self._get_tb_values(values):
                self._writer.add_scalar(tag, as_number(value), context.step)
        if self._writer is not None and self._log_to_tb is not None:
            self._log_to_tb(self._writer, values, context.step)
        if self._writer is not None:
            self._writer.add_scalar("misc/step_time", context.step_seconds, context.step)
        _logger.info("Step time: %.4f seconds", context.step_seconds)

    @override
    def on_epoch_end(self, context: Context) -> None:
        """Log the duration of the epoch."""
        if context.rank != 0:
            return
        seconds = time.monotonic() - self._epoch_started
        _logger.info("Finished epoch %d in %s", context.epoch, timedelta(seconds=round(seconds)))
        if self._writer is not None:
            self._writer.add_scalar("misc/epoch", context.epoch, context.step)
            self._writer.add_scalar("misc/epoch_time", seconds, context.step)

    @override
    def on_run_end(self, context: Context) -> None:
        """Log the total duration."""
        if context.rank == 0:
            _logger.info("Done in %s", timedelta(seconds=round(time.monotonic() - self._run_started)))
