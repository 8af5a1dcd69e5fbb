"""The training loop: what happens when, what is recorded, and that a resume is as if nothing had
happened.
"""

import json
import os
import signal
import time
from pathlib import Path
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from rank_group import run_ranks
from tiny_training import Numbers, Regression

from sonde import ranks
from sonde.callbacks.base import Callback, Order
from sonde.callbacks.context import Context
from sonde.callbacks.throughput import ThroughputCallback
from sonde.errors import SettingError
from sonde.run import Run
from sonde.train.rates import Rates
from sonde.train.schedule import Schedule
from sonde.train.settings import TrainerSettings
from sonde.train.stopping import StopWhen
from sonde.train.trainer import Trainer


def make(
    run: Run | None = None, rank: int = 0, world_size: int = 1, **settings: Any
) -> tuple[Trainer, Regression]:
    task = Regression()
    optimizer = torch.optim.AdamW(task.model.parameters(), lr=0.0)
    trainer = Trainer(
        task,
        Numbers(rank, world_size),
        optimizer,
        schedule=Schedule(schedule="constant", lr=1e-2),
        run=run,
        valid_data=lambda: [torch.ones(3, 4)],
        settings=TrainerSettings(**({"log_interval": 1} | settings)),
    )
    return trainer, task


def weights(task: Regression) -> list[float]:
    return torch.cat([p.detach().flatten() for p in task.model.parameters()]).tolist()


