"""What is a run worth that mends itself? Six faults, five seeds, five ways to deal with them: final
held-out loss and updates spent.

    python benchmarks/heal.py --folder /tmp/h            about 40 minutes of one core; trainings
                                                         that are there already are used again
    python benchmarks/heal.py --folder /tmp/h --tables   only print the tables from the outcomes
                                                         there
    python benchmarks/heal.py --folder /tmp/h --first-seed 101 --ways heal --only "learning-rate
        jump"      other seeds, to tune on

A small language model on docstrings is trained for 500 updates; then the fault comes, and 150 more
are to follow. Twenty clean runs with healing on say what a final loss is worth: ten of them are the
measure, and none of the twenty may be acted upon.

    nothing      train on, without clipping
    clip         clip gradients to a norm of 1
    olmo         OLMo-core's SkipStepOptimizer: no step when loss or gradient norm is 6 standard
                 deviations from the mean of the last 128
    lightning    Lightning's SpikeDetection: a loss that is not finite, or 3 times the mean of the
                 last 10, ends the run; it is started again (here by a
                 script, 20 times at most) from its newest checkpoint, without this batch and the
                     one before
    heal         ours; where the rate is to blame it may be halved for 150 updates ("heal, rate
                 untouched": it may not)

The faults: every sample of a batch is garbled; all of them say the same; one weight becomes NaN in
memory; many become wrong; a restart with a rate 15 to 60 times as high; none.
"""

import argparse
import json
import logging
import math
import multiprocessing
import os
import random
import shutil
import statistics
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from typing_extensions import override

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.heal_tables import FAULTS, LAST, NUM_SEEDS, UNTOUCHED, WAYS, print_tables, ways_of
from benchmarks.planted_data import PlantedData
from benchmarks.planted_state_faults import _spoiling
from benchmarks.planted_texts import garble

from sonde.callbacks.base import Callback
from sonde.callbacks.context import Context
from sonde.checkpoint.folder import CheckpointFolder
from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.skip_list import SkipList
from sonde.demo.corpus import read_docstrings
from sonde.forensics.diagnose import diagnose
from sonde.forensics.rollback import apply_rollback, plan_way_back
from sonde.forensics.verdict import Verdict, write_verdict
from sonde.heal.decision import Heal, read_history
from sonde.heal.supervisor import train_healing
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest, write_manifest
from sonde.run import Run
from sonde.train.recipe import Pieces, TransformerTask, build, fingerprints
from sonde.train.session import train_run
from sonde.train.settings import RecipeSettings
from sonde.train.task import StepOutput

FIRST: Final = 500
NUM_CLEAN: Final = 20
_FACTORS: Final = (15.0, 30.0, 60.0)
_HELD_OUT: Final = 150


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--only", nargs="*", help="only these faults")
    parser.add_argument("--ways", nargs="*", help="only these ways")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--tables", action="store_true", help="only print the tables")
    options = parser.parse_args()
    logging.getLogger("sonde").setLevel(logging.ERROR)
    options.folder.mkdir(parents=True, exist_ok=True)
    outcomes = options.folder / "outcomes.jsonl"
    if not options.tables:
        _prepare(options.folder)
        done = {(outcome["fault"], outcome["way"], outcome["seed"]) for outcome in _read(outcomes)}
        first = options.first_seed
        clean = [("no fault", "heal", seed) for seed in range(first, first + NUM_CLEAN)]
        seeds = range(first, first + NUM_SEEDS)
        rest = [
            (fault, way, seed)
            for way in reversed((*WAYS, UNTOUCHED))
            for seed in seeds
            for fault in FAULTS
        ]
        rest = [case for case in rest if case[1] in ways_of(case[0])]
        cases = [case for case in dict.fromkeys([*clean[:10], *rest, *clean]) if case not in done]
        cases = [
            case
            for case in cases
            if case[0] in (options.only or FAULTS) and case[1] in (options.ways or [case[1]])
        ]
        with multiprocessing.get_context("fork").Pool(options.workers, maxtasksperchild=1) as pool:
            for outcome in pool.imap_unordered(_work, [(options.folder, *case) for case in cases]):
                with outcomes.open("a") as file:
                    file.write(json.dumps(outcome) + "\n")
                print(json.dumps(outcome), file=sys.stderr, flush=True)
    print_tables(_read(outcomes))


def _read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def _prepare(folder: Path) -> None:
    if (folder / "data").exists():
        return
    texts = read_docstrings(seed=7)
    paths = {"train": folder / "train.en", "valid": folder / "valid.en"}
    for name, lines in (("train", texts[:-_HELD_OUT]), ("valid", texts[-_HELD_OUT:])):
        paths[name].write_text("".join(f"{line}\n" for line in lines))
    splits = {name: {"en": path} for name, path in paths.items()}
    prepare(PrepareSettings(splits=splits, out=folder / "data", vocab_size=1000))


