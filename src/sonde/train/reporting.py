"""Reporting during training: nested metrics, and a log record every `log_interval` updates.

There are four levels: `train_step` is the update, `train_inner` covers the time since the last log
record, `train` the epoch, and `default` the run. The keys are those of TCAP's logger:

    rank (-1 in a single process), train.loss, train.ips (target tokens per second), data.shape,
        train.lr,
    train.data_time, train.fp_time, train.bp_time, train.grad_time, train.compute_time (their sum),
        train.grad_norm;
    val.loss, val.ips and the other results of an evaluation

Values that a task or a callback logs during an update with `metrics.log_scalar` and similar
functions appear beside them, under their own names: in the log as means over the interval, in the
update's step record (`values`), and in `context.logged`, where the progress line finds them.

A step record is written after every update; when updates take less than 20 ms, several are written
together. All of them are in the file before a checkpoint is, so whatever a killed process had not
written yet is repeated by its next start.
"""

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Final, TextIO

from sonde import ranks
from sonde.callbacks.context import Context
from sonde.errors import SettingError, import_extra
from sonde.log.logger import Logger
from sonde.metrics.aggregator import Aggregator
from sonde.metrics.stack import aggregate, get_smoothed_values, log_scalar, reset_meters
from sonde.records.append import RecordFile
from sonde.records.journal import StepRecord
from sonde.run import Run
from sonde.train.step import StepResult

STEP_LEVEL: Final = "train_step"
INNER: Final = "train_inner"
EPOCH: Final = "train"
_WRITE_SECONDS: Final = 0.02
"""Longest time in seconds that step records wait for the next one. A system call for each would
cost a fast loop more than its metrics do.
"""
_TIMES: Final = ("train.data_time", "train.fp_time", "train.bp_time", "train.grad_time")
_OWN: Final = frozenset({"train.loss", "train.tokens", "train.grad_norm", *_TIMES})
"""Names that the reporter itself logs."""
_METADATA: Final[dict[str, dict[str, str]]] = {
    "train.loss": {"unit": "", "format": ":.4f", "GOAL": "MINIMIZE", "STAGE": "TRAIN"},
    "train.ips": {"unit": "tokens/s", "format": ":.0f", "GOAL": "MAXIMIZE", "STAGE": "TRAIN"},
    "val.loss": {"unit": "", "format": ":.4f", "GOAL": "MINIMIZE", "STAGE": "VALID"},
    "val.ips": {"unit": "tokens/s", "format": ":.0f", "GOAL": "MAXIMIZE", "STAGE": "VALID"},
    **{
        name: {"unit": "s", "format": ":.4f", "GOAL": "MINIMIZE", "STAGE": "TRAIN"}
        for name in (*_TIMES, "train.compute_time")
    },
}
"""Metadata of the keys, for the screen and for readers of the log."""


def open_tb_writer(run: Run | None) -> Any:
    """Open a `SummaryWriter` in the run; returns None on ranks other than 0."""
    if run is None:
        raise SettingError(
            "create_tb_writer needs a run to write to", hint="Trainer(…, run=Run('runs/a'))"
        )
    if ranks.rank() != 0:
        return None
    library = import_extra(
        "torch.utils.tensorboard", needed_for="create_tb_writer", extra="tensorboard"
    )
    return library.SummaryWriter(str(run.layout.root / "tensorboard"))


