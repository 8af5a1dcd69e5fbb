"""W&B (offline) and MLflow (local files), each in a process of its own: they start services and
warn at import.
"""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from wandb_file import wandb_records

from sonde.errors import MissingDependency
from sonde.log import MLflowBackend, WandbBackend

WANDB = """
import json, sys
from sonde.log import Logger, Verbosity, WandbBackend
init = {"project": "sonde", "dir": sys.argv[1], "mode": "offline"}
backend = WandbBackend(Verbosity.DEFAULT, init=init)
other = Logger([WandbBackend(Verbosity.DEFAULT)], rank=1)   # makes no run
with Logger([backend]) as logger:
    logger.info({"lr": 0.1})
    for step in (0, 1, 2, 1):                                # going back must not be dropped
        logger.log((0, step), {"loss": step / 2, "note": "x", "shape": [1, 2], "bad": float("nan")})
print(logger.num_lost)
"""

MLFLOW = """
import json, sys
from mlflow import MlflowClient
from sonde.log import Logger, MLflowBackend, Verbosity
uri = "file://" + sys.argv[1]
backend = MLflowBackend(Verbosity.DEFAULT, tracking_uri=uri, experiment="sonde", run_name="one")
with Logger([backend]) as logger:
    logger.metadata("loss", {"unit": "nats"})
    logger.info({"lr": 0.1})
    logger.info({"lr": 0.2})                                 # MLflow's parameters cannot change
    logger.info("words")
    for epoch in range(2):
        for iteration in range(2):
            logger.log((epoch, iteration), {"loss": epoch + iteration / 2, "note": "x"})
client = MlflowClient(uri)
run = client.get_run(backend.run_id)
points = [(one.step, one.value) for one in client.get_metric_history(backend.run_id, "loss")]
print(json.dumps([logger.num_lost, run.data.params, run.data.tags, run.info.status, points]))
"""


def run(script: str, directory: Path, **environment: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, str(directory)],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.slow
def test_wandb_keeps_every_record_offline_also_when_a_run_goes_back(tmp_path: Path) -> None:
    pytest.importorskip("wandb")
    assert run(WANDB, tmp_path, WANDB_SILENT="true") == "0"
    (path,) = tmp_path.glob("wandb/offline-run-*/*.wandb")
    history: list[dict[str, Any]] = []
    config: dict[str, Any] = {}
    script = """
import json, sys
from wandb.proto import wandb_internal_pb2
for line in sys.stdin:
    record = wandb_internal_pb2.Record()
    record.ParseFromString(bytes.fromhex(line))
    kind = record.WhichOneof("record_type")
    items = []
    if kind == "history":
        items = record.history.item
    elif kind == "config":
        items = record.config.update
    named = {item.key or "/".join(item.nested_key): item.value_json for item in items}
    print(json.dumps([kind, named]))
"""
    hexadecimal = "\n".join(record.hex() for record in wandb_records(path.read_bytes()))
    done = subprocess.run(
        [sys.executable, "-c", script],
        input=hexadecimal,
        capture_output=True,
        text=True,
        check=True,
    )
    for kind, items in map(json.loads, done.stdout.splitlines()):
        if kind == "history":
            history.append({name: json.loads(value) for name, value in items.items()})
        elif kind == "config":
            config |= items
    assert [(row["step"], row["epoch"], row["loss"]) for row in history] == [
        (0, 0, 0),
        (1, 0, 0.5),
        (2, 0, 1),
        (1, 0, 0.5),
    ]
    assert history[0]["shape"] == [1, 2]
    assert config["lr"] == "0.1"


@pytest.mark.slow
def test_mlflow_reads_the_metrics_back(tmp_path: Path) -> None:
    if importlib.util.find_spec("mlflow") is None:
        pytest.skip("mlflow is not installed")
    output = run(MLFLOW, tmp_path, MLFLOW_ALLOW_FILE_STORE="true")
    num_lost, params, tags, status, points = json.loads(output)
    assert num_lost == 0
    assert params == {"lr": "0.1"}
    assert (tags["info"], tags["metadata.loss"], tags["mlflow.runName"]) == (
        "words",
        '{"unit":"nats"}',
        "one",
    )
    assert status == "FINISHED"
    assert points == [[0, 0.0], [1, 0.5], [2, 1.0], [3, 1.5]]


@pytest.mark.parametrize(
    ("package", "backend"), [("wandb", WandbBackend), ("mlflow", MLflowBackend)]
)
def test_a_missing_package_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, package: str, backend: Any
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependency, match=package):
        backend()