def _settings(data: Path, seed: int, **others: Any) -> RecipeSettings:
    values: dict[str, Any] = {
        "model_dim": 48,
        "num_heads": 2,
        "ffn_dim": 96,
        "decoder_layers": 2,
        "dropout": 0.0,
        "label_smoothing": 0.0,
        "block_size": 64,
        "max_tokens": None,
        "max_sentences": 8,
        "multiple_of": 1,
        "lr": 4e-3,
        "warmup": 60,
        "clip_norm": None,
        "seed": seed,
        "max_updates": LAST,
        "save_every_updates": 10,
        "save_every_epochs": None,
        "validate_every_epochs": None,
        "keep_checkpoints": 6,
        "log_interval": 1000,
        "verify_data": False,
    }
    return RecipeSettings(data=str(data), **(values | others))


def _work(task: tuple[Path, str, str, int]) -> dict[str, Any]:
    """One training with one fault, dealt with in one way."""
    folder, fault, way, seed = task
    torch.set_num_threads(1)
    sys.stderr = Path(os.devnull).open("w")  # noqa: SIM115  of this process alone
    started = time.monotonic()
    base = _base(folder, seed)
    place = folder / f"{fault}-{way}-{seed}".replace(" ", "-").replace(",", "")
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(base, place / "run")
    case = Case(place / "run", _settings(folder / "data", seed), random.Random(f"{fault}-{seed}"))
    settings, callbacks = PLANTS[fault](case)
    reason = _deal(way, place / "run", settings, callbacks)
    outcome = {
        "fault": fault,
        "way": way,
        "seed": seed,
        "step": case.step,
        "reason": reason,
        "loss": _final_loss(place / "run"),
        "updates": sum(
            '"STEP"' in line
            for line in (place / "run/records/steps.rank0.jsonl").read_text().splitlines()
        ),
        "acts": [
            [
                act.kind,
                act.cause,
                act.confidence,
                act.why,
                act.call.first_step,
                act.call.step,
                act.checkpoint,
            ]
            for act in read_history(place / "run").acts
        ],
        "seconds": time.monotonic() - started,
    }
    shutil.rmtree(place, ignore_errors=True)
    return outcome


def _base(folder: Path, seed: int) -> Path:
    """The clean beginning, trained once; nothing may be done about it."""
    run = folder / f"base-{seed}"
    if not (run / "done").exists():
        shutil.rmtree(run, ignore_errors=True)
        train_healing(
            _settings(folder / "data", seed, max_updates=FIRST),
            run,
            Heal(max_times=3, diagnose=_diagnosed),
        )
        (run / "done").touch()
    return run


def _final_loss(run: Path) -> float:
    checkpoints = CheckpointFolder(RunLayout(run).checkpoints)
    steps = checkpoints.steps()
    return (
        float(checkpoints.document(steps[-1])["metrics"].get("loss", math.nan))
        if steps[-1:] == [LAST]
        else math.nan
    )


def _diagnosed(run: Path, step: int) -> Verdict:
    """In this process: starting another takes longer than the training here."""
    verdict = diagnose(run, step)
    write_verdict(run, verdict)
    return verdict


@dataclass(frozen=True, slots=True)
class Case:
    """A copy of a training that goes on over a fault."""

    run: Path
    settings: RecipeSettings
    generator: random.Random

    @property
    def step(self) -> int:
        """Where the fault is."""
        return FIRST + 12 + (self.settings.seed - 1) % NUM_SEEDS * 7


Planted = tuple[RecipeSettings, list[Callback]]


def _garbled(case: Case) -> Planted:
    data = _own_data(case)
    for row in data.batch(case.step):
        data.put_text(row, garble(data.text(row), case.settings.seed, row)[1])
    return _with(case, data)


def _duplicated(case: Case) -> Planted:
    data = _own_data(case)
    rows = data.batch(case.step)
    data.copy_row(rows[0], rows[1:])
    return _with(case, data)


def _nonfinite(case: Case) -> Planted:
    place = case.generator.random()

    def spoil(weight: Tensor) -> None:
        weight.view(-1)[int(place * weight.numel())] = math.nan

    return case.settings, [InMemory(case, spoil)]


def _corrupted(case: Case) -> Planted:
    return case.settings, [InMemory(case, _spoiling(case.generator)[1])]


def _jumped(case: Case) -> Planted:
    return replace(case.settings, lr=case.settings.lr * case.generator.choice(_FACTORS)), []


PLANTS: Final[dict[str, Callable[[Case], Planted]]] = {
    "garbled": _garbled,
    "duplicated": _duplicated,
    "non-finite": _nonfinite,
    "corrupted weight": _corrupted,
    "learning-rate jump": _jumped,
    "no fault": lambda case: (case.settings, []),
}


def _own_data(case: Case) -> PlantedData:
    folder = case.run.parent / "data"
    shutil.copytree(case.settings.data, folder)
    return PlantedData(replace(case.settings, data=str(folder)), folder)


