"""Events where people look: the trackers that a script has active, the real packages."""

import sys
from pathlib import Path

import pytest

from sonde.alerts import Alert, Alerts, tell_trackers
from sonde.curves.event_logs import tensorboard_sources

ALERT = Alert(
    step=917, kind="spike", title="The loss is 25.", cause="garbled", path="/r", host="gpu-7"
)


def test_a_tracker_that_is_not_active_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "mlflow"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    assert tell_trackers(ALERT) == []
    assert "wandb" not in sys.modules


@pytest.mark.slow
def test_mlflow_gets_a_tag_for_every_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    assert tell_trackers(ALERT) == []
    with mlflow.start_run() as run:
        assert tell_trackers(ALERT) == ["mlflow"]
    tags = mlflow.MlflowClient().get_run(run.info.run_id).data.tags
    assert tags["sonde.event.917"] == ALERT.text()


@pytest.mark.slow
def test_mlflow_gets_what_is_sent_from_the_thread_of_alerts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path}/mlruns")
    alerts = Alerts(tell_trackers)
    with mlflow.start_run() as run:
        assert alerts.send(ALERT)
        assert alerts.wait(30)
    assert "sonde.event.917" in mlflow.MlflowClient().get_run(run.info.run_id).data.tags
    assert "mlflow_run" not in ALERT.document()


@pytest.mark.slow
def test_wandb_gets_the_event_in_its_summary(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wandb = pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    with wandb.init(project="x", dir=str(tmp_path)) as run:
        assert tell_trackers(ALERT) == ["wandb"]
        assert run.summary["sonde/event_step"] == 917
        assert run.summary["sonde/event_cause"] == "garbled"
    wandb.teardown()  # ends its service process


@pytest.mark.slow
def test_tensorboard_gets_a_text_at_the_step(tmp_path: Path) -> None:
    tensorboard = pytest.importorskip("torch.utils.tensorboard")
    with tensorboard.SummaryWriter(tmp_path) as writer:
        assert tell_trackers(ALERT, tensorboard=writer) == ["tensorboard"]
    (source,) = tensorboard_sources(tmp_path)
    list(source.points)
    (told,) = source.settings.values()
    assert told.startswith("sonde: step 917, spike. The loss is 25.")


def test_a_tracker_that_fails_raises_nothing() -> None:
    class Broken:
        def add_text(self, *_: object) -> None:
            raise OSError("the disk is full")

    assert tell_trackers(ALERT, tensorboard=Broken()) == []
