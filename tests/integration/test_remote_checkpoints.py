"""Checkpoints below a URL: an S3 server and memory. Whole or not there, whatever call of a save is
the last.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from fault_injection import KILLED, run_in_child
from object_store import s3_server
from rank_group import run_ranks
from tiny_training import make_trainer, weights
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

from sonde.checkpoint.folder import About, Keep
from sonde.checkpoint.store import BackgroundSaver, CheckpointStore
from sonde.checkpoint.weights import load_weights, save_average
from sonde.cli.show import report
from sonde.errors import DamagedFile
from sonde.records.checksums import verify_checksums
from sonde.records.storage import UrlStorage, storage_at
from sonde.run import Run
from sonde.train.stopping import StopWhen

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with s3_server() as address:
        yield address


@pytest.fixture(params=["memory", "s3"])
def url(request: pytest.FixtureRequest, tmp_path: Path, server: str) -> str:
    return f"{request.param}://bucket/{tmp_path.name}/checkpoints"


def state(step: int) -> dict[str, Any]:
    return {"model": {"weight": torch.full((2, 3), float(step)), "bias": torch.zeros(2)}, "n": step}


def test_a_state_comes_back_is_verified_pruned_averaged_and_set_aside(url: str) -> None:
    store = CheckpointStore(url, run_id="mine")
    for step in (1, 2, 3, 2):
        assert store.save(step, state(step)) == f"{url}/step-{step:012d}"
    assert torch.equal(store.load(2)["model"]["weight"], state(2)["model"]["weight"])
    assert store.folder.newest() == (3, {})
    model = nn.Linear(3, 2)
    assert load_weights(url, model) == 3
    assert load_weights(str(save_average(store.folder, [1, 2, 3])), model) == 3
    assert model.weight[0, 0].item() == 2.0
    assert store.folder.prune(Keep(newest=2)) == [1]
    store.folder.at(3).write("tensors.safetensors", b"other")
    with pytest.raises(DamagedFile, match="tensors"):
        store.load(3)
    assert list(store.folder.newest()[1]) == [3]
    assert str(store.folder.set_aside([3])).startswith(f"{url}/set-aside-")
    assert store.folder.steps() == [2]


@pytest.mark.parametrize("second", [2, 1], ids=["next step", "same step again"])
def test_a_kill_at_any_call_of_a_save_leaves_a_valid_checkpoint(
    server: str, tmp_path: Path, second: int
) -> None:
    def save(url: str, step: int, last: int = 1 << 30) -> int:
        calls = [0]
        real = UrlStorage._ask

        def counted(self: UrlStorage, call: str, *arguments: Any, **options: Any) -> Any:
            calls[0] += 1
            if calls[0] == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, call, *arguments, **options)

        UrlStorage._ask = counted  # type: ignore[method-assign]  # replaced for this test
        try:
            store = CheckpointStore(url, run_id="mine")
            store.save(step, state(step))
            store.folder.prune(Keep(newest=1))
        finally:
            UrlStorage._ask = real  # type: ignore[method-assign]  # replaced for this test
        return calls[0]

    url = f"s3://bucket/{tmp_path.name}"
    save(f"{url}/count", 1)
    num_calls = save(f"{url}/count", second)
    assert num_calls > 8
    for last in range(1, num_calls + 1):
        save(f"{url}/{last}", 1)
        # mypy infers no lambda with a default
        assert run_in_child(lambda last=last: save(f"{url}/{last}", second, last)) == KILLED  # type: ignore[misc]
        store = CheckpointStore(f"{url}/{last}", run_id="mine")
        step, rejected = store.folder.newest()
        assert step in (1, second), (
            f"no valid checkpoint after a kill at call {last} of {num_calls}"
        )
        assert rejected == {}
        assert store.load(step)["n"] == step
        save(f"{url}/{last}", 3)
        assert sorted(storage_at(f"{url}/{last}").sizes()) == [
            f"step-000000000003/{name}"
            for name in ("checksums.json", "state.json", "tensors.safetensors")
        ]


def test_another_runs_save_under_way_is_left_alone(url: str) -> None:
    theirs = CheckpointStore(url, run_id="theirs")
    theirs.save(1, state(1))
    theirs.folder.at(1).remove("checksums.json")
    CheckpointStore(url, run_id="mine").save(2, state(2))
    assert len(storage_at(url).sizes()) == 5
    theirs.save(3, state(3))
    assert theirs.folder.steps() == [2, 3]
    assert len(storage_at(url).sizes()) == 6


def test_ranks_save_a_sharded_state_together(server: str, tmp_path: Path) -> None:
    url = f"s3://bucket/{tmp_path.name}"

    def work(rank: int) -> Any:
        rows = distribute_tensor(
            torch.arange(10.0).reshape(5, 2), init_device_mesh("cpu", (2,)), [Shard(0)]
        )
        store = CheckpointStore(url)
        store.save(1, {"rows": rows, "n": 1})
        dist.barrier()
        back = store.load(1, {"rows": rows, "n": 0})["rows"]
        return bool((back.to_local() == rows.to_local()).all())

    assert run_ranks(2, work) == [True, True]
    assert CheckpointStore(url).folder.is_sharded(1)
    assert torch.equal(CheckpointStore(url).load(1)["rows"], torch.arange(10.0).reshape(5, 2))


def test_a_run_with_its_checkpoints_in_a_bucket_resumes_to_the_bit(
    server: str, tmp_path: Path
) -> None:
    def train(directory: Path, place: str | None, max_updates: int) -> list[float]:
        with Run(directory, checkpoints=place) as run:
            trainer, task = make_trainer(run, save_every_updates=3)
            trainer.train(stop=StopWhen(max_updates=max_updates))
        return weights(task)

    place = f"s3://bucket/{tmp_path.name}"
    train(tmp_path / "stopped", place, 7)
    assert train(tmp_path / "stopped", place, 12) == train(tmp_path / "whole", None, 12)
    assert CheckpointStore(place).folder.steps()[-2:] == [9, 12]
    assert not (tmp_path / "stopped" / "checkpoints").exists()


def test_a_report_is_written_into_a_bucket(
    server: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path / "run"):
        pass
    report(tmp_path / "run", out=f"s3://bucket/{tmp_path.name}/report.md")
    assert storage_at(f"s3://bucket/{tmp_path.name}").read("report.md").startswith(b"# run\n")
    assert capsys.readouterr().out.startswith(f"s3://bucket/{tmp_path.name}/report.md: ")


def test_a_store_that_fails_is_told_and_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("AWS_ENDPOINT_URL", "AWS_MAX_ATTEMPTS", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    for name, value in zip(names, ("http://127.0.0.1:9", "1", "key", "secret"), strict=True):
        monkeypatch.setenv(name, value)
    from s3fs import S3FileSystem

    S3FileSystem.clear_instance_cache()
    saver = BackgroundSaver(CheckpointStore("s3://bucket/away"), Keep())
    saver.save(1, state(1), About())
    saver.wait()
    S3FileSystem.clear_instance_cache()
    (outcome,) = saver.finished()
    assert outcome.path == "s3://bucket/away/step-000000000001"
    assert outcome.error
    assert "127.0.0.1:9" in outcome.error


def run_of_many_files(directory: Path) -> Path:
    with Run(directory) as run:
        run.checkpoints().save(1, {"model": {"w": torch.ones(3)}})
        for number in range(240):
            (run.layout.root / f"extra-{number:03d}.bin").write_bytes(os.urandom(300_000))
    return directory


def sync(run: Path, url: str) -> list[str]:
    return [sys.executable, "-m", "sonde", "sync", str(run), url]


def test_a_copy_that_is_killed_goes_on_where_it_stopped(server: str, tmp_path: Path) -> None:
    run = run_of_many_files(tmp_path / "run")
    url = f"s3://bucket/{tmp_path.name}"
    child = subprocess.Popen(sync(run, url))
    target = storage_at(url)
    while "checksums.json" not in target.sizes():
        assert child.poll() is None, "it ended before it could be killed"
        time.sleep(0.02)
    child.kill()
    child.wait()
    there = len(target.sizes())
    total = len([name for name in storage_at(run).sizes() if "index.sqlite" not in name])
    assert there < total
    again = subprocess.run(
        sync(run, url), capture_output=True, text=True, check=True, timeout=120
    ).stdout
    num_sent = int(again.split(": ")[-1].split()[0])
    assert 0 < num_sent < total
    assert verify_checksums(target) == []
    assert verify_checksums(target.at("checkpoints/step-000000000001")) == []
    for name in storage_at(run).sizes():
        assert "index.sqlite" in name or target.read(name) == (run / name).read_bytes()


def test_only_what_changed_is_sent_again(
    tmp_path: Path, server: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from sonde.cli.sync import sync as verb
    from sonde.errors import SettingError

    run = run_of_many_files(tmp_path / "run")
    url = f"memory://{tmp_path.name}"
    verb(run, url)
    verb(run, url)
    assert "0 files" in capsys.readouterr().out.splitlines()[1]
    with (run / "records" / "events.rank0.jsonl").open("ab") as file:
        file.write(b'{"type":"EVENT"}\n')
    (run / "extra-007.bin").write_bytes(bytes(300_000))  # as large as before
    verb(run, url)
    assert "2 files" in capsys.readouterr().out
    with Run(tmp_path / "other"):
        pass
    with pytest.raises(SettingError, match="another run"):
        verb(tmp_path / "other", url)
    with pytest.raises(SettingError, match="inside of"):
        verb(run, str(run / "copy"))