def _with(case: Case, data: PlantedData) -> Planted:
    """The run knows the planted data as its own."""
    data.write()
    settings = replace(case.settings, data=str(case.run.parent / "data"))
    known = replace(
        read_manifest(case.run), data=fingerprints(data.directory), settings=settings.as_saved()
    )
    write_manifest(case.run, known)
    return settings, []


class InMemory(Callback):
    """Spoils one matrix once, in the memory of this process, before an update."""

    def __init__(self, case: Case, spoil: Callable[[Tensor], None]) -> None:
        self._case = case
        self._spoil = spoil
        self._state = "waiting"
        whole = TransformerTask.compute

        def compute(task: TransformerTask, batch: Any) -> StepOutput:
            if self._state == "now":
                self._state = "done"
                self._strike(task.model)
            return whole(task, batch)

        setattr(TransformerTask, "compute", compute)  # noqa: B010  of this process alone

    @override
    def on_step_start(self, context: Context) -> None:
        if self._state == "waiting" and context.step == self._case.step - 1:
            self._state = "now"

    def _strike(self, model: nn.Module) -> None:
        matrices = [parameter for parameter in model.parameters() if parameter.ndim == 2]
        with torch.no_grad():
            self._spoil(self._case.generator.choice(matrices).data)


def _deal(way: str, run: Path, settings: RecipeSettings, callbacks: list[Callback]) -> str:
    if way == "clip":
        return train_run(replace(settings, clip_norm=1.0), run, callbacks=callbacks)
    if way == "olmo":
        return _with_optimizer(run, settings, callbacks)
    if way == "lightning":
        return _ending_at_spikes(run, settings, callbacks)
    if way.startswith("heal"):
        heal = Heal(
            max_times=8, halve_rate=None if way == UNTOUCHED else LAST - FIRST, diagnose=_diagnosed
        )
        return train_healing(settings, run, heal, callbacks=callbacks)
    return train_run(settings, run, callbacks=callbacks)


def _with_optimizer(run: Path, settings: RecipeSettings, callbacks: list[Callback]) -> str:
    pieces = build(settings)
    with Run(run, config=settings.as_saved()) as opened:
        trainer = pieces.trainer(opened)
        return trainer.train(stop=pieces.settings, callbacks=[*callbacks, SkippingSteps(pieces)])


class SkippingSteps(Callback):
    """OLMo-core's rule, in our words: the optimizer stands still at outliers of loss and gradient
    norm.
    """

    def __init__(self, pieces: Pieces) -> None:
        self._losses: deque[float] = deque(maxlen=129)
        self._norms: deque[float] = deque(maxlen=129)
        task = pieces.task
        step = pieces.optimizer.step
        whole = task.compute

        def compute(batch: Any) -> StepOutput:
            output = whole(batch)
            if task.model.training:
                self._losses.append(float(output.loss_sum.detach() / output.weight))
            return output

        def take(*arguments: Any) -> Any:
            return (
                step(*arguments)
                if self._is_usual(self._losses) and self._is_usual(self._norms)
                else None
            )

        task.compute = compute  # type: ignore[method-assign]
        pieces.optimizer.step = take  # type: ignore[method-assign, assignment]

    @override
    def on_backward_end(self, context: Context) -> None:
        self._norms.append(float(context.grad_norm))

    @staticmethod
    def _is_usual(values: deque[float]) -> bool:
        if len(values) < 64:
            return True
        *before, last = values
        return abs(last - statistics.fmean(before)) <= 6 * statistics.stdev(before)


def _ending_at_spikes(run: Path, settings: RecipeSettings, callbacks: list[Callback]) -> str:
    reason = ""
    for _ in range(20):
        rule = EndingAtSpikes()
        reason = train_run(settings, run, callbacks=[*callbacks, rule])
        if rule.step is None:
            break
        data = PlantedData(settings, Path(settings.data))
        skip = SkipList({"train": [*data.batch(rule.step - 1), *data.batch(rule.step)]})
        plan = plan_way_back(run, rule.step, skip, "a spike")
        apply_rollback(plan)
        settings = replace(settings, skip_list=str(plan.skip_list))
    return reason


class EndingAtSpikes(Callback):
    """Lightning's rule, in our words: a loss that is worse than the last one and three times the
    mean of ten, or not finite, ends the run.
    """

    def __init__(self) -> None:
        self.step: int | None = None
        self._recent: deque[float] = deque(maxlen=10)

    @override
    def on_step_end(self, context: Context) -> None:
        if not context.weight:
            return
        loss = float(context.tensors["loss"])
        mean = statistics.fmean(self._recent) if self._recent else math.inf
        last = self._recent[-1] if self._recent else math.inf
        if not math.isfinite(loss) or (loss > last and abs(loss - mean) >= 2.0 * mean):
            self.step = context.step
            context.ask_to_give_up("a spike")
            return
        self._recent.append(loss)


if __name__ == "__main__":
    main()
