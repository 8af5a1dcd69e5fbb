"""`sonde train --heal N`: train; when the run calls, mend it; train on. One process, or as many ranks as there are.

    while the run has something to do about itself: rank 0 does it, the others wait
    train, from the newest good state, with what follows from it
    a call ends the training: write it down, and begin again

Every start builds everything anew from the settings, so what comes out is, bit for bit, the run that a person would have got with
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
from sonde.train.launch import found_by_rank_0, process_group
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
    """Train a run to its end, and mend it on the way; returns why it stopped. Under torchrun, every rank calls it."""

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
    """`Trainer(…, heal=heal)`: nothing is built anew. The trainer's own objects go back to a checkpoint, which holds all that a resume needs."""
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
    """The same for a training of one's own: `start` builds everything anew, opens the run in the directory, trains, and closes it.

    It is given what to train on with and a callback to train with, and returns why it stopped. `is_ours`: the run is open all the time.
    `can_skip`: the data can leave samples out; an event that needs that ends the run otherwise.
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
    """After a dry run: what each call would have led to."""
    for call in watch.calls:
        act = find_act(run, call, heal, past=read_history(run).would)
        write_event(run, "would", act=act)
        for line in told_of_act(act, would=True):
            _logger.warning("%s", line)
