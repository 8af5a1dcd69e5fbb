"""One evaluation of the task on held-out batches, without any effect on training.

The model's mode, the generators of python, numpy and torch, and the metrics' levels are restored afterwards: a run with
evaluations is bitwise equal to one without. The loss is the sum over all ranks divided by the total weight.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sonde.callbacks.base import Callback
from sonde.errors import SettingError
from sonde.ranks import communication_device, gather_tensors, world_size
from sonde.train.determinism import generators_kept
from sonde.train.task import StepOutput, Task, as_output


def evaluate(
    task: Task,
    batches: Callable[[], Iterable[Any]],
    *,
    move: Callable[[Any], Any] = lambda batch: batch,
    names: Sequence[str] = (),
    on_batch: Callable[[dict[str, list[Any]]], None] = lambda _: None,
) -> dict[str, float]:
    """Return `loss` and `weight` over all batches of all ranks. `move` moves a batch to the device.

    With `names`, `on_batch` gets these values of each batch as lists, with one entry per rank that still had a batch.
    """
    total = torch.zeros(2, dtype=torch.float64, device=communication_device())
    with untouched(task.model), torch.no_grad():
        for batch in batches():
            output = as_output(task.compute(move(batch)))
            total[0] += float(output.loss_sum)
            total[1] += float(output.weight)
            if names:
                on_batch(gather_tensors(_values(output, names)))
        while names and (values := gather_tensors(None)):  # other ranks may have more batches than this one
            on_batch(values)
    if world_size() > 1:
        dist.all_reduce(total)
    loss_sum, weight = total.tolist()
    return {"loss": loss_sum / weight if weight else float("nan"), "weight": weight}


def choose_evaluation_data(
    own: Callable[[], Iterable[Any]] | None, callbacks: Sequence[Callback]
) -> Callable[[], Iterable[Any]] | None:
    """Return the single source of held-out batches, from the trainer or a callback. Raises if there are several."""
    sources = [callback.evaluation_data for callback in callbacks if callback.evaluation_data is not None]
    sources += [own] if own is not None else []
    if len(sources) > 1:
        raise SettingError(
            f"there are {len(sources)} sources of validation data, and one evaluation",
            hint="give valid_data to the trainer, or eval_data to one EvaluatorCallback",
        )
    return sources[0] if sources else None


def _values(output: StepOutput, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the named values of one batch. `loss` is the mean per unit of weight unless the task provides its own."""
    named = {"loss": output.loss_sum / output.weight, **output.tensors}
    missing = [name for name in names if name not in named]
    if missing:
        raise SettingError(
            f"the task gives no value called {', '.join(missing)}", hint=f"it gives {', '.join(sorted(named))}"
        )
    return {name: torch.as_tensor(named[name]).detach() for name in names}


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode; restore its mode and every generator when the block ends."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with generators_kept():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
