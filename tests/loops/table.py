"""The table of loops: each axis by itself, and pairs of axes.

structure x optimizer x model     composed here: one plain loop with other parts
control flow                      written out, one function each (control_*.py)
hosts                             Hugging Face, Lightning and Accelerate (hosts.py)
"""

import itertools
from collections.abc import Callable
from typing import Any

from loops import (
    control_callables,
    control_changes,
    control_failures,
    control_processes,
    control_reach,
    control_steps,
    control_writes,
)
from loops.context import NUM_STEPS, Context
from loops.control import CONTROLS
from loops.hosts import HOSTS
from loops.models import MODELS
from loops.optimizers import OPTIMIZERS
from loops.structures import STRUCTURES, Structure
from torch import nn

_FILLED = (
    *(control_callables, control_changes, control_failures, control_processes, control_reach),
    *(control_steps, control_writes),
)
"""Importing these has filled CONTROLS."""


def compose(structure: Structure, optimizer: Callable[[nn.Module], Any], make_model: Any) -> Any:
    def loop(context: Context) -> None:
        model = make_model()
        moves = optimizer(model)
        recorder = context.record(model, moves)

        def train_step(batch: Any) -> Any:
            loss = structure.loss(model, batch)
            if structure.reports:
                recorder.loss(loss)
            loss.backward()
            moves.step()
            moves.zero_grad()
            return structure.returns(loss.detach())

        for step in range(1, NUM_STEPS + 1):
            recorder.step(train_step, structure.batch(context, step))

    return loop


def _composed() -> dict[str, Callable[[Context], None]]:
    plain = STRUCTURES["regression"]
    adam = OPTIMIZERS["AdamW"]
    loops = {}
    for name, structure in STRUCTURES.items():
        loops[f"batch: {name}"] = compose(structure, adam, structure.model)
    for name, optimizer in OPTIMIZERS.items():
        loops[f"optimizer: {name}"] = compose(plain, optimizer, plain.model)
    for name, model in MODELS.items():
        loops[f"model: {name}"] = compose(plain, adam, model)
    pairs = zip(itertools.cycle(OPTIMIZERS.items()), MODELS.items(), strict=False)
    for (name, optimizer), (model_name, model) in pairs:
        loops[f"{name}, {model_name}"] = compose(plain, optimizer, model)
    return loops


LOOPS: dict[str, Callable[[Context], None]] = {
    **_composed(),
    **{f"control: {name}": loop for name, loop in CONTROLS.items()},
    **{f"host: {name}": loop for name, loop in HOSTS.items()},
}
