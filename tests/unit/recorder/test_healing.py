"""A loop that goes back by itself: with its data where that can go back, and told where it
cannot.
"""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from rank_group import run_ranks
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from sonde.data.skip_list import read_skip_list
from sonde.errors import SettingError, TrainingStopped
from sonde.forensics.verdict import Verdict
from sonde.heal.decision import Act, Heal, read_history
from sonde.recorder.options import OnEvent, RecorderOptions, check_on_event
from sonde.recorder.recorder import Recorder
from sonde.records.journal import read_steps
from sonde.run import Run

NUM_BATCHES = 60
ROWS = 6
BAD_STEP = 43
BAD_ROW = 2
BAD = (BAD_STEP - 1) * ROWS + BAD_ROW


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.embedding = nn.Embedding(32, 8)
        self.drop = nn.Dropout(0.1)
        self.head = nn.Linear(8, 32)

    def forward(self, x: Tensor) -> Tensor:
        logits = self.head(self.drop(self.embedding(x[:, :-1])))
        logits = logits * torch.where(x[:, :1, None] == 31, torch.nan, 1.0)
        return F.cross_entropy(logits.flatten(0, 1), x[:, 1:].flatten())


class Loader:
    """Numbered samples, and a position."""

    def __init__(self, without: tuple[int, ...] = (), bad: bool = True) -> None:
        rows = torch.randint(
            0, 31, (NUM_BATCHES * ROWS, 9), generator=torch.Generator().manual_seed(7)
        )
        if bad:
            rows[BAD, 0] = 31
        self.at = 0
        self.batches = [
            {"x": rows[numbers], "sample_ids": numbers}
            for numbers in torch.arange(len(rows)).view(NUM_BATCHES, ROWS)
            for numbers in [
                torch.tensor([number for number in numbers.tolist() if number not in without])
            ]
        ]

    def __iter__(self) -> Iterator[Any]:
        while self.at < len(self.batches):
            self.at += 1
            yield self.batches[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class Loop:
    """A script: model, optimizer, scheduler, recorder, loop."""

    def __init__(
        self, run: Run, *, parallel: bool = False, on_event: OnEvent = "heal", **settings: Any
    ) -> None:
        self.model: nn.Module = DistributedDataParallel(Model()) if parallel else Model()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: 1 / (1 + step / 50)
        )
        own = RecorderOptions(**{"state_every": 10, "keep_states": 5, **settings})
        self.recorder = Recorder(
            run,
            self.model,
            self.optimizer,
            scheduler=self.scheduler,
            on_event=on_event,
            options=own,
        )

    def step(self, batch: Any) -> Tensor:
        loss: Tensor = self.model(batch["x"])
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return loss

    def train(self, batches: Any, before: Callable[[], None] = lambda: None) -> list[Any]:
        for batch in batches:
            before()
            self.recorder.step(self.step, batch)
        return [parameter.tolist() for parameter in self.model.parameters()]


def by_hand(folder: Path, **how: Any) -> list[Any]:
    """A training that met nothing bad."""
    with Run(folder) as run:
        return Loop(run, on_event="record").train(Loader(**how))


def acts(run: Path) -> tuple[Act, ...]:
    return read_history(run).acts


