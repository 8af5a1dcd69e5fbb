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
from sonde.heal.decision import ENDED, Act
from sonde.heal.history import read_history, write_event
from sonde.heal.mending import Diagnose, WayOn, diagnose_beside, find_act, mend
from sonde.heal.settings import Heal
from sonde.heal.story import told_of_act
from sonde.heal.watch import HealWatch
from sonde.train.launch import found_by_rank_0, process_group
from sonde.train.recipe_settings import RecipeSettings
from sonde.train.session import train_run

_logger: Final = logging.getLogger("sonde")


def train_healing(
    settings: RecipeSettings,
    directory: str | os.PathLike[str],
    heal: Heal,
    *,
    callbacks: Sequence[Callback] = (),
    start_over: bool = False,
    diagnose: Diagnose | None = None,
) -> str:
    """Train a run to its end, and mend it on the way; returns why it stopped. Under torchrun, every rank calls it.

    `diagnose` finds out what was wrong with a step of a run; unless given, `sonde diagnose` does, in a process beside.
    """

    def start(way: WayOn, watch: HealWatch) -> str:
        return train_run(
            replace(settings, **way.settings),
            directory,
            callbacks=[*callbacks, watch],
            start_over=start_over or way.start_over,
        )

    with process_group(timeout_seconds=settings.timeout_seconds):
        return keep_training(start, directory, heal, diagnose=diagnose)


def keep_training(
    start: Callable[[WayOn, HealWatch], str],
    directory: str | os.PathLike[str],
    heal: Heal,
    *,
    diagnose: Diagnose | None = None,
) -> str:
    """The same for a training of one's own: `start` builds everything anew, opens the run in the directory, trains, and closes it.

    It is given what to train on with and a callback to train with, and returns why it stopped.
    """
    run = Path(directory)
    diagnose = diagnose or diagnose_beside(heal)
    while True:
        found = found_by_rank_0(lambda: asdict(mend(run, heal, diagnose)))
        way = msgspec.convert(found, WayOn)
        if way.stop is not None:
            return _ended(way.stop)
        watch = HealWatch(heal)
        reason = start(way, watch)
        if heal.dry_run:
            found_by_rank_0(partial(_tell_what_would_be, run, watch, heal, diagnose))
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


def _tell_what_would_be(run: Path, watch: HealWatch, heal: Heal, diagnose: Diagnose) -> None:
    """After a dry run: what each call would have led to."""
    for call in watch.calls:
        act = find_act(run, call, heal, diagnose, past=read_history(run).would)
        write_event(run, "would", act=act)
        for line in told_of_act(act, would=True):
            _logger.warning("%s", line)
