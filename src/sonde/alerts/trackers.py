"""`tell_trackers`: events and verdicts where people look, in the W&B or MLflow run that the script
has open, or in its TensorBoard writer.

A tracker that the script has not imported is not imported here, and one without an active run is
left alone. Nothing is started, and nothing raises.
"""

import logging
import sys
from collections.abc import Callable
from typing import Any, Final

from sonde.alerts.message import Alert

_TAG: Final = "sonde/event"
_MAX_TAG: Final = 5000

_logger = logging.getLogger("sonde")


def tell_trackers(alert: Alert, *, tensorboard: Any = None) -> list[str]:
    """Tell every active tracker about an event; return the names of those that took it.

    `tensorboard` is the script's `SummaryWriter`: TensorBoard has no run that could be found. W&B
    gets an alert and the step in the summary, MLflow a tag for every event, TensorBoard a text at
    the step.
    """
    names = []
    for name, tell in (
        ("wandb", _tell_wandb),
        ("mlflow", _tell_mlflow),
        ("tensorboard", _tensorboard(tensorboard)),
    ):
        try:
            if tell(alert):
                names.append(name)
        except Exception as error:  # noqa: BLE001  a tracker never stops a training
            _logger.warning("sonde: %s did not take an event: %s", name, type(error).__name__)
    return names


def _tell_wandb(alert: Alert) -> bool:
    wandb = sys.modules.get("wandb")
    run = getattr(wandb, "run", None)
    if wandb is None or run is None:
        return False
    run.alert(title=f"step {alert.step:,}: {alert.kind}", text=alert.text())
    summary = {"step": alert.step, "kind": alert.kind, "title": alert.title, "cause": alert.cause}
    run.summary.update({f"{_TAG}_{name}": value for name, value in summary.items()})
    return True


def open_mlflow_run() -> str:
    """Return the identity of the MLflow run that this thread has open, or nothing. MLflow knows the
    runs of a thread only there, so this is asked where an alert begins and not where it is sent.
    """
    mlflow = sys.modules.get("mlflow")
    try:
        active = mlflow.active_run() if mlflow is not None else None
        return str(active.info.run_id) if active is not None else ""
    except Exception:  # noqa: BLE001  a tracker never stops a training
        return ""


def _tell_mlflow(alert: Alert) -> bool:
    run = alert.mlflow_run or open_mlflow_run()
    if not run:
        return False
    client = sys.modules["mlflow"].MlflowClient()
    client.set_tag(run, f"sonde.event.{alert.step}", alert.text()[:_MAX_TAG])
    return True


def _tensorboard(writer: Any) -> Callable[[Alert], bool]:
    def tell(alert: Alert) -> bool:
        if writer is None:
            return False
        # Two spaces before a line break: TensorBoard shows Markdown.
        writer.add_text(_TAG, alert.text().replace("\n", "  \n"), alert.step)
        return True

    return tell
