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
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TextIO, TypeAlias, final

from typing_extensions import override

from sonde import ranks
from sonde.metrics.stack import aggregate, get_meters, get_smoothed_values, log_scalar, reset_meters
from sonde.records.append import RecordFile
from sonde.records.steps import STEP
from sonde.train.step import StepResult

Log: TypeAlias = Callable[[tuple[int, int], dict[str, Any]], None]
"""Writes one record: `log((epoch, update), data)`."""

STEP_LEVEL: Final = "train_step"
INNER: Final = "train_inner"
EPOCH: Final = "train"
_WRITE_SECONDS: Final = 0.02
"""Records of updates wait no longer for the next update's: a system call for each would cost a fast loop more than its metrics do."""
_TIMES: Final = ("train.data_time", "train.fp_time", "train.bp_time", "train.grad_time")
_OWN: Final = frozenset({"train.loss", "train.tokens", "train.grad_norm", *_TIMES})
"""What the reporter logs itself."""
METADATA: Final[dict[str, dict[str, str]]] = {
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
class Where(NamedTuple):
    """The place of a record in the run."""

    epoch: int
    num_updates: int
    lr: float


@final
class Reporter:
    """Feeds the metrics at every update and the log at every `interval`-th."""

    def __init__(self, log: Log, *, interval: int, steps: RecordFile | None = None) -> None:
        """`log` takes the means over `interval` updates, `steps` what every update did."""
        self._log = log
        self._steps = steps
        self._waiting: list[dict[str, Any]] = []
        self._written = 0.0
        self._current: tuple[Where, dict[str, Any], list[int]] | None = None
        self._is_log_due = False
        self._interval = interval
        self._rank = ranks.rank() if ranks.world_size() > 1 else -1

    def update(self, where: Where, result: StepResult, *, data_seconds: float, batch: Any) -> None:
        """Take in one update, inside `epoch`; `batch` is its last one. Callbacks may add to it until `end_update`."""
        log_scalar("train.loss", result.loss, result.weight)
        log_scalar("train.tokens", result.weight)
        log_scalar("train.data_time", data_seconds)
        log_scalar("train.fp_time", result.forward_seconds)
        log_scalar("train.bp_time", result.backward_seconds)
        log_scalar("train.grad_time", result.optimizer_seconds)
        if result.grad_norm is not None:
            log_scalar("train.grad_norm", result.grad_norm)
        self._current = where, _step_record(where, result), _shape_of(batch)
        self._is_log_due = where.num_updates % self._interval == 0

    def logged(self) -> dict[str, float]:
        """What the task and the callbacks have logged in this update, by name."""
        level = get_meters(STEP_LEVEL)
        if level is None or level.by_key.keys() <= _OWN:
            return {}
        return {name: value for name, value in level.get_smoothed_values().items() if name not in _OWN}

    def log_interval(self) -> None:
        """Log the means of the interval that ends with this update, if one does; before an evaluation, and at the latest at its end."""
        if self._is_log_due and self._current is not None:
            where, _, shape = self._current
            self._is_log_due = False
            self._log((where.epoch, where.num_updates), self._record(where, shape))
            reset_meters(INNER)

    def end_update(self) -> None:
        """All callbacks have been called: log what is due, and write the update down with what was logged in it."""
        if self._current is None:
            return
        _, record, _ = self._current
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
        """Forget what an earlier training in this process left in the inner levels."""
        reset_meters(INNER)
        reset_meters(STEP_LEVEL)

    @contextmanager
    def epoch(self) -> Iterator[None]:
        """Around the updates of an epoch: what is logged in here, by the task too, counts in every level."""
        reset_meters(EPOCH)
        try:
            with aggregate(EPOCH), aggregate(INNER), aggregate(STEP_LEVEL):
                yield
        finally:
            self.end_update()
            self.write_steps()

    def evaluation(self, where: Where, results: Mapping[str, float], seconds: float) -> None:
        """Log what an evaluation found."""
        self.write_steps()
        self.log_interval()
        data: dict[str, Any] = {"rank": self._rank}
        data |= {f"val.{name}": value for name, value in results.items() if name != "weight"}
        if seconds > 0:
            data["val.ips"] = results.get("weight", 0.0) / seconds
        self._log((where.epoch, where.num_updates), data)

    def _record(self, where: Where, shape: list[int]) -> dict[str, Any]:
        inner = get_smoothed_values(INNER)
        seconds = sum(inner[name] for name in _TIMES)
        times = {name: inner[name] for name in _TIMES}
        record: dict[str, Any] = {
            "rank": self._rank,
            "train.loss": inner["train.loss"],
            "train.ips": inner["train.tokens"] / seconds if seconds > 0 else 0.0,
            "data.shape": shape,
            "train.lr": where.lr,
            **times,
            "train.compute_time": seconds,
        }
        if "train.grad_norm" in inner:
            record["train.grad_norm"] = inner["train.grad_norm"]
        return {**{name: value for name, value in inner.items() if name not in _OWN}, **record}


def _step_record(where: Where, result: StepResult) -> dict[str, Any]:
    record: dict[str, Any] = {
        "type": STEP,
        "step": where.num_updates,
        "epoch": where.epoch,
        "loss": result.loss,
        "weight": result.weight,
        "grad_norm": result.grad_norm,
        "lr": where.lr,
    }
    if result.skipped is not None:
        record["skipped"] = result.skipped
    return record


def _shape_of(batch: Any) -> list[int]:
    """The shape of a batch, or of its target: what the log calls `data.shape`."""
    return list(getattr(getattr(batch, "target", batch), "shape", ()))
