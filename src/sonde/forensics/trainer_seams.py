"""The replay seams for a run of sonde's own trainer: its checkpoints, its loader by position, and
its `UpdateStep`.

The components come from the run's recipe, so the training's own code runs, with the run's skip list
and the recorded learning rates. The recipe is sonde's, or the user's:

    recipe="my_script:pieces"        # in the run's manifest: Run(…, recipe="my_script:pieces",
                                     # config={"width": 64})

    def pieces(settings, device):    # in my_script.py: settings as the manifest keeps them
        …
        return SimpleNamespace(task=…, data=…, optimizer=…, schedule=…, settings=TrainerSettings(…))

A run directory may come from anyone, so the recipe it names is not imported unless the user names
the recipe or chooses to trust the manifest. The function must produce the same initial weights each
time, so it has to seed the generators it uses.
"""

import copy
import math
import os
import pkgutil
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from sonde import ranks
from sonde.checkpoint.store import CheckpointStore
from sonde.checkpoint.weights import check_fit
from sonde.errors import SettingError
from sonde.forensics.history import read_skip_history
from sonde.forensics.seams import Change, Losses, ModuleWatch, SampleLoss, Seams
from sonde.forensics.trainer_batches import LoaderBatches, TrainingPieces
from sonde.records.journal import StepRecord
from sonde.records.manifest import Manifest, checkpoint_place
from sonde.records.replay_order import ReplayOptions
from sonde.run import runs_refused
from sonde.train.determinism import generators_restored
from sonde.train.gradients import check_parameters, choose_sync
from sonde.train.recipe import build
from sonde.train.saving import TrainerState
from sonde.train.schedule import Schedule
from sonde.train.settings import Precision, RecipeSettings, is_built_in, settings_from
from sonde.train.step import StepResult, UpdateStep
from sonde.train.task import StepOutput, moved

BEGINNING = 0
"""The checkpoint that always exists: before the first update, with the recipe's initial weights."""


def trainer_seams(
    run: Path, manifest: Manifest, options: ReplayOptions, records: Mapping[int, StepRecord]
) -> Seams:
    """Build the seams of a run: its components as the manifest and the options say, on this
    process's device.
    """
    pieces = build_pieces(manifest, options)
    model = pieces.task.model
    trained_on = manifest.world_size
    refuse_wrapped(model)
    check_parameters(model, pieces.optimizer)
    model.train()
    update_freq = _update_freq(
        pieces.settings.update_freq, trained_on, options.world_size or trained_on
    )
    pieces = pieces._replace(settings=replace(pieces.settings, update_freq=update_freq))
    updater = TrainerUpdater(pieces, records)
    store = CheckpointStore(checkpoint_place(run, options.checkpoints))
    state = TrainerState(model, pieces.optimizer, {"scale": updater.own_step.scale})
    batches = LoaderBatches(pieces, store, read_skip_history(run))
    return Seams(states=CheckpointStates(store, state, model), batches=batches, updater=updater)


class CheckpointStates:
    """The checkpoints of a run, and the initial weights of its recipe."""

    def __init__(self, store: CheckpointStore, state: TrainerState, model: nn.Module) -> None:
        """The training must be at its beginning."""
        self._store = store
        self._model = model
        self.collect = state.collect
        self.restore = state.restore
        """Return the current state; restore a state."""
        self._first = copy.deepcopy(state.collect())

    def steps(self) -> list[int]:
        """Return the beginning and the checkpoints on disk."""
        return [BEGINNING, *self._store.folder.steps()]

    def is_good(self, step: int) -> bool:
        """Return whether every byte of the checkpoint verifies."""
        return step == BEGINNING or not self._store.folder.problems(step)

    def load(self, step: int) -> Mapping[str, Any]:
        """Load a whole checkpoint from disk."""
        if step == BEGINNING:
            return copy.deepcopy(self._first)
        path = self._store.folder.where(step)
        if self._store.folder.is_sharded(step):
            raise SettingError(
                f"{path} holds weights in parts", cause="a replay needs them whole on each rank"
            )
        saved = self._store.load(step)
        check_fit(path, saved["model"], self._model)
        return saved


