"""A copy of a training that went well, to plant a fault into; and how its training goes on over the
fault.
"""

import random
import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from benchmarks.planted_tasks import BaseRun

from sonde.callbacks.base import Callback
from sonde.checkpoint.store import CheckpointStore
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.run import Run
from sonde.train.recipe import Pieces, build
from sonde.train.settings import RecipeSettings
from sonde.train.trainer import Trainer

NUM_UPDATES: Final = 20
"""How long the training goes on."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Planted:
    """A fault and where it is: what the keeper of the score knows, and the run does not."""

    cause: str
    """What a verdict should name."""
    step: int
    """The first update that it can be seen in."""
    samples: frozenset[int] = frozenset()
    """The samples it is in."""
    modules: frozenset[str] = frozenset()
    """The module or parameter it is in, by all its names."""
    rank: int | None = None
    """The rank it is on."""
    how: str = ""
    """Which variant, in a word."""
    neighbours: frozenset[str] = frozenset()
    """What else a verdict may truthfully name."""

    @property
    def accepted(self) -> frozenset[str]:
        """Everything that a verdict may name."""
        return self.neighbours | {self.cause}


@dataclass(frozen=True, kw_only=True, slots=True)
class Site:
    """The copy."""

    base: BaseRun
    """What it is a copy of."""
    run: Path
    """Its run."""
    data: Path
    """Its data."""
    settings: RecipeSettings
    """What it goes on with."""
    seed: int
    """Of the fault."""
    step: int
    """The update to plant at."""

    @property
    def generator(self) -> random.Random:
        """Random numbers of this fault, from the start."""
        return random.Random(f"{self.base.task}-{self.seed}")

    @property
    def is_saved(self) -> bool:
        """Is a fault of the state in the checkpoint that training goes on from? Else it appears in
        memory.
        """
        return self.seed % 4 < 2


def make_site(base: BaseRun, folder: Path, kind: str, seed: int) -> Site:
    """Copy a run and its data."""
    shutil.copytree(base.data, folder / "data")
    shutil.copytree(base.directory, folder / "run")
    return Site(
        base=base,
        run=folder / "run",
        data=folder / "data",
        settings=replace(
            base.settings, data=str(folder / "data"), max_updates=base.last + NUM_UPDATES
        ),
        seed=seed,
        step=base.last + 4 + random.Random(f"{kind}-{base.task}-{seed}").randrange(10),
    )


def go_on(
    site: Site,
    *,
    settings: RecipeSettings | None = None,
    data: dict[str, str] | None = None,
    watchers: Callable[[Pieces], Sequence[Callback]] = lambda _: (),
    change: Callable[[Trainer], None] = lambda _: None,
    rank: int = 0,
    world_size: int = 1,
) -> None:
    """Train on over the fault, as `sonde train` would, but without its check that the data is the
    same.
    """
    settings = settings or site.settings
    pieces = build(settings)
    with Run(
        site.run, config=settings.as_saved(), data=data, rank=rank, world_size=world_size
    ) as run:
        trainer = pieces.trainer(run)
        change(trainer)
        trainer.train(stop=pieces.settings, callbacks=list(watchers(pieces)))


def edit_checkpoint(
    site: Site, change: Callable[[dict[str, Any]], None], *, step: int | None = None
) -> None:
    """Change a checkpoint, the last one unless another is named; it verifies as before."""
    store = CheckpointStore(RunLayout(site.run).checkpoints, run_id=read_manifest(site.run).run_id)
    step = site.base.last if step is None else step
    state = store.load(step)
    change(state)
    store.save(step, state)


def moments_at(state: dict[str, Any], place: int) -> dict[str, Any]:
    """The optimizer's state of its parameter with this number, in a checkpoint."""
    states = state["optimizer"]["state"]
    found: dict[str, Any] = states[place] if place in states else states[str(place)]
    return found
