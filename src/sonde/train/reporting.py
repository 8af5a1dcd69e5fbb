"""What a training says while it runs: nested metrics, and a log record every so many updates.

Four levels: `train_step` is the update, `train_inner` since the last log record, `train` since the epoch began, `default` since the run began. The keys are
those that users of TCAP's logger know:

    rank (-1 in a single process), train.loss, train.ips (target tokens per second), data.shape, train.lr,
    train.data_time, train.fp_time, train.bp_time, train.grad_time, train.compute_time (their sum), train.grad_norm;
    val.loss, val.ips and what else an evaluation gives

What a task or a callback logs during an update with `metrics.log_scalar` and its like is there beside them, under its own name: in the log as the
mean of the interval, in the update's step record (`values`), and in `context.logged`, where the progress line finds it.

What each update did goes to the run's steps at once; where updates follow one another faster than every 20 ms, several go together. All are
in the file before a checkpoint is, so what a killed process had not written yet is what its next start does again.
"""

import logging
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TextIO, final

from typing_extensions import override

from sonde import ranks
from sonde.callbacks.base import Context
from sonde.errors import SettingError, import_extra
from sonde.log.logger import Logger
from sonde.metrics.aggregator import Aggregator
from sonde.metrics.stack import aggregate, get_smoothed_values, log_scalar, reset_meters
from sonde.records.append import RecordFile
from sonde.records.steps import STEP
from sonde.run import Run
from sonde.train.step import StepResult

STEP_LEVEL: Final = "train_step"
INNER: Final = "train_inner"
EPOCH: Final = "train"
_WRITE_SECONDS: Final = 0.02
"""Records of updates wait no longer for the next update's: a system call for each would cost a fast loop more than its metrics do."""
_TIMES: Final = ("train.data_time", "train.fp_time", "train.bp_time", "train.grad_time")
_OWN: Final = frozenset({"train.loss", "train.tokens", "train.grad_norm", *_TIMES})
"""What the reporter logs itself."""
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
"""What the keys are: for the screen, and for whoever reads the log."""


def open_tb_writer(run: Run | None) -> Any:
    """A `SummaryWriter` into the run; None on other ranks than 0."""
    if run is None:
        raise SettingError("create_tb_writer needs a run to write to", hint="Trainer(…, run=Run('runs/a'))")
    if ranks.rank() != 0:
        return None
    library = import_extra("torch.utils.tensorboard", needed_for="create_tb_writer", extra="tensorboard")
    return library.SummaryWriter(str(run.layout.root / "tensorboard"))


@contextmanager
def visible_logging() -> Iterator[None]:
    """Within the block, what is said at level INFO is seen on rank 0, where nobody has set logging up otherwise."""
    root = logging.getLogger()
    if ranks.rank() != 0 or root.handlers:
        yield
        return
    handler, level = _ToStderr(), root.level
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(message)s", "%H:%M:%S"))
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO))
    try:
        yield
    finally:
        root.removeHandler(handler)
        root.setLevel(level)


