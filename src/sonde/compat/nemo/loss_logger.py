"""`SimpleLossLoggerCallback`: prints named values of the step, and writes them to TensorBoard.

For example:

    SimpleLossLoggerCallback(
        tensors=["loss"],
        print_func=lambda values: logging.info("Loss: %.3f", values[0].item()),
        get_tb_values=lambda values: [("loss", values[0])],
        tb_writer=writer,
    )
"""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias

from sonde.callbacks.context import Context
from sonde.callbacks.periodic import PeriodicCallback

Values: TypeAlias = list[Any]

_logger = logging.getLogger("sonde")


class SimpleLossLoggerCallback(PeriodicCallback):
    """Logs named values of the step every `step_freq` updates.

    ```python
    from sonde import SimpleLossLoggerCallback

    log_loss = SimpleLossLoggerCallback(
        tensors=["loss"], print_func=lambda values: print(values[0].item()), step_freq=25
    )
    ```

    Pass it on: `trainer.train(stop=…, callbacks=[log_loss])`.
    """

    def __init__(
        self,
        tensors: str | Sequence[object],
        print_func: Callable[[Values], object] | None = None,
        get_tb_values: Callable[[Values], Iterable[Sequence[Any]]] | None = None,
        log_to_tb_func: Callable[[Any, Values, int], object] | None = None,
        step_freq: int = 25,
        tb_writer: Any = None,
    ) -> None:
        """Prepare to log. The two TensorBoard functions are called only with a `tb_writer`.

        Args:
            tensors: Names of values of the step, or handles with a `name`. The functions get the
                values in this order.
            print_func: Prints the values.
            get_tb_values: Returns pairs of a name and a value for TensorBoard.
            log_to_tb_func: Writes to TensorBoard itself: (writer, values, step).
            step_freq: Log after the first update and every this many.
            tb_writer: The TensorBoard writer.
        """
        super().__init__(step_freq, tb_writer, tensors=tensors)
        self._print = print_func
        self._get_tb_values = get_tb_values
        self._log_to_tb = log_to_tb_func
        self._run_started = time.monotonic()

    def on_run_start(self, context: Context) -> None:
        """Log that training starts."""
        super().on_run_start(context)
        self._run_started = time.monotonic()
        _logger.info("Starting at step %d", context.step)

    def on_epoch_start(self, context: Context) -> None:
        """Log the start of an epoch."""
        super().on_epoch_start(context)
        _logger.info("Starting epoch %d", context.epoch)

    def log(self, context: Context) -> None:
        """Print and write the values and the duration of the step."""
        values = self.values(context)
        _logger.info("Step: %d", context.step)
        if self._print is not None:
            self._print(values)
        if self.writer is not None and self._get_tb_values is not None:
            for tag, value in self._get_tb_values(values):
                self.write(context, {tag: value})
        if self.writer is not None and self._log_to_tb is not None:
            self._log_to_tb(self.writer, values, context.step)
        self.write(context, {"misc/step_time": context.step_seconds})
        _logger.info("Step time: %.4f seconds", context.step_seconds)

    def on_epoch_end(self, context: Context) -> None:
        """Log the duration of the epoch."""
        seconds = time.monotonic() - self.epoch_started
        _logger.info("Finished epoch %d in %s", context.epoch, timedelta(seconds=round(seconds)))
        self.write(context, {"misc/epoch": context.epoch, "misc/epoch_time": seconds})

    def on_run_end(self, context: Context) -> None:
        """Log the total duration."""
        _logger.info("Done in %s", timedelta(seconds=round(time.monotonic() - self._run_started)))
