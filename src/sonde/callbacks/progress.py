"""`ProgressCallback`: a progress bar on a terminal, one plain line per interval elsewhere, on rank
0.

    evaluation after step 150: loss 4.102, bleu 21.4
    step 200/1000  epoch 2  loss 4.213  lr 0.0005  12,340 tokens/s ━━━━━━━╺━━━━━━━━━━━━━━━━━━
                                                   0:01:05

Evaluation results are printed above the bar. Tokens are the target tokens of all ranks. Their rate
covers about the last hundred updates and only the time spent in updates, so an evaluation does not
lower it. The remaining time is rich's estimate. Costs 1 µs per update: the text is redrawn ten
times a second.
"""

import sys
import time
from typing import Any, Final, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from sonde.callbacks.context import Context
from sonde.callbacks.periodic import PeriodicCallback, as_number
from sonde.errors import check_at_least

_MEMORY: Final = 0.99
"""Decay factor per update of the token and time averages."""
_REFRESH_SECONDS: Final = 0.1


def _screen() -> TextIO:
    """Return the real standard error: rich's bar looks through one proxy stream, but not through
    two.
    """
    stream = sys.stderr
    while hasattr(stream, "rich_proxied_file"):
        stream = stream.rich_proxied_file
    return stream


class ProgressCallback(PeriodicCallback):
    """Shows the progress of a training run.

    ```python
    from sonde.callbacks import ProgressCallback

    progress = ProgressCallback(max_steps=10_000)
    ```

    Pass it on: `trainer.train(stop=…, callbacks=[progress])`.
    """

    def __init__(
        self, max_steps: int | None = None, *, interval: int = 100, console: Console | None = None
    ) -> None:
        """Prepare to show progress.

        Args:
            max_steps: The end of the bar.
            interval: The number of steps between two lines, where there is no terminal.
            console: Where to print.
        """
        check_at_least(1, interval=interval, max_steps=1 if max_steps is None else max_steps)
        super().__init__(interval)
        self._max_steps = max_steps
        self._console = console or Console(file=_screen(), highlight=False)
        self._bar: Progress | None = None
        self._task: Any = None
        self._num_tokens = 0.0
        self._seconds = 0.0
        self._next_refresh = 0.0

    def on_run_start(self, context: Context) -> None:
        """Show the bar."""
        self._num_tokens = self._seconds = self._next_refresh = 0.0
        if not self._console.is_terminal:
            return
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task(
            self._text(context), total=self._max_steps, completed=context.step
        )
        self._bar.start()

    def on_step_end(self, context: Context) -> None:
        """Update the bar, or print a line if it is due."""
        self._num_tokens = _MEMORY * self._num_tokens + as_number(context.weight)
        self._seconds = _MEMORY * self._seconds + context.step_seconds
        if self._bar is None:
            super().on_step_end(context)
        elif time.monotonic() >= self._next_refresh:
            self._next_refresh = time.monotonic() + _REFRESH_SECONDS
            self._bar.update(self._task, completed=context.step, description=self._text(context))

    def log(self, context: Context) -> None:
        """Print a line."""
        self._print(self._text(context))

    def on_evaluation_end(self, context: Context) -> None:
        """Print the results of the evaluation."""
        found = [
            f"{name} {as_number(value):.4g}"
            for name, value in context.metrics.items()
            if name != "weight"
        ]
        self._print(f"evaluation after step {context.step}: {', '.join(found)}")

    def on_run_end(self, context: Context) -> None:
        """Stop the bar and leave its last state on the screen."""
        self._stop(context)

    def on_exception(self, context: Context, error: BaseException) -> None:
        """Stop the bar and release the terminal."""
        self._stop(context)

    def _stop(self, context: Context) -> None:
        if self._bar is not None:
            self._bar.update(self._task, completed=context.step, description=self._text(context))
            self._bar.stop()
            self._bar = None
        elif not self.is_due(context.step):
            self.log(context)

    def _print(self, line: str) -> None:
        # rich puts it above the bar
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def _text(self, context: Context) -> str:
        of = f"/{self._max_steps}" if self._max_steps else ""
        parts = [f"step {context.step}{of}", f"epoch {context.epoch}"]
        if "loss" in context.tensors:
            parts.append(f"loss {as_number(context.tensors['loss']):.4g}")
        if self._seconds > 0:
            parts += [f"lr {context.lr:.4g}", f"{self._num_tokens / self._seconds:,.0f} tokens/s"]
        parts += [f"{name} {value:.4g}" for name, value in context.logged.items()]
        return "  ".join(parts)
