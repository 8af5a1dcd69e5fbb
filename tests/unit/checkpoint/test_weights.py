"""Weights without a trainer: loaded whole or not at all, averaged exactly; and sharded states,
which are never pickled.
"""

import errno
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from fault_injection import failing, faults_of
from rank_group import run_ranks
from tiny_training import Regression, make_trainer, weights
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard

from sonde.checkpoint.folder import CheckpointFolder
from sonde.checkpoint.store import CheckpointStore
from sonde.checkpoint.weights import average_weights, find_checkpoint, load_weights
from sonde.errors import DamagedFile, RunNotFound, SettingError, SondeError
from sonde.run import Run
from sonde.train.stopping import StopWhen


def test_weights_of_a_run_its_folder_or_one_checkpoint_are_loaded(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        trainer, task = make_trainer(run, save_every_updates=2)
        trainer.train(stop=StopWhen(max_updates=5))
    for path in (
        tmp_path,
        tmp_path / "checkpoints",
        tmp_path / "checkpoints" / "step-000000000005",
    ):
        fresh = Regression()
        assert load_weights(path, fresh.model) == 5
        assert weights(fresh) == weights(task)
    (tmp_path / "checkpoints" / "step-000000000005" / "state.json").write_text("{}")
    assert load_weights(tmp_path, Regression().model) == 4
    with pytest.raises(DamagedFile, match=r"state\.json"):
        load_weights(tmp_path / "checkpoints" / "step-000000000005", Regression().model)


def test_weights_of_a_compiled_model_are_loaded_into_one(tmp_path: Path) -> None:
    trained = nn.Linear(3, 2)
    fresh = nn.Linear(3, 2)
    compiled: Any = torch.compile(trained, backend="eager")
    CheckpointStore(tmp_path).save(1, {"model": compiled.state_dict()})
    compiled_fresh: Any = torch.compile(fresh, backend="eager")
    assert load_weights(tmp_path, compiled_fresh) == 1
    assert torch.equal(fresh.weight, trained.weight)


def test_a_model_that_does_not_fit_is_refused_with_a_list_and_stays_as_it_was(
    tmp_path: Path,
) -> None:
    CheckpointStore(tmp_path).save(1, {"model": nn.Sequential(nn.Linear(2, 2)).state_dict()})
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(SettingError) as raised:
        load_weights(tmp_path, model)
    assert "the checkpoint lacks 1.weight" in str(raised.value)
    assert "0.weight is [2, 2] in the checkpoint, [3, 2] in the model" in str(raised.value)
    assert all(map(torch.equal, before, model.parameters()))


def test_a_place_without_checkpoints_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound, match="no usable checkpoint"):
        find_checkpoint(tmp_path)


def test_a_checkpoint_without_weights_is_refused(tmp_path: Path) -> None:
    CheckpointStore(tmp_path).save(1, {"counters": {"n": 1}})
    with pytest.raises(DamagedFile, match="holds no weights"):
        load_weights(tmp_path, nn.Linear(1, 1))


def test_the_average_is_the_mean_and_whole_numbers_come_from_the_last(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    for step in (1, 2):
        store.save(step, {"model": {"w": torch.tensor([1.0, 2.0]) * step, "n": torch.tensor(step)}})
    mean = average_weights([store.folder.at(1), store.folder.at(2)])
    assert mean["w"].tolist() == [1.5, 3.0]
    assert mean["w"].dtype == torch.float32
    assert mean["n"].item() == 2


def test_checkpoints_of_different_models_are_not_averaged(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    store.save(1, {"model": {"w": torch.ones(2)}})
    store.save(2, {"model": {"w": torch.ones(3)}})
    with pytest.raises(SettingError, match="holds other weights"):
        average_weights([store.folder.at(1), store.folder.at(2)])


def sharded_run(directory: Path, rank: int, updates: int) -> Any:
    task = Regression()
    model = task.model
    fully_shard(model)
    with Run(directory, rank=rank, world_size=2) as run:
        trainer, _ = make_trainer(run, rank, 2, task, save_every_updates=2, keep_checkpoints=2)
        trainer.train(stop=StopWhen(max_updates=updates))
    assert isinstance(task.model, FSDPModule)
    task.model.reshard()  # an evaluation leaves them whole
    # narrower here than its type says
    whole = [parameter.full_tensor().flatten() for parameter in model.parameters()]  # type: ignore[attr-defined]
    return torch.cat(whole).tolist()


@pytest.mark.slow
def test_a_sharded_run_resumes_exactly_and_one_process_can_load_its_weights(tmp_path: Path) -> None:
    def work(rank: int) -> list[Any]:
        expected = sharded_run(tmp_path / "whole", rank, 7)
        sharded_run(tmp_path / "parts", rank, 4)
        return [expected, sharded_run(tmp_path / "parts", rank, 7)]

    for expected, resumed in run_ranks(2, work):
        assert resumed == expected
    assert CheckpointFolder(tmp_path / "parts" / "checkpoints").steps() == [6, 7]
    checkpoint = tmp_path / "parts" / "checkpoints" / "step-000000000007"
    names = sorted(path.name for path in (checkpoint / "sharded").iterdir())
    assert len(names) == 2
    assert all(name.endswith(".safetensors") for name in names)
    fresh = Regression()
    assert load_weights(tmp_path / "parts", fresh.model) == 7
    assert weights(fresh) == expected
    content = bytearray((checkpoint / "sharded" / names[0]).read_bytes())
    content[-3] ^= 4
    (checkpoint / "sharded" / names[0]).write_bytes(content)
    with pytest.raises(DamagedFile, match="sharded/"):
        load_weights(checkpoint, fresh.model)


@pytest.mark.slow
def test_a_failing_disk_under_a_sharded_save_is_told_on_every_rank_and_the_checkpoint_before_stays(
    tmp_path: Path,
) -> None:
    def work(rank: int) -> list[str]:
        sharded_run(tmp_path, rank, 2)
        sentences = []
        for operation in ("mkdir", "write", "replace"):
            with faults_of(operation, failing(errno.EIO)) if rank == 0 else nullcontext():
                try:
                    broken_save(tmp_path)
                except SondeError as error:
                    sentences.append(error.message)
        return sentences

    for told in run_ranks(2, work):
        assert told == ["a sharded checkpoint could not be saved"] * 3
    assert CheckpointFolder(tmp_path / "checkpoints").newest()[0] == 2


def broken_save(directory: Path) -> None:
    task = Regression()
    fully_shard(task.model)
    CheckpointStore(directory / "checkpoints").save(3, {"model": task.model.state_dict()})
