"""MLflow: a run of its own or one that is named. Needs the package `mlflow`."""

from collections.abc import Mapping
from typing import Any, Final

from sonde.errors import import_extra
from sonde.log.backend import LOG, METADATA, QueuedBackend, Record, Verbosity
from sonde.log.scalars import scalars
from sonde.log.steps import StepCounter
from sonde.records.values import as_text, decode, encode

_MAX_TEXT: Final = 5000


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