class TrainerUpdater:
    """Makes updates as the trainer does."""

    def __init__(self, pieces: TrainingPieces, records: Mapping[int, StepRecord]) -> None:
        """`records` are the run's step records, needed because a plateau or a restart may have
        changed the learning rate.
        """
        self._pieces = pieces
        self.model = pieces.task.model
        self.optimizer = pieces.optimizer
        self.precision = pieces.settings.precision
        """What the recipe built, and the precision of the run."""
        self._records = records
        self._sync = choose_sync(self.model, pieces.settings)
        self.own_step = self._step_in(self.precision)
        """The update step in the run's own precision."""

    def scheduled_rate(self, step: int) -> float | None:
        """Return the learning rate of the schedule for `step`, or None if it cannot be computed
        from the step.
        """
        schedule = self._pieces.schedule
        return schedule.rate(step - 1) if isinstance(schedule, Schedule) else None

    def update(
        self, step: int, batches: Sequence[Any], change: Change, watch: ModuleWatch | None
    ) -> StepResult:
        """Make an update at the given learning rate; by default the recorded one, otherwise the
        schedule's.
        """
        recorded = self._records.get(step)
        rate = change.lr
        if rate is None:
            rate = self.scheduled_rate(step) if recorded is None else recorded.lr
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        precision = change.precision or self.precision
        made = self.own_step if precision == self.precision else self._step_in(precision)
        with watch.on(self.model) if watch else nullcontext():
            result = made.run(step - 1, self._numbered(batches))
        if watch is not None:
            self._scale(watch, result)
        return result

    def losses(self, step: int, batches: Sequence[Any]) -> Losses:
        """Compute the losses with a forward pass only, with the random numbers of that update.

        The model stays in training mode and the graph is built as in training, so that every value
        is identical.
        """
        own = [0.0, 0.0]
        of_batches = list[list[SampleLoss]]()
        with generators_restored():
            for number, batch in self._numbered(batches):
                output = self.own_step.forward(step - 1, number, batch)
                own = [own[0] + output.loss_sum.item(), own[1] + float(output.weight)]
                of_batches.append(_sample_losses(output))
        loss_sum, weight = map(sum, zip(*ranks.gather(own), strict=True))
        return Losses(loss_sum / weight if weight else math.nan, of_batches)

    def _numbered(self, batches: Sequence[Any]) -> list[tuple[int, Any]]:
        device = next(self.model.parameters()).device
        rank = ranks.rank()
        world = ranks.world_size()
        return [
            (position * world + rank, moved(batch, device))
            for position, batch in enumerate(batches)
        ]

    def _step_in(self, precision: Precision) -> UpdateStep:
        settings = replace(self._pieces.settings, precision=precision)
        return UpdateStep(self._pieces.task, self._pieces.optimizer, self._sync, settings)

    def _scale(self, watch: ModuleWatch, result: StepResult) -> None:
        """Pass the watch the factors that turn gradients into those of the mean loss before
        clipping.
        """
        mean = result.mean_factor
        clip_norm = self._pieces.settings.clip_norm
        clipped = (
            1.0
            if clip_norm is None or result.grad_norm is None
            else max(1.0, result.grad_norm / clip_norm)
        )
        watch.scale(mean, clipped if result.skipped is None else mean)


def _sample_losses(output: StepOutput) -> list[SampleLoss]:
    """Return the loss of each sample of a task's output."""
    counts = None if output.token_counts is None else output.token_counts.long()
    columns = (output.sample_losses, counts, output.token_losses)
    rows = zip(
        output.sample_ids,
        *(repeat(None) if column is None else column.tolist() for column in columns),
        strict=False,
    )
    return [
        SampleLoss(sample_id, loss, count, None if tokens is None else tuple(tokens[:count]))
        for sample_id, loss, count, tokens in rows
    ]


def refuse_wrapped(model: torch.nn.Module) -> None:
    """Raise if a recipe's model is wrapped for several ranks."""
    if isinstance(model, (FSDPModule, DistributedDataParallel)):
        raise SettingError(
            f"a model in {type(model).__name__} cannot be replayed",
            cause="a replay needs the bare model, whole on each rank",
            hint=(
                "let the recipe return the bare model. Its losses are then those of the run up to"
                " rounding, not to the bit"
            ),
        )


