"""Spikes in real processes: killed in mid-dump, on several ranks, in forked children, and with no
torch at all.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from fault_injection import KILLED, exit_code_of, start_child
from rank_group import run_ranks

from sonde.records.layout import RunLayout
from sonde.records.reader import read_records
from sonde.run import Run
from sonde.spikes.detectors import ThresholdRule
from sonde.spikes.recorder import SpikeRecorder, SpikeSettings
from sonde.spikes.spike_log import read_spikes

SETTINGS = SpikeSettings(rule=ThresholdRule(above=5.0))


def spike_without_end(path: Path) -> None:
    """Spike every fourteenth step, with records of a megabyte, until killed."""
    tokens = torch.rand(64, 2048)
    recorder = SpikeRecorder(path, settings=SETTINGS)
    for step in range(10**9):
        recorder.observe(
            step,
            9.0 if step % 14 == 0 else 1.0,
            sample_ids=[("train", row) for row in range(64)],
            sample_losses=tokens[:, 0],
            token_losses=tokens,
        )
        if step % 14 == 1:
            recorder.flush()


@pytest.mark.slow
def test_kill_in_the_middle_of_a_spike_dump_leaves_earlier_records_whole(tmp_path: Path) -> None:
    num_records = 0
    for life in range(8):
        path = RunLayout(tmp_path / str(life)).record_file("spikes", 0)
        # mypy infers no lambda with a default
        pid = start_child(lambda path=path: spike_without_end(path))  # type: ignore[misc]
        while not path.exists() or path.stat().st_size < 500_000:
            time.sleep(0.001)
        time.sleep(0.003 * life)
        os.kill(pid, signal.SIGKILL)
        assert exit_code_of(pid) == KILLED
        reading = read_records(path)
        found = list(reading)
        assert reading.num_bad == 0, "a record before the last one is damaged"
        spikes = [record for record in found if record["type"] == "SPIKE"]
        assert [record["step"] for record in spikes] == [
            14 * number for number in range(len(spikes))
        ]
        assert {len(record["tokens"]) for record in spikes} == {8}
        num_records += len(spikes)
        # The next life goes on behind whatever was torn.
        with SpikeRecorder(path, settings=SETTINGS) as recorder:
            recorder.observe(10**6, 9.0)
        assert len(read_spikes(tmp_path / str(life)).spikes) == len(spikes) + 1
    assert num_records >= 8


@pytest.mark.slow
def test_ranks_agree_by_a_collective_and_their_records_are_one_event(tmp_path: Path) -> None:
    def any_rank(own: bool) -> bool:
        flag = torch.tensor(float(own))
        dist.all_reduce(flag, op=dist.ReduceOp.MAX)
        return bool(flag.item())

    def work(rank: int) -> list[str | None]:
        kinds = []
        with Run(tmp_path) as run:
            dist.barrier()
            with SpikeRecorder(
                run.records("spikes"), settings=SETTINGS, rank=rank, agree=any_rank
            ) as recorder:
                for step in range(30):
                    loss = 9.0 if (rank, step) == (2, 10) else 1.0
                    event = recorder.observe(
                        step, loss, sample_ids=[("t", 100 * rank + step)], sample_losses=[loss]
                    )
                    kinds.append(event.kind if event else None)
        return kinds

    results = run_ranks(3, work)
    assert [kinds[10] for kinds in results] == ["elsewhere", "elsewhere", "spike"]
    assert all(kind is None for kinds in results for step, kind in enumerate(kinds) if step != 10)
    (spike,) = read_spikes(tmp_path).spikes
    assert (spike.event.kind, spike.ranks) == ("spike", (0, 1, 2))
    assert [sample.sample for sample in spike.samples()] == [210, 10, 110]
    assert all(len(entries) == 3 for entries in spike.steps.values())


@pytest.mark.slow
def test_ranks_that_are_given_the_same_loss_write_the_same_event(tmp_path: Path) -> None:
    losses = [3.0 + 0.01 * ((7 * step) % 11) for step in range(200)]
    losses[150] = 5.0

    def work(rank: int) -> list[int]:
        with Run(tmp_path) as run, SpikeRecorder(run.records("spikes"), rank=rank) as recorder:
            return [
                step
                for step, loss in enumerate(losses)
                if recorder.observe(step, loss, sample_ids=[rank])
            ]

    assert run_ranks(2, work) == [[150], [150]]
    (spike,) = read_spikes(tmp_path).spikes
    assert spike.ranks == (0, 1)


def test_a_forked_child_writes_its_own_spikes(tmp_path: Path) -> None:
    recorder = SpikeRecorder(tmp_path / "s", settings=SETTINGS)
    recorder.observe(1, 9.0)
    recorder.flush()

    def child() -> None:
        recorder._event = None
        recorder._loss.open = None
        recorder.observe(2, 9.0)
        recorder.flush()
        os._exit(0)

    assert exit_code_of(start_child(child)) == 0
    recorder.close()
    assert [record["step"] for record in read_records(tmp_path / "s")] == [1, 2, 1]


def test_importing_and_watching_floats_loads_no_torch(tmp_path: Path) -> None:
    code = (
        "import sys; from sonde.spikes import SpikeRecorder, TokenLossSpike\nwith"
        f" SpikeRecorder({str(tmp_path / 's')!r}) as recorder: recorder.observe(0, float('nan'),"
        " sample_ids=[1])\nimport sonde.cli.spikes\nprint('torch' in sys.modules, 'tokenizers' in"
        " sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    assert len(list(read_records(tmp_path / "s"))) == 2
