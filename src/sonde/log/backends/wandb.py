"""Weights & Biases: a run of its own or one that is passed in. Needs the package `wandb`."""

from collections.abc import Mapping
from typing import Any

from sonde.errors import import_extra
from sonde.log.backend import INFO, LOG, QueuedBackend, Record, Verbosity, as_parameters
from sonde.log.steps import StepCounter, step_parts
from sonde.records.values import decode, encode


class WandbBackend(QueuedBackend):
    """Logs to a Weights & Biases run, online or offline: one that is passed in and stays open, or
    its own.

    LOG data goes to `run.log`, together with `step`, `epoch`, `iteration` and
    `validation_iteration`; `step` is declared as the axis of every metric. W&B's own step is left
    to count by itself, because W&B silently drops records whose step goes back, as when a run
    resumes. INFO dicts go to the run's config. Only rank 0 creates a run by default.
    """

    def __init__(
        self,
        verbosity: int = Verbosity.DEFAULT,
        run: Any = None,
        *,
        init: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> None:
        """Log into `run`, or into a new one started with the arguments in `init` (project, name,
        mode, …).
        """
        super().__init__(verbosity, **options)
        self._wandb = import_extra("wandb", needed_for="WandbBackend", extra="wandb")
        self._init = dict(init or {})
        self._owns_run = run is None
        self._run = run
        self._steps = StepCounter()

    def open(self) -> None:
        """Start a run if none was passed in, and declare the axis of our metrics."""
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
            data: Any = decode(encode(record["data"]))
            self._run.log({**{str(name): value for name, value in data.items()}, **step})
        elif record["type"] == INFO:
            self._run.config.update(as_parameters(record["data"]), allow_val_change=True)

    def finish(self) -> None:
        """End the run if this backend started it."""
        if self._owns_run and self._run is not None:
            self._run.finish()
