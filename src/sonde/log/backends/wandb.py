"""Weights & Biases, online or offline.

LOG data goes to `run.log`, with the step as the values `step`, `epoch`, `iteration` and `validation_iteration` beside it
and `step` declared as the axis of every metric. W&B's own step is left to count by itself: it silently drops records
whose step goes back, as it does when a run resumes. INFO dicts go to the run's config. Only rank 0 makes a run unless
told otherwise.
"""

from collections.abc import Mapping
from typing import Any, final

from typing_extensions import Unpack

from sonde.errors import MissingDependency
from sonde.log.backend import INFO, LOG, Record, Verbosity
from sonde.log.queued import QueuedBackend, QueuedOptions
from sonde.log.steps import StepCounter, step_parts
from sonde.records.values import decode, encode


@final
class WandbBackend(QueuedBackend):
    """Logs into a run of W&B: one that is given and stays open, or one that it starts and finishes."""

    def __init__(
        self,
        verbosity: int = Verbosity.DEFAULT,
        run: Any = None,
        *,
        init: Mapping[str, Any] | None = None,
        **options: Unpack[QueuedOptions],
    ) -> None:
        """Log into `run`, or into a new one started with the arguments in `init` (project, name, mode, …)."""
        super().__init__(verbosity, **options)
        try:
            import wandb
        except ImportError:
            raise MissingDependency("wandb", needed_for="WandbBackend", extra="wandb") from None
        self._wandb = wandb
        self._init = dict(init or {})
        self._owns_run = run is None
        self._run = run
        self._steps = StepCounter()

    def open(self) -> None:
        """Start the run, if it is to be ours, and tell it which axis our metrics have."""
        if self._run is None:
            self._run = self._wandb.init(**self._init)
        self._run.define_metric("step")
        self._run.define_metric("*", step_metric="step")

    def send(self, record: Record) -> None:
        """Log one record."""
        if record["type"] == LOG:
            parts = step_parts(record["step"])._asdict()
            step = {"step": self._steps.number(record["step"])}
            step |= {name: part for name, part in parts.items() if part is not None}
            self._run.log({**{str(name): _plain(value) for name, value in record["data"].items()}, **step})
        elif record["type"] == INFO:
            content = decode(encode(record["data"]))
            self._run.config.update(content if isinstance(content, dict) else {"info": content}, allow_val_change=True)

    def finish(self) -> None:
        """End the run, if it is ours."""
        if self._owns_run and self._run is not None:
            self._run.finish()


def _plain(value: object) -> object:
    return value if isinstance(value, (int, float, str)) else decode(encode(value))
