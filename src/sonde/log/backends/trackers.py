"""The trackers: TensorBoard, Weights & Biases and MLflow. Each needs its package, imported when the
backend is created.

Only rank 0 writes by default. Slow calls happen in the backend's own thread (`QueuedBackend`).
"""

import os
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sonde.errors import import_extra
from sonde.log.backend import INFO, LOG, METADATA, QueuedBackend, Record, Verbosity, as_parameters
from sonde.log.steps import StepCounter, step_parts
from sonde.records.values import as_number, as_text, decode, encode

_MAX_TEXT: Final = 5000


class TensorBoardBackend(QueuedBackend):
    """Writes TensorBoard event files into a directory, with TensorBoard's own writer; torch is not
    needed.

    Every number of a LOG record becomes a point of the scalar with its name, all of a record in one
    event; INFO and METADATA become text. Epochs are continued into one step count
    (steps.StepCounter). Buffers are flushed whenever the queue is empty, so a killed run keeps its
    curves almost to the end. Only rank 0 writes by default.
    """

    def __init__(self, verbosity: int, directory: str | os.PathLike[str], **options: Any) -> None:
        super().__init__(verbosity, **options)
        import_extra("tensorboard", needed_for="TensorBoardBackend", extra="tensorboard")
        self._directory = os.fspath(directory)
        self._writer: Any = None
        self._steps = StepCounter()

    def open(self) -> None:
        """Create the event file."""
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._writer = EventFileWriter(self._directory)

    def send(self, record: Record) -> None:
        """Write one event."""
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.plugins.text.summary_v2 import text_pb

        if record["type"] == LOG:
            values = [
                {"tag": tag, "simple_value": number} for tag, number in scalars(record["data"])
            ]
            summary = summary_pb2.Summary(value=values)
            step = self._steps.number(record["step"])
        else:
            is_metadata = record["type"] == METADATA
            tag = f"metadata/{record['metric']}" if is_metadata else "info"
            text = as_text(record["metadata" if is_metadata else "data"])
            summary = text_pb(tag, text.encode(errors="backslashreplace").decode())
            step = self._steps.number(None)
        if not summary.value:
            return
        self._writer.add_event(
            event_pb2.Event(wall_time=record["timestamp"], step=step, summary=summary)
        )

    def rest(self) -> None:
        """Flush the events to disk."""
        self._writer.flush()

    def finish(self) -> None:
        """Close the event file."""
        if self._writer is not None:
            self._writer.close()


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


class MLflowBackend(QueuedBackend):
    """Logs to an MLflow run: the one with `run_id`, which stays open, or a new one, which it ends.

    Every record is one batch of metrics instead of one call per metric. Numbers of LOG records
    become metrics. INFO dicts become parameters (the first value stays, because MLflow's parameters
    cannot change); other INFO and METADATA become tags. Epochs are continued into one step count.
    Only rank 0 writes by default.
    """

    def __init__(
        self,
        verbosity: int = Verbosity.DEFAULT,
        *,
        tracking_uri: str | None = None,
        experiment: str = "Default",
        run_name: str | None = None,
        run_id: str | None = None,
        **options: Any,
    ) -> None:
        """Log to the store at `tracking_uri` (MLflow's own setting by default)."""
        super().__init__(verbosity, **options)
        self._mlflow = import_extra("mlflow", needed_for="MLflowBackend", extra="mlflow")
        self._tracking_uri = tracking_uri
        self._experiment = experiment
        self._run_name = run_name
        self.run_id = run_id
        """The run to write to; None until a logger has started a new one."""
        self._owns_run = run_id is None
        self._client: Any = None
        self._known_params: set[str] = set()
        self._steps = StepCounter()

    def open(self) -> None:
        """Start a run if none was given."""
        client = self._mlflow.MlflowClient(tracking_uri=self._tracking_uri)
        if self.run_id is None:
            known = client.get_experiment_by_name(self._experiment)
            experiment_id = (
                known.experiment_id if known else client.create_experiment(self._experiment)
            )
            self.run_id = client.create_run(experiment_id, run_name=self._run_name).info.run_id
        self._client = client

    def send(self, record: Record) -> None:
        """Log one record."""
        if record["type"] == LOG:
            step = self._steps.number(record["step"])
            milliseconds = int(record["timestamp"] * 1000)
            metrics = [
                self._mlflow.entities.Metric(name, number, milliseconds, step)
                for name, number in scalars(record["data"])
            ]
            self._client.log_batch(self.run_id, metrics=metrics)
        elif record["type"] == METADATA:
            self._tag(f"metadata.{record['metric']}", record["metadata"])
        else:
            self._info(decode(encode(record["data"])))

    def finish(self) -> None:
        """End the run if this backend started it."""
        if self._owns_run and self._client is not None:
            self._client.set_terminated(self.run_id)

    def _info(self, content: object) -> None:
        if not isinstance(content, Mapping):
            self._tag("info", content)
            return
        params = [
            self._mlflow.entities.Param(str(name), str(value)[:_MAX_TEXT])
            for name, value in content.items()
            if str(name) not in self._known_params
        ]
        self._known_params |= {param.key for param in params}
        self._client.log_batch(self.run_id, params=params)

    def _tag(self, name: str, content: object) -> None:
        self._client.log_batch(
            self.run_id, tags=[self._mlflow.entities.RunTag(name, as_text(content)[:_MAX_TEXT])]
        )


def scalars(data: Mapping[Any, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield each number in `data` with its name; dicts are flattened (`a/b`), everything else is
    skipped.
    """
    for key, value in data.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            yield from scalars(value, f"{name}/")
            continue
        if isinstance(value, (list, tuple)) and len(value) == 1:
            value = value[0]
        if getattr(value, "size", 0) == 1:  # a number or an array of numpy
            value = value.item()
        number = None if isinstance(value, str) else as_number(value)
        if number is not None:
            yield name, number