@contextmanager
def visible_logging() -> Iterator[None]:
    """Show INFO messages on rank 0 within the block, unless logging is already configured."""
    root = logging.getLogger()
    if ranks.rank() != 0 or root.handlers:
        yield
        return
    handler = _ToStderr()
    level = root.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO))
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to the current `sys.stderr`, which a progress bar may replace to keep messages above
    itself.
    """

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


class Reporter:
    """Updates the metrics at every update and writes a log record at every `interval`-th."""

    def __init__(self, logger: Logger, *, interval: int, steps: RecordFile | None = None) -> None:
        """`logger` gets the means over `interval` updates; `steps` gets a record of every
        update.
        """
        self._logger = logger
        self._steps = steps
        self._waiting: list[dict[str, Any]] = []
        self._written = 0.0
        self._current: StepRecord | None = None
        # shape of the batch, or of its target, when a log record is due
        self._due_shape: list[int] | None = None
        self._interval = interval
        self._level: Aggregator | None = None
        self._rank = ranks.rank() if ranks.world_size() > 1 else -1

    def update(
        self, context: Context, result: StepResult, *, data_seconds: float, batch: Any
    ) -> None:
        """Record one update, inside `epoch`. `batch` is its last batch. Callbacks may add values
        until `end_update`.
        """
        log_scalar("train.loss", result.loss, result.weight)
        log_scalar("train.tokens", result.weight)
        log_scalar("train.data_time", data_seconds)
        log_scalar("train.fp_time", result.forward_seconds)
        log_scalar("train.bp_time", result.backward_seconds)
        log_scalar("train.grad_time", result.optimizer_seconds)
        if result.grad_norm is not None:
            log_scalar("train.grad_norm", result.grad_norm)
        self._current = StepRecord(
            step=context.step,
            epoch=context.epoch,
            loss=result.loss,
            weight=result.weight,
            grad_norm=result.grad_norm,
            lr=context.lr,
            skipped=result.skipped,
        )
        if context.step % self._interval == 0:
            self._due_shape = list(getattr(getattr(batch, "target", batch), "shape", ()))

    def logged(self) -> dict[str, float]:
        """Return the values that the task and the callbacks logged in this update, by name."""
        level = self._level
        if level is None or level.by_key.keys() <= _OWN:
            return {}
        return {
            name: value for name, value in level.get_smoothed_values().items() if name not in _OWN
        }

    def log_interval(self) -> None:
        """Log the means of the interval if it ends with this update. Called before an evaluation or
        at the end of the update.
        """
        if self._due_shape is not None and self._current is not None:
            step = (self._current.epoch, self._current.step)
            self._logger.log(step, self._record(self._current, self._due_shape))
            self._due_shape = None
            reset_meters(INNER)

    def end_update(self) -> None:
        """Finish the update after all callbacks: write the log record if due, and the step
        record.
        """
        record = self._current
        if record is None:
            return
        values = self.logged()
        if values:
            record = replace(record, values=values)
            reset_meters(STEP_LEVEL)
        if self._due_shape is not None:
            self.log_interval()
        self._current = None
        if self._steps is not None:
            self._waiting.append(record.as_record())
            if time.monotonic() - self._written > _WRITE_SECONDS:
                self.write_steps()

    def write_steps(self) -> None:
        """Write the pending step records."""
        if self._steps is not None and self._waiting:
            self._steps.append_many(self._waiting)
            self._waiting = []
            self._written = time.monotonic()

    def run_start(self) -> None:
        """Log the metadata of the keys, and reset levels that an earlier training in this process
        left.
        """
        for metric, metadata in _METADATA.items():
            self._logger.metadata(metric, metadata)
        reset_meters(INNER)
        reset_meters(STEP_LEVEL)

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Context for the updates of an epoch. Values logged inside, also by the task, count in
        every level.
        """
        reset_meters(EPOCH)
        try:
            with aggregate(EPOCH), aggregate(INNER), aggregate(STEP_LEVEL) as self._level:
                yield
        finally:
            self.end_update()
            self.write_steps()

    def evaluation(self, context: Context, results: Mapping[str, float], seconds: float) -> None:
        """Log the results of an evaluation."""
        self.write_steps()
        self.log_interval()
        data: dict[str, Any] = {"rank": self._rank}
        data |= {f"val.{name}": value for name, value in results.items() if name != "weight"}
        if seconds > 0 and "weight" in results:
            data["val.ips"] = results["weight"] / seconds
        self._logger.log((context.epoch, context.step), data)

    def _record(self, update: StepRecord, shape: list[int]) -> dict[str, Any]:
        """Return the means of the interval that ends with this update."""
        inner = get_smoothed_values(INNER)
        seconds = sum(inner[name] for name in _TIMES)
        record: dict[str, Any] = {
            "rank": self._rank,
            "train.loss": inner["train.loss"],
            "train.ips": inner["train.tokens"] / seconds if seconds > 0 else 0.0,
            "data.shape": shape,
            "train.lr": update.lr,
            **{name: inner[name] for name in _TIMES},
            "train.compute_time": seconds,
        }
        if "train.grad_norm" in inner:
            record["train.grad_norm"] = inner["train.grad_norm"]
        return {**{name: value for name, value in inner.items() if name not in _OWN}, **record}
