"""Becoming a rank: which device and which backend, and who is named when a rank is gone."""

import os
import signal
from typing import Any

import pytest
import torch
import torch.distributed as dist
from rank_group import run_ranks

from sonde.errors import SondeError
from sonde.ranks import missing_ranks_named, process_group


def test_without_torchrun_there_is_one_process_and_no_group(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RANK", raising=False)
    with process_group(timeout_seconds=5) as device:
        assert device == torch.device("cpu")
        assert not dist.is_initialized()


@pytest.mark.parametrize(
    ("has_gpu", "device", "backend"), [(True, "cuda:3", "nccl"), (False, "cpu", "gloo")]
)
def test_a_process_uses_the_gpu_of_its_local_rank(
    has_gpu: bool, device: str, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: has_gpu)
    monkeypatch.setattr(torch.cuda, "set_device", calls.append)
    monkeypatch.setattr(
        dist,
        "init_process_group",
        lambda backend, timeout: calls.append((backend, timeout.seconds)),
    )
    monkeypatch.setattr(dist, "destroy_process_group", lambda: calls.append("destroyed"))
    for name, value in {
        "RANK": "7",
        "LOCAL_RANK": "3",
        "WORLD_SIZE": "8",
        "MASTER_ADDR": "here",
    }.items():
        monkeypatch.setenv(name, value)
    with process_group(timeout_seconds=9) as found:
        assert found == torch.device(device)
    assert calls == [torch.device(device)] * has_gpu + [(backend, 9), "destroyed"]


def test_an_error_of_ones_own_passes_as_it_is() -> None:
    with pytest.raises(RuntimeError, match="mine"), missing_ranks_named():
        raise RuntimeError("mine")


@pytest.mark.slow
def test_the_rank_that_died_is_named() -> None:
    def work(rank: int) -> str:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        try:
            with missing_ranks_named():
                for _ in range(100):
                    dist.all_reduce(torch.ones(1))
        except SondeError as error:
            return error.message
        return "nothing happened"

    # rank 1 was killed, so the group as a whole fails
    with pytest.raises(AssertionError) as failed:
        run_ranks(2, lambda rank: work(rank) if rank == 1 else _raised(work(rank)))
    assert "rank 0 lost rank 1 of 2" in str(failed.value)


def _raised(message: str) -> None:
    raise SondeError(message)
