"""MLflow: every record one batch of metrics, not one call a metric.

Numbers of LOG records become metrics; INFO dicts become parameters (the first value given stays: MLflow's parameters
cannot change), other INFO and METADATA become tags. Epochs are counted on into one step. Only rank 0 writes unless told
otherwise.
"""

from collections.abc import Mapping
from typing import Any, final

from typing_extensions import Unpack

from sonde.errors import MissingDependency
from sonde.log.backend import LOG, METADATA, Record, Verbosity
from sonde.log.queued import QueuedBackend, QueuedOptions, scalars
from sonde.log.steps import StepCounter
from sonde.records.values import decode, encode

_MAX_TEXT = 5000


@final
class MLflowBackend(QueuedBackend):
    """Logs into a run of MLflow: the one with `run_id`, which stays open, or a new one, which it ends."""

    def __init__(
        self,
        verbosity: int = Verbosity.DEFAULT,
        *,
        tracking_uri: str | None = None,
        experiment: str = "Default",
        run_name: str | None = None,
        run_id: str | None = None,
        **options: Unpack[QueuedOptions],
    ) -> None:
        """Log to the store at `tracking_uri` (MLflow's own setting unless given)."""
        super().__init__(verbosity, **options)
        try:
            from mlflow import MlflowClient
            from mlflow.entities import Metric, Param, RunTag
        except ImportError:
            raise MissingDependency("mlflow", needed_for="MLflowBackend", extra="mlflow") from None
        self._make_client, self._make_metric, self._make_param, self._make_tag = MlflowClient, Metric, Param, RunTag
        self._tracking_uri = tracking_uri
        self._experiment = experiment
        self._run_name = run_name
        self.run_id = run_id
        """The run that is written to; None until a logger has begun a new one."""
        self._owns_run = run_id is None
        self._client: Any = None
        self._known_params: set[str] = set()
        self._steps = StepCounter()

    def open(self) -> None:
        """Start the run, if it is to be ours."""
        client = self._make_client(tracking_uri=self._tracking_uri)
        if self.run_id is None:
            known = client.get_experiment_by_name(self._experiment)
            experiment_id = known.experiment_id if known else client.create_experiment(self._experiment)
            self.run_id = client.create_run(experiment_id, run_name=self._run_name).info.run_id
        self._client = client

    def send(self, record: Record) -> None:
        """Log one record."""
        if record["type"] == LOG:
            step, milliseconds = self._steps.number(record["step"]), int(record["timestamp"] * 1000)
            metrics = [self._make_metric(name, number, milliseconds, step) for name, number in scalars(record["data"])]
            self._client.log_batch(self.run_id, metrics=metrics)
        elif record["type"] == METADATA:
            self._tag(f"metadata.{record['metric']}", record["metadata"])
        else:
            self._info(decode(encode(record["data"])))

    def finish(self) -> None:
        """End the run, if it is ours."""
        if self._owns_run and self._client is not None:
            self._client.set_terminated(self.run_id)

    def _info(self, content: object) -> None:
        if not isinstance(content, Mapping):
            self._tag("info", content)
            return
        params = [
            self._make_param(str(name), str(value)[:_MAX_TEXT])
            for name, value in content.items()
            if str(name) not in self._known_params
        ]
        self._known_params |= {param.key for param in params}
        self._client.log_batch(self.run_id, params=params)

    def _tag(self, name: str, content: object) -> None:
        text = content if isinstance(content, str) else encode(content).decode().strip()
        self._client.log_batch(self.run_id, tags=[self._make_tag(name, text[:_MAX_TEXT])])