def _update_freq(update_freq: int, world_size: int, wanted: int) -> int:
    """Return the micro-batches per rank and update, so that all ranks together use as many as the
    run did.
    """
    here = ranks.world_size()
    if here != wanted:
        raise SettingError(
            f"the replay is to have {wanted} ranks, and there are {here}",
            hint=(
                "`sonde replay` starts them; in your own code use torchrun, or"
                " ReplayOptions(world_size=1)"
            ),
        )
    if update_freq * world_size % here:
        raise SettingError(
            f"{here} ranks cannot share the {update_freq * world_size} micro-batches of a step"
            " evenly",
            hint=f"use a number that divides {update_freq * world_size}",
        )
    return update_freq * world_size // here


def build_pieces(manifest: Manifest, options: ReplayOptions) -> TrainingPieces:
    """Build the components of a run. The recipe of the options overrides that of the manifest."""
    device = (
        torch.device("cuda", torch.cuda.current_device())
        if torch.cuda.is_available()
        else torch.device("cpu")
    )
    pieces: Any
    if options.recipe is None and is_built_in(manifest):
        pieces = build(_settings(manifest, options.data), device=device)
    else:
        name = _recipe_name(manifest, options)
        if options.data is not None:
            raise SettingError(
                "only the data of a run of `sonde train` can be elsewhere",
                hint=f"change {name} instead",
            )
        pieces = _function(name)(manifest.settings, device=device)
    parts = {
        name: getattr(pieces, name) for name in TrainingPieces._fields if hasattr(pieces, name)
    }
    needed = TrainingPieces._fields[: -len(TrainingPieces._field_defaults)]
    missing = [name for name in needed if name not in parts]
    if missing:
        raise SettingError(
            f"the recipe {options.recipe or manifest.recipe} returned no {', '.join(missing)}",
            hint=f"it must have {', '.join(needed)}",
        )
    return TrainingPieces(**parts)


def _recipe_name(manifest: Manifest, options: ReplayOptions) -> str:
    """Return the user's recipe to call, if that is allowed."""
    name = options.recipe or manifest.recipe
    if name is None:
        raise SettingError(
            f"the run {manifest.run_id} does not say how its model and data are built",
            cause="it was neither trained by `sonde train` nor opened with Run(…, recipe=…)",
            hint=(
                "name a function that returns task, data, optimizer, schedule and settings:"
                " --recipe MODULE:FUNCTION"
            ),
        )
    if options.recipe is None and not options.trust_recipe:
        raise SettingError(
            f"the run {manifest.run_id} is built by {name}, which was not imported",
            cause="importing it runs code, and a run directory may come from anyone",
            hint=f"say --recipe {name} or --trust-recipe if you trust it",
        )
    return name


def _settings(manifest: Manifest, data: Path | None) -> RecipeSettings:
    """Return the settings of a run of `sonde train`, for a replay on this machine."""
    settings = settings_from(
        {key: value for key, value in manifest.settings.items() if key != "recipe"}
    )
    # Workers only prepare batches ahead of time, and a replay often needs a single one.
    settings = replace(settings, num_workers=0, data=settings.data if data is None else str(data))
    if settings.skip_list is not None:
        # Relative paths are relative to the directory in which the run was started.
        started_in = Path(str(manifest.host.get("directory") or "."))
        settings = replace(settings, skip_list=str(started_in / settings.skip_list))
    return settings


def _function(name: str) -> Callable[..., Any]:
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with runs_refused(f"the recipe {name} is being imported for a replay"):
            function: Callable[..., Any] = pkgutil.resolve_name(name)
    except (ImportError, AttributeError, ValueError) as error:
        raise SettingError(
            f"the recipe {name} cannot be imported",
            cause=str(error),
            hint="call sonde in the directory of the script, or install the package",
        ) from error
    if not callable(function):
        raise SettingError(
            f"{name} names no function", hint="write MODULE:FUNCTION, as in my_script:pieces"
        )
    return function