@final
class _ToStderr(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at the time: a progress bar puts itself in its place and keeps what is said above itself."""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


@final
class Reporter:
    """Feeds the metrics at every update and the log at every `interval`-th."""

    def __init__(self, logger: Logger, *, interval: int, steps: RecordFile | None = None) -> None:
        """`logger` takes the means over `interval` updates, `steps` what every update did."""
        self._logger = logger
        self._steps = steps
        self._waiting: list[dict[str, Any]] = []
        self._written = 0.0
        self._current: dict[str, Any] | None = None
        self._due_shape: list[int] | None = None  # of the batch, or its target, where a log record is due
        self._interval = interval
        self._level: Aggregator | None = None
        self._rank = ranks.rank() if ranks.world_size() > 1 else -1

    def update(self, context: Context, result: StepResult, *, data_seconds: float, batch: Any) -> None:
        """Take in one update, inside `epoch`; `batch` is its last one. Callbacks may add to it until `end_update`."""
        log_scalar("train.loss", result.loss, result.weight)
        log_scalar("train.tokens", result.weight)
        log_scalar("train.data_time", data_seconds)
        log_scalar("train.fp_time", result.forward_seconds)
        log_scalar("train.bp_time", result.backward_seconds)
        log_scalar("train.grad_time", result.optimizer_seconds)
        if result.grad_norm is not None:
            log_scalar("train.grad_norm", result.grad_norm)
        self._current = {
            "type": STEP,
            "step": context.step,
            "epoch": context.epoch,
            "loss": result.loss,
            "weight": result.weight,
            "grad_norm": result.grad_norm,
            "lr": context.lr,
        }
        if result.skipped is not None:
            self._current["skipped"] = result.skipped
        if context.step % self._interval == 0:
            self._due_shape = list(getattr(getattr(batch, "target", batch), "shape", ()))

    def logged(self) -> dict[str, float]:
        """What the task and the callbacks have logged in this update, by name."""
        level = self._level
        if level is None or level.by_key.keys() <= _OWN:
            return {}
        return {name: value for name, value in level.get_smoothed_values().items() if name not in _OWN}

    def log_interval(self) -> None:
        """Log the means of the interval that ends with this update, if one does; before an evaluation, and at the latest at its end."""
        if self._due_shape is not None and self._current is not None:
            self._logger.log(
                (self._current["epoch"], self._current["step"]), self._record(self._current, self._due_shape)
            )
            self._due_shape = None
            reset_meters(INNER)

    def end_update(self) -> None:
        """All callbacks have been called: log what is due, and write the update down with what was logged in it."""
        record = self._current
        if record is None:
            return
        values = self.logged()
        if values:
            record["values"] = values
            reset_meters(STEP_LEVEL)
        self.log_interval()
        self._current = None
        if self._steps is not None:
            self._waiting.append(record)
            if time.monotonic() - self._written > _WRITE_SECONDS:
                self.write_steps()

    def write_steps(self) -> None:
        """Write down the updates that have not been."""
        if self._steps is not None and self._waiting:
            self._steps.append_many(self._waiting)
            self._waiting = []
            self._written = time.monotonic()

    def run_start(self) -> None:
        """Say what the keys are, and forget what an earlier training in this process left in the inner levels."""
        for metric, metadata in _METADATA.items():
            self._logger.metadata(metric, metadata)
        reset_meters(INNER)
        reset_meters(STEP_LEVEL)

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Around the updates of an epoch: what is logged in here, by the task too, counts in every level."""
        reset_meters(EPOCH)
        try:
            with aggregate(EPOCH), aggregate(INNER), aggregate(STEP_LEVEL) as self._level:
                yield
        finally:
            self.end_update()
            self.write_steps()

    def evaluation(self, context: Context, results: Mapping[str, float], seconds: float) -> None:
        """Log what an evaluation found."""
        self.write_steps()
        self.log_interval()
        data: dict[str, Any] = {"rank": self._rank}
        data |= {f"val.{name}": value for name, value in results.items() if name != "weight"}
        if seconds > 0:
            data["val.ips"] = results.get("weight", 0.0) / seconds
        self._logger.log((context.epoch, context.step), data)

    def _record(self, update: Mapping[str, Any], shape: list[int]) -> dict[str, Any]:
        """The means of the interval that ends with this update."""
        inner = get_smoothed_values(INNER)
        seconds = sum(inner[name] for name in _TIMES)
        record: dict[str, Any] = {
            "rank": self._rank,
            "train.loss": inner["train.loss"],
            "train.ips": inner["train.tokens"] / seconds if seconds > 0 else 0.0,
            "data.shape": shape,
            "train.lr": update["lr"],
            **{name: inner[name] for name in _TIMES},
            "train.compute_time": seconds,
        }
        if "train.grad_norm" in inner:
            record["train.grad_norm"] = inner["train.grad_norm"]
        return {**{name: value for name, value in inner.items() if name not in _OWN}, **record}