def records(directory: Path, kind: str = "log", rank: int = 0) -> list[dict[str, Any]]:
    lines = (directory / "records" / f"{kind}.rank{rank}.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def events(directory: Path) -> list[str]:
    return [record["event"] for record in records(directory, "events")]


def losses(directory: Path) -> dict[int, float]:
    """The training loss by step; a later record of the same step stands for it."""
    return {
        r["step"][1]: r["data"]["train.loss"]
        for r in records(directory)
        if "train.loss" in r.get("data", {})
    }


def test_training_stops_where_it_is_told_to_and_says_why(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        trainer, _ = make(run)
        assert trainer.train(stop=StopWhen(max_updates=9)) == "max_updates: 9 steps were made"
        assert run.checkpoint_place == tmp_path / "checkpoints"
    assert sorted(losses(tmp_path)) == list(range(1, 10))
    assert losses(tmp_path)[9] < losses(tmp_path)[1]
    assert sorted(path.name for path in (tmp_path / "checkpoints").iterdir()) == [
        "step-000000000006",
        "step-000000000009",
    ]
    assert events(tmp_path)[-2:] == ["stop", "end"]


def test_a_record_has_the_keys_that_users_know(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        make(run)[0].train(stop=StopWhen(max_epochs=1))
    data = [record["data"] for record in records(tmp_path) if record["type"] == "LOG"]
    times = ("train.data_time", "train.fp_time", "train.bp_time", "train.grad_time")
    assert data[0].keys() >= {
        "rank",
        "train.loss",
        "train.ips",
        "data.shape",
        "train.lr",
        "train.compute_time",
        *times,
    }
    assert data[0]["rank"] == -1
    assert data[0]["data.shape"] == [2, 4]
    assert data[0]["train.compute_time"] == pytest.approx(sum(data[0][name] for name in times))
    assert data[-1].keys() >= {"val.loss", "val.ips"}
    assert {record["metric"] for record in records(tmp_path) if record["type"] == "METADATA"} >= {
        "train.loss",
        "val.loss",
    }


def test_the_inner_level_is_reset_at_every_log_record_and_weighted_by_tokens(
    tmp_path: Path,
) -> None:
    with Run(tmp_path / "each") as run:
        make(run)[0].train(stop=StopWhen(max_updates=6))
    with Run(tmp_path / "pairs") as run:
        make(run, log_interval=2)[0].train(stop=StopWhen(max_updates=6))
    each = losses(tmp_path / "each")
    pairs = losses(tmp_path / "pairs")
    rows = {update: 2 + (update - 1) % 3 for update in range(1, 7)}
    expected = (each[3] * rows[3] + each[4] * rows[4]) / (rows[3] + rows[4])
    assert pairs[4] == pytest.approx(expected, rel=1e-12)


def test_the_same_seed_gives_the_same_weights_and_losses_bit_for_bit(tmp_path: Path) -> None:
    results = []
    for name in ("a", "b"):
        with Run(tmp_path / name) as run:
            trainer, task = make(run)
            trainer.train(stop=StopWhen(max_updates=15))
        results.append((weights(task), losses(tmp_path / name)))
    assert results[0] == results[1]


@pytest.mark.parametrize("stop_at", [1, 5, 6, 8])
@pytest.mark.parametrize("update_freq", [1, 2])
def test_a_resumed_run_equals_one_that_never_stopped(
    tmp_path: Path, stop_at: int, update_freq: int
) -> None:
    with Run(tmp_path / "whole") as run:
        trainer, whole = make(run, update_freq=update_freq)
        trainer.train(stop=StopWhen(max_updates=10))
    for target in (stop_at, 10):
        with Run(tmp_path / "parts") as run:
            trainer, parts = make(run, update_freq=update_freq)
            trainer.train(stop=StopWhen(max_updates=target))
    assert weights(parts) == weights(whole)
    assert losses(tmp_path / "parts") == losses(tmp_path / "whole")
    assert "resume" in events(tmp_path / "parts")


def test_evaluation_leaves_no_trace_in_the_training(tmp_path: Path) -> None:
    results = []
    for number, every in enumerate((1, None)):
        with Run(tmp_path / str(number)) as run:
            trainer, task = make(run, validate_every_updates=every, validate_every_epochs=None)
            trainer.train(stop=StopWhen(max_updates=7))
        results.append((weights(task), losses(tmp_path / str(number))))
    assert results[0] == results[1]


def test_a_damaged_newest_checkpoint_is_passed_over(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        make(run, save_every_updates=2)[0].train(stop=StopWhen(max_updates=6))
    (tmp_path / "checkpoints" / "step-000000000006" / "state.json").write_text("{}")
    with Run(tmp_path) as run:
        make(run)[0].train(stop=StopWhen(max_updates=7))
    resumed = [record for record in records(tmp_path, "events") if record["event"] == "resume"]
    assert [record["step"] for record in resumed] == [4]
    assert "checkpoint_rejected" in events(tmp_path)


def test_patience_ends_a_run_whose_evaluations_do_not_improve(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        trainer, task = make(run, validate_every_updates=1)
        task.model.requires_grad_(True)
        # Weights that hardly move: every evaluation is a tie.
        trainer.rates = Rates(Schedule(schedule="constant", lr=1e-30), trainer.optimizer)
        reason = trainer.train(stop=StopWhen(patience=3, max_updates=50))
    assert reason.startswith("patience: 3 evaluations")


def test_hours_count_over_all_starts_of_a_run(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        reason = make(run)[0].train(stop=StopWhen(max_hours=1e-6))
    assert reason.startswith("max_hours")
    before = max(losses(tmp_path))
    with Run(tmp_path) as run:
        trainer, _ = make(run)
        trainer.train(stop=StopWhen(max_hours=1e-6, max_updates=100))
    assert max(losses(tmp_path)) <= before + 1  # its time was up when it started


def test_evaluations_count_towards_max_hours(tmp_path: Path) -> None:
    def slow() -> list[torch.Tensor]:
        time.sleep(0.2)
        return [torch.ones(2, 4)]

    with Run(tmp_path) as run:
        trainer, _ = make(run, validate_every_updates=1)
        trainer.valid_data = slow
        reason = trainer.train(stop=StopWhen(max_hours=0.5 / 3600, max_updates=1000))
    assert reason.startswith("max_hours")
    assert max(losses(tmp_path)) <= 4


class SeenRates(Callback):
    """Notes the rate of every update."""

    def __init__(self) -> None:
        self.seen: list[float] = []

    def on_step_end(self, context: Context) -> None:
        self.seen.append(context.lr)


def test_the_schedule_counts_updates_whatever_update_freq_is() -> None:
    seen = []
    for update_freq in (1, 3):
        trainer, _ = make(None, update_freq=update_freq)
        trainer.rates = Rates(
            Schedule(schedule="inverse_sqrt", lr=0.1, warmup=3), trainer.optimizer
        )
        rates = SeenRates()
        trainer.train(stop=StopWhen(max_updates=6), callbacks=[rates])
        seen.append(rates.seen)
    assert seen[0] == seen[1]
    assert len(set(seen[0])) == 6


class Asking(Callback):
    """Asks for things at the end of the third step, and notes the moments it sees."""

    order: ClassVar[Order] = Order.EVALUATE

    def __init__(self) -> None:
        self.moments: list[str] = []
        self.num_steps = 0

    def on_run_start(self, context: Context) -> None:
        self.moments.append("run_start")

    def on_step_end(self, context: Context) -> None:
        self.num_steps += 1
        if context.step == 3:
            assert "mean" in context.tensors
            assert context.grad_norm is not None
            context.ask_to_evaluate()
            context.ask_to_save()
            context.ask_to_stop("enough")

    def on_evaluation_end(self, context: Context) -> None:
        self.moments.append(f"evaluation {context.step}")

    def on_checkpoint(self, context: Context, path: Path | str) -> None:
        self.moments.append(f"checkpoint {context.step}")

    def on_run_end(self, context: Context) -> None:
        self.moments.append("run_end")

    def state_dict(self) -> dict[str, Any]:
        return {"num_steps": self.num_steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.num_steps = state["num_steps"]


def test_a_callback_may_ask_to_evaluate_save_and_stop_and_its_state_is_in_the_checkpoint(
    tmp_path: Path,
) -> None:
    asking = Asking()
    with Run(tmp_path) as run:
        reason = make(run)[0].train(stop=StopWhen(max_updates=9), callbacks=[asking])
    assert reason == "a callback asked to stop: enough"
    assert asking.moments == ["run_start", "evaluation 3", "checkpoint 3", "run_end"]
    again = Asking()
    with Run(tmp_path) as run:
        make(run)[0].train(stop=StopWhen(max_updates=4), callbacks=[again])
    assert again.num_steps == 4


class Terminating(Callback):
    def on_step_end(self, context: Context) -> None:
        if context.step == 2:
            os.kill(os.getpid(), signal.SIGTERM)


def test_sigterm_saves_and_exits_143(tmp_path: Path) -> None:
    with pytest.raises(SystemExit) as exited, Run(tmp_path) as run:
        make(run)[0].train(stop=StopWhen(max_updates=9), callbacks=[Terminating()])
    assert exited.value.code == 143
    assert (tmp_path / "checkpoints" / "step-000000000003").is_dir()
    assert "SIGTERM was received" in {
        record.get("reason") for record in records(tmp_path, "events")
    }


def test_a_parameter_that_the_optimiser_does_not_hold_is_named() -> None:
    task = Regression()
    optimizer = torch.optim.SGD(task.model.get_submodule("0").parameters(), lr=0.1)
    with pytest.raises(SettingError, match=r"2\.weight, 2\.bias"):
        Trainer(task, Numbers(), optimizer, schedule=Schedule(schedule="constant", lr=0.1))


def test_parameters_made_in_the_first_forward_are_refused() -> None:
    class Growing(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if not hasattr(self, "second"):
                self.second = torch.nn.Linear(4, 1)
            output: torch.Tensor = self.second(self.first(x))
            return output

    task = Regression()
    model = Growing()
    task.model = model
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    trainer = Trainer(task, Numbers(), optimizer, schedule=Schedule(schedule="constant", lr=0.1))
    before = model.first.weight.detach().clone()
    with pytest.raises(SettingError, match=r"second\.weight, second\.bias"):
        trainer.train(stop=StopWhen(max_updates=3))
    assert torch.equal(model.first.weight, before)  # refused before anything was trained


@pytest.mark.slow
def test_two_ranks_make_the_same_run_as_one_with_accumulation(tmp_path: Path) -> None:
    with Run(tmp_path / "one") as run:
        trainer, task = make(run, update_freq=2, ordered=True)
        trainer.train(stop=StopWhen(max_updates=8))
    alone = weights(task)

    def work(rank: int) -> list[float]:
        with Run(tmp_path / "two") as run:
            trainer, task = make(run, rank, 2, ordered=True)
            trainer.train(stop=StopWhen(max_updates=8))
        return weights(task)

    for result in run_ranks(2, work):
        assert result == alone
    assert losses(tmp_path / "two") == losses(tmp_path / "one")
    assert [record["rank"] for record in records(tmp_path / "two", rank=1)][:1] == [1]


@pytest.mark.slow
def test_a_run_resumes_with_another_number_of_ranks(tmp_path: Path) -> None:
    with Run(tmp_path / "one") as run:
        trainer, task = make(run, update_freq=2, ordered=True)
        trainer.train(stop=StopWhen(max_updates=7))
    alone = weights(task)

    def work(rank: int) -> list[float]:
        with Run(tmp_path / "other") as run:
            trainer, task = make(run, rank, 2, ordered=True)
            trainer.train(stop=StopWhen(max_updates=4))
        return weights(task)

    run_ranks(2, work)
    with Run(tmp_path / "other") as run:
        trainer, task = make(run, update_freq=2, ordered=True)
        trainer.train(stop=StopWhen(max_updates=7))
    assert weights(task) == alone


class Stopping(Callback):
    """Asks to stop at the third step, on one rank only."""

    def __init__(self, rank: int) -> None:
        self.rank = rank

    def on_step_end(self, context: Context) -> None:
        if context.rank == self.rank and context.step == 3:
            context.ask_to_stop("enough")


@pytest.mark.slow
def test_ranks_agree_on_what_one_of_them_asks_for_and_do_not_talk_where_none_may_ask(
    tmp_path: Path,
) -> None:
    def work(rank: int) -> list[Any]:
        found: list[Any] = []
        with mock.patch.object(ranks, "any_rank", side_effect=ranks.any_rank) as exchanged:
            silent = ThroughputCallback(100)
            asking = Stopping(1)
            for callback in (silent, asking):
                # which brings the spike recorder along
                with Run(tmp_path / type(callback).__name__) as run:
                    trainer, _ = make(run, rank, 2)
                    reason = trainer.train(stop=StopWhen(max_updates=6), callbacks=[callback])
                found += [reason, exchanged.call_count > 0]
        return found

    expected = ["max_updates: 6 steps were made", False, "a callback asked to stop: enough", True]
    assert run_ranks(2, work) == [expected] * 2


def test_a_low_rate_during_warm_up_does_not_stop() -> None:
    trainer, _ = make()
    trainer.rates = Rates(Schedule(lr=1e-2, warmup=4), trainer.optimizer)
    assert trainer.train(stop=StopWhen(min_lr=5e-3, max_updates=6)).startswith("max_updates")
    assert trainer.train(stop=StopWhen(min_lr=9e-3, max_updates=6)).startswith("min_lr")
