"""`sonde train --heal N`: train, heal the run when an anomaly persists, and continue. Works with one process or many ranks.

    while the run has healing to do: rank 0 does it, the others wait
    train, from the newest good state, with the resulting settings
    an anomaly ends the training: record it, and begin again

Every start builds everything from the settings, so the result is bit-identical to a run that a person healed with
`sonde rollback` and `sonde train`.
"""

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from sonde import ranks
from sonde.callbacks.base import Callback
from sonde.errors import SettingError
from sonde.heal.decision import ENDED, Act, Heal
from sonde.heal.history import read_history, told_of_act, write_event
from sonde.heal.mending import WayOn, find_act, mend
from sonde.heal.watch import HealWatch
from sonde.ranks import found_by_rank_0, process_group
from sonde.train.schedule import Schedule
from sonde.train.session import train_run
from sonde.train.settings import RecipeSettings
from sonde.train.trainer import Trainer

_logger: Final = logging.getLogger("sonde")


def train_healing(
    settings: RecipeSettings,
    directory: str | os.PathLike[str],
    heal: Heal,
    *,
    callbacks: Sequence[Callback] = (),
    start_over: bool = False,
) -> str:
    """Train a run to its end, healing it on the way, and return why it stopped. Under torchrun, call this on every rank."""

    def start(way: WayOn, watch: HealWatch) -> str:
        return train_run(
            replace(settings, **way.settings),
            directory,
            callbacks=[*callbacks, watch],
            start_over=start_over or way.start_over,
        )

    with process_group(timeout_seconds=settings.timeout_seconds):
        return keep_training(start, directory, heal)


def train_in_place(trainer: Trainer, heal: Heal, start: Callable[[Callback, bool], str]) -> str:
    """Heal within `Trainer(…, heal=heal)`: restore the trainer's own objects from a checkpoint instead of rebuilding them."""
    if heal.halve_rate is not None and not isinstance(trainer.schedule, Schedule):
        raise SettingError(
            f"halve_rate needs a Schedule, not a {type(trainer.schedule).__name__}",
            hint="only the rate of a Schedule can be lowered for some updates",
        )
    assert trainer.run is not None

    def go_on(way: WayOn, watch: HealWatch) -> str:
        trainer.go_on_with(**way.settings)
        return start(watch, way.start_over)

    can_skip = hasattr(trainer.data, "leave_out")
    return keep_training(go_on, trainer.run.directory, heal, is_ours=True, can_skip=can_skip)


def keep_training(
    start: Callable[[WayOn, HealWatch], str],
    directory: str | os.PathLike[str],
    heal: Heal,
    *,
    is_ours: bool = False,
    can_skip: bool = True,
) -> str:
    """Train with healing in your own loop. `start` builds everything, opens the run in `directory`, trains, and closes the run.

    `start` receives how to continue and a callback to train with, and returns why it stopped. `is_ours`: the run stays
    open throughout. `can_skip`: the data can skip samples; otherwise an anomaly that requires skipping ends the run.
    """
    run = Path(directory)
    while True:
        found = found_by_rank_0(lambda: asdict(mend(run, heal, is_ours=is_ours, can_skip=can_skip)))
        way = msgspec.convert(found, WayOn)
        if way.stop is not None:
            return _ended(way.stop)
        watch = HealWatch(heal)
        reason = start(way, watch)
        if heal.dry_run:
            found_by_rank_0(partial(_tell_what_would_be, run, watch, heal))
            return reason
        if not watch.calls:
            return reason
        if ranks.rank() == 0:
            write_event(run, "called", call=watch.calls[-1])


def _ended(act: Act) -> str:
    if ranks.rank() == 0:
        for line in told_of_act(act):
            _logger.warning("%s", line)
    return f"{ENDED}: {act.why}"


def _tell_what_would_be(run: Path, watch: HealWatch, heal: Heal) -> None:
    """After a dry run, report what each anomaly would have led to."""
    for call in watch.calls:
        act = find_act(run, call, heal, past=read_history(run).would)
        write_event(run, "would", act=act)
        for line in told_of_act(act, would=True):
            _logger.warning("%s", line)
