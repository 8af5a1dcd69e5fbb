"""One evaluation: the task over held-out batches, without a trace in the training.

The model's mode, the generators of python, numpy and torch, and the metrics' levels are as before afterwards: a run with
evaluations is bitwise equal to one without. The loss is the sum over all ranks divided by the total weight.
"""

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from sonde.train.ranks import communication_device, world_size
from sonde.train.task import StepOutput, Task


def evaluate(
    task: Task,
    batches: Iterable[Any],
    *,
    move: Callable[[Any], Any] = lambda batch: batch,
    on_batch: Callable[[StepOutput], None] | None = None,
) -> dict[str, float]:
    """`loss` and `weight` over all batches of all ranks. `move` brings a batch to the device, `on_batch` sees each result."""
    total = torch.zeros(2, dtype=torch.float64, device=communication_device())
    with untouched(task.model), torch.no_grad():
        for batch in batches:
            output = task.compute(move(batch))
            total[0] += float(output.loss_sum)
            total[1] += float(output.weight)
            if on_batch is not None:
                on_batch(output)
    if world_size() > 1:
        dist.all_reduce(total)
    loss_sum, weight = total.tolist()
    return {"loss": loss_sum / weight if weight else float("nan"), "weight": weight}


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and every generator as it was when the block ends."""
    modes = {module: module.training for module in model.modules()}
    python, numpy, cpu = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002  users have it
    devices = torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else []
    model.eval()
    try:
        yield
    finally:
        for module, training in modes.items():
            module.training = training
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(cpu)
        if devices:
            torch.cuda.set_rng_state_all(devices)
