"""Rebuild the components of a training from the manifest of its run, with sonde's recipe or the user's.

    recipe="my_script:pieces"        # in the run's manifest: Run(…, recipe="my_script:pieces", settings={"width": 64})

    def pieces(settings, device):    # in my_script.py: settings as the manifest keeps them
        …
        return SimpleNamespace(task=…, data=…, optimizer=…, schedule=…, settings=TrainerSettings(…))

A run directory may come from anyone, so the recipe it names is not imported unless the user names the recipe or chooses
to trust the manifest. The function must produce the same initial weights each time, so it has to seed the generators it
uses.
"""

import importlib
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Protocol

import torch

from sonde.errors import SettingError
from sonde.records.manifest import Manifest
from sonde.run import runs_refused
from sonde.train.recipe import build
from sonde.train.settings import TrainerSettings, is_built_in, settings_from
from sonde.train.step import AnySchedule
from sonde.train.task import Task, TrainingData

_PARTS: Final = ("task", "data", "optimizer", "schedule", "settings")


class TrainingPieces(Protocol):
    """What a recipe returns: the components of a training that a step needs."""

    @property
    def task(self) -> Task:
        """The model with its initial weights, and its loss."""

    @property
    def data(self) -> TrainingData:
        """This rank's batches, from the beginning."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer of the model's parameters."""

    @property
    def schedule(self) -> AnySchedule:
        """The learning rate schedule."""

    @property
    def settings(self) -> TrainerSettings:
        """The settings of the trainer."""


def build_pieces(
    manifest: Manifest, *, device: torch.device, recipe: str | None, trust_recipe: bool, data: Path | None
) -> TrainingPieces:
    """Build the components of a run. `recipe` overrides the manifest; `data` is the current location of the run's data."""
    if recipe is None and is_built_in(manifest):
        return _built_in(manifest, device, data)
    name = recipe or manifest.recipe
    if name is None:
        raise SettingError(
            f"the run {manifest.run_id} does not say how its model and data are built",
            cause="it was neither trained by `sonde train` nor opened with Run(…, recipe=…)",
            hint="name a function that returns task, data, optimizer, schedule and settings: --recipe MODULE:FUNCTION",
        )
    if recipe is None and not trust_recipe:
        raise SettingError(
            f"the run {manifest.run_id} is built by {name}, which was not imported",
            cause="importing it runs code, and a run directory may come from anyone",
            hint=f"say --recipe {name} or --trust-recipe if you trust it",
        )
    if data is not None:
        raise SettingError("only the data of a run of `sonde train` can be elsewhere", hint=f"change {name} instead")
    pieces: TrainingPieces = _function(name)(manifest.settings, device=device)
    missing = [part for part in _PARTS if not hasattr(pieces, part)]
    if missing:
        raise SettingError(
            f"the recipe {name} returned no {', '.join(missing)}", hint=f"it must have {', '.join(_PARTS)}"
        )
    return pieces


def _built_in(manifest: Manifest, device: torch.device, data: Path | None) -> TrainingPieces:
    settings = settings_from({key: value for key, value in manifest.settings.items() if key != "recipe"})
    # Workers only prepare batches ahead of time, and a replay often needs a single one.
    settings = replace(settings, num_workers=0)
    if data is not None:
        settings = replace(settings, data=str(data))
    if settings.skip_list is not None:
        # Relative paths are relative to the directory in which the run was started.
        started_in = Path(str(manifest.host.get("directory") or "."))
        settings = replace(settings, skip_list=str(started_in / settings.skip_list))
    return build(settings, device=device)


def _function(name: str) -> Callable[..., Any]:
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise SettingError(f"{name!r} names no function", hint="write MODULE:FUNCTION, as in my_script:pieces")
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with runs_refused(f"the recipe {name} is being imported for a replay"):
            module = importlib.import_module(module_name)
    except ImportError as error:
        raise SettingError(
            f"the recipe {name} cannot be imported",
            cause=str(error),
            hint="call sonde in the directory of the script, or install the package",
        ) from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SettingError(f"{module_name} has no function {function_name!r}")
    found: Callable[..., Any] = function
    return found