def test_bad_rows_are_left_out_and_the_loop_is_the_one_without_them(tmp_path: Path) -> None:
    with Run(tmp_path / "healed") as run:
        loop = Loop(run)
        healed = loop.train(loop.recorder.batches(Loader()))
        assert loop.recorder.num_updates == NUM_BATCHES
    (act,) = acts(tmp_path / "healed")
    assert (act.kind, act.checkpoint, dict(act.skip)) == (
        "skip samples",
        BAD_STEP - 1,
        {"train": [BAD]},
    )
    assert healed == by_hand(tmp_path / "by-hand", without=(BAD,))
    assert read_skip_list(tmp_path / "healed/skip-list.txt").samples("train").tolist() == [BAD]
    assert len(read_steps(tmp_path / "healed").by_number) == NUM_BATCHES


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_two_ranks_go_back_together_for_a_row_of_one_of_them(tmp_path: Path) -> None:
    def healed(rank: int) -> Any:
        with Run(tmp_path / "healed") as run:
            loop = Loop(run, parallel=True)
            return loop.train(loop.recorder.batches(Loader(bad=rank == 1)))

    def by_hand(rank: int) -> Any:
        with Run(tmp_path / "by-hand") as run:
            loop = Loop(run, parallel=True, on_event="record")
            return loop.train(Loader(bad=False, without=(BAD,)))

    first, second = run_ranks(2, healed)
    assert first == second == run_ranks(2, by_hand)[0]
    (act,) = acts(tmp_path / "healed")
    assert (act.kind, act.checkpoint, dict(act.skip)) == (
        "skip samples",
        BAD_STEP - 1,
        {"train": [BAD]},
    )


@pytest.mark.slow
def test_a_spoiled_weight_is_undone_and_no_sample_is_left_out(tmp_path: Path) -> None:
    with Run(tmp_path / "healed") as run:
        loop = Loop(run)
        times = [47]

        def strike() -> None:
            loop.recorder.flush()  # a slow disk would keep fewer states
            if loop.recorder.num_updates == times[0]:
                times[0] = -1
                with torch.no_grad():
                    next(iter(loop.model.parameters()))[3, 3] = torch.nan

        healed = loop.train(loop.recorder.batches(Loader(bad=False)), strike)
    (act,) = acts(tmp_path / "healed")
    assert (act.kind, act.checkpoint, act.skip) == ("go back", 40, {})
    assert healed == by_hand(tmp_path / "by-hand", bad=False)


def test_a_loop_over_its_own_loader_goes_back_and_its_data_goes_on(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with Run(tmp_path) as run, caplog.at_level(logging.WARNING):
        loop = Loop(run)
        loop.train(Loader())
        assert loop.recorder.num_updates == NUM_BATCHES - 1
    assert all(bool(parameter.isfinite().all()) for parameter in loop.model.parameters())
    assert read_skip_list(tmp_path / "skip-list.txt").samples("train").tolist() == [BAD]
    returned = f"Rolled back to the state after step {BAD_STEP - 1}"
    assert f"{returned}, and continued without 1 sample" in caplog.text


def test_what_is_beyond_the_budget_ends_the_loop_with_the_story(tmp_path: Path) -> None:
    with Run(tmp_path) as run:
        loop = Loop(
            run, heal=Heal(max_times=1, diagnose=lambda *_: None), recent_steps=1, scene_seconds=0
        )

        def strike() -> None:
            with torch.no_grad():
                next(iter(loop.model.parameters()))[3, 3] = (
                    torch.nan if loop.recorder.num_updates > 30 else 0.0
                )

        with pytest.raises(TrainingStopped, match="healing ended: the budget of 1 times is spent"):
            loop.train(loop.recorder.batches(Loader(bad=False)), strike)
    assert [act.kind for act in acts(tmp_path)] == ["go back", "stop"]


def test_a_loop_killed_in_the_middle_of_healing_completes_it(tmp_path: Path) -> None:
    def interrupted(run: Path, step: int) -> Verdict:
        raise KeyboardInterrupt

    with Run(tmp_path / "healed") as run:
        loop = Loop(run, heal=Heal(max_times=2, diagnose=interrupted))
        with pytest.raises(KeyboardInterrupt):
            loop.train(loop.recorder.batches(Loader()))
    with Run(tmp_path / "healed") as run:
        loop = Loop(run)
        assert [act.kind for act in acts(tmp_path / "healed")] == ["skip samples"]
        assert loop.recorder.restore() == BAD_STEP - 1
        healed = loop.train(loop.recorder.batches(Loader()))
    assert healed == by_hand(tmp_path / "by-hand", without=(BAD,))


def test_healing_needs_kept_states(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="needs kept states"):
        check_on_event("heal", RecorderOptions(state_every=0))
