"""`ProgressCallback`: a bar on a terminal, one plain line per interval elsewhere, on rank 0.

step 200/1000  epoch 2  loss 4.213  lr 0.0005  12.3 steps/s
"""

import time
from typing import Any, final

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn
from typing_extensions import override

from sonde.callbacks.base import Callback, Context
from sonde.callbacks.named_values import as_number, check_every, is_due
from sonde.errors import SettingError


@final
class ProgressCallback(Callback):
    """Shows how far a training is."""

    def __init__(self, max_steps: int | None = None, *, interval: int = 100, console: Console | None = None) -> None:
        """`max_steps` is where the bar ends, `interval` the steps between two lines where there is no terminal."""
        check_every("interval", interval)
        if max_steps is not None and max_steps < 1:
            raise SettingError(f"max_steps must be 1 or more, not {max_steps}", hint="leave it out when it is unknown")
        self._max_steps = max_steps
        self._interval = interval
        self._console = console or Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._task: Any = None
        self._started = time.monotonic()
        self._first_step = 0

    @override
    def on_run_start(self, context: Context) -> None:
        """Show the bar."""
        self._started, self._first_step = time.monotonic(), context.step
        if context.rank != 0 or not self._console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn(), console=self._console, transient=False
        )
        self._task = self._bar.add_task(self._text(context), total=self._max_steps, completed=context.step)
        self._bar.start()

    @override
    def on_step_end(self, context: Context) -> None:
        """Move on."""
        if context.rank != 0:
            return
        if self._bar is not None:
            self._bar.update(self._task, completed=context.step, description=self._text(context))
        elif is_due(context.step, self._interval):
            self._console.print(self._text(context), markup=False, soft_wrap=True)

    @override
    def on_run_end(self, context: Context) -> None:
        """Leave the last state on the screen."""
        self._stop(context)

    @override
    def on_exception(self, context: Context, error: BaseException) -> None:
        """Give the terminal back."""
        self._stop(context)

    def _stop(self, context: Context) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
        elif context.rank == 0 and not is_due(context.step, self._interval):
            self._console.print(self._text(context), markup=False, soft_wrap=True)

    def _text(self, context: Context) -> str:
        of = f"/{self._max_steps}" if self._max_steps else ""
        parts = [f"step {context.step}{of}", f"epoch {context.epoch}"]
        if "loss" in context.tensors:
            parts.append(f"loss {as_number(context.tensors['loss']):.4g}")
        seconds = time.monotonic() - self._started
        if context.step > self._first_step and seconds > 0:
            parts += [f"lr {context.lr:.4g}", f"{(context.step - self._first_step) / seconds:.1f} steps/s"]
        return "  ".join(parts)
