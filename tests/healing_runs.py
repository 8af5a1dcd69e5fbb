"""A run that meets a bad sample, and is mended: the sample's loss is not finite, whoever computes
it in this process.

run = bad_run(tmp_path, prepare_corpus(tmp_path, num=120), monkeypatch)
train_healing(run.settings, run.directory, Heal(max_times=3), diagnose=run.blame)
assert final_state(run.directory) == final_state(run.by_hand())
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from small_corpus import TINY

from sonde.checkpoint.store import CheckpointStore
from sonde.data.skip_list import SkipList, write_skip_list
from sonde.forensics.verdict import Cause, Suspect, Verdict
from sonde.records.layout import RunLayout
from sonde.train.recipe import TransformerTask, build
from sonde.train.session import train_run
from sonde.train.settings import RecipeSettings
from sonde.train.task import StepOutput

BAD_STEP = 17
NUM_UPDATES = 24
CHECKPOINT = 16


@dataclass(frozen=True)
class BadRun:
    """Where it is, and what is bad."""

    folder: Path
    settings: RecipeSettings
    bad: int

    @property
    def directory(self) -> Path:
        return self.folder / "run"

    def blame(self, run: Path, step: int) -> Verdict:
        """The right verdict, without a diagnosis."""
        suspect = Suspect(dataset="train", sample=self.bad)
        cause = Cause(
            cause="garbled_text",
            title="It is garbled.",
            confidence=0.9,
            suspects=(suspect,),
            blames="samples",
        )
        return Verdict(run_id="", step=step, causes=(cause,), seconds=1.0)

    def by_hand(self, skip: list[int] | None = None, checkpoint: int = CHECKPOINT) -> Path:
        """The run that had the samples on its skip list from the checkpoint on, trained in two
        starts.
        """
        run = self.folder / "by-hand"
        skip_list = self.folder / "skip.txt"
        write_skip_list(skip_list, SkipList({"train": [self.bad] if skip is None else skip}))
        train_run(replace(self.settings, max_updates=checkpoint), run)
        train_run(replace(self.settings, skip_list=str(skip_list)), run)
        return run


def bad_run(folder: Path, data: Path, monkeypatch: pytest.MonkeyPatch, **others: Any) -> BadRun:
    """Settings whose update BAD_STEP meets a sample that makes the loss NaN."""
    values: dict[str, Any] = {
        **TINY,
        "max_tokens": None,
        "max_sentences": 4,
        "max_updates": NUM_UPDATES,
        "warmup": 4,
        "lr": 1e-2,
        "dropout": 0.2,
        "save_every_updates": 4,
        "validate_every_updates": 8,
        "keep_checkpoints": 3,
        "log_interval": 5,
    }
    settings = RecipeSettings(data=str(data), **(values | others))
    sampler = build(settings).data.sampler
    bad = sampler.batches[int(sampler.global_order(1)[BAD_STEP - 1])].tolist()[1]
    spoil(monkeypatch, bad)
    return BadRun(folder, settings, bad)


def spoil(monkeypatch: pytest.MonkeyPatch, bad: int) -> None:
    """Make the loss of every batch with this sample NaN in training."""
    whole = TransformerTask.compute

    def compute(task: TransformerTask, batch: Any) -> StepOutput:
        output = whole(task, batch)
        is_bad = task.model.training and ("train", bad) in batch.provenance
        return replace(output, loss_sum=output.loss_sum * float("nan")) if is_bad else output

    monkeypatch.setattr(TransformerTask, "compute", compute)


def final_state(run: Path) -> Any:
    """All of the last checkpoint but clocks, and what watches it."""
    store = CheckpointStore(RunLayout(run).checkpoints)
    state = store.load(store.folder.steps()[-1])
    state["counters"].pop("seconds")
    state.pop("callbacks"), state.pop("metrics")
    return {name: value.tolist() for name, value in state.pop("model").items()}, str(state)
