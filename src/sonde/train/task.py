"""The interface between the trainer and what it trains: a model, how a batch becomes a loss, the
source of batches, and one evaluation.

The trainer knows nothing about models or batches. A task returns a *sum* of losses and the *weight*
of that sum (target tokens), or a mean and its count, which is equivalent. A mean alone cannot be
combined with others when batches differ in size.

Any data works: a torch `DataLoader`, or any iterable that can be iterated repeatedly. If it has
`state_dict` and `load_state_dict` (torchdata's `StatefulDataLoader`, or a sampler that has them), a
run resumes exactly where it was. Without them it restarts the interrupted epoch, with a warning.

An evaluation has no effect on training. The model's mode, the generators of python, numpy and
torch, and the metrics' levels are restored afterwards: a run with evaluations is bitwise equal to
one without. The loss is the sum over all ranks divided by the total weight.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn

from sonde.errors import SettingError
from sonde.ranks import communication_device, gather_tensors, world_size
from sonde.train.determinism import generators_restored

_logger = logging.getLogger("sonde")


@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutput:
    """What a task computed for one batch."""

    loss_sum: Tensor
    """The loss summed over all target tokens: a scalar with a graph."""
    weight: Tensor | float
    """The number of target tokens in the sum."""
    sample_losses: Tensor | None = None
    """[B]: the mean loss of each sample, detached; used by the spike recorder."""
    token_losses: Tensor | None = None
    """[B, T]: the loss of each token, detached."""
    token_counts: Tensor | None = None
    """[B]: the number of target tokens of each sample; later positions in `token_losses` are
    padding.
    """
    sample_ids: Sequence[Any] = ()
    """Identifiers of the B samples."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """Named values for callbacks."""


class Task(Protocol):
    """A model and its loss. Any object with these two members works."""

    @property
    def model(self) -> nn.Module:
        """The model to train."""

    def compute(self, batch: Any) -> StepOutput | tuple[Tensor, Tensor | float]:
        """Return the loss of one batch; with a graph in training, without one in evaluation."""


def as_output(output: Any) -> StepOutput:
    """Convert what a task returned: a `StepOutput`, or a mean loss and its count."""
    if isinstance(output, StepOutput):
        return output
    if isinstance(output, tuple) and len(output) == 2 and isinstance(output[0], Tensor):
        loss, count = output
        return StepOutput(loss_sum=loss * count, weight=count)
    raise SettingError(
        f"the task's compute returned a {type(output).__name__}",
        hint=(
            "return a StepOutput, or a mean loss (a tensor) and its count: `return loss,"
            " num_tokens`"
        ),
    )


class TrainingData(Protocol):
    """Micro-batches of this rank, epoch after epoch, with a position that can be saved."""

    def __iter__(self) -> Iterator[Any]:
        """Iterate over the rest of the current epoch. Taking a batch advances the position; after
        the last one it is the next epoch.
        """

    def state_dict(self) -> dict[str, Any]:
        """Return the position.

        With an `epoch` entry (of the next batch), a run can tell the last update of an epoch.
        """

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position from a `state_dict`."""


def grouped(data: TrainingData, size: int, device: torch.device) -> Iterator[list[Any]]:
    """Yield the micro-batches of each update for the rest of the epoch, on the device. The last
    update may have fewer.
    """
    group: list[Any] = []
    for batch in data:
        group.append(moved(batch, device))
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def as_training_data(data: Any) -> TrainingData:
    """Return `data`, wrapped to have a position if it has none."""
    return data if has_state(data) else _Loader(data)


def moved(batch: Any, device: torch.device) -> Any:
    """Move a batch to a device: tensors, objects with `to`, and lists, tuples and dicts of them. A
    no-op for the CPU.
    """
    if device.type == "cpu":
        return batch
    if isinstance(batch, Tensor) or hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: moved(value, device) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        return type(batch)(moved(value, device) for value in batch)
    return batch


def has_state(data: Any) -> bool:
    """Return whether data can save and restore its position."""
    return callable(getattr(data, "state_dict", None)) and callable(
        getattr(data, "load_state_dict", None)
    )


def tells_position(data: TrainingData) -> bool:
    """Return whether data resume where they were, also in the middle of an epoch."""
    return not isinstance(data, _Loader) or data.tells_position


class _Loader:
    """Wraps any iterable. The position comes from its samplers, if they have one."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._num_epochs = 0
        samplers = [getattr(data, name, None) for name in ("batch_sampler", "sampler")]
        samplers.append(getattr(samplers[0], "sampler", None))
        self._samplers = list(
            {id(sampler): sampler for sampler in samplers if sampler is not None}.values()
        )
        self._positions = [sampler for sampler in self._samplers if has_state(sampler)]
        if not self.tells_position:
            _logger.warning(
                "%s does not tell its position: a run that is resumed begins its epoch anew. One"
                " with a state_dict (torchdata's StatefulDataLoader, or a sampler that has one)"
                " resumes exactly",
                type(data).__name__,
            )

    @property
    def tells_position(self) -> bool:
        """Whether a sampler knows where it is."""
        return bool(self._positions)

    def __iter__(self) -> Iterator[Any]:
        for sampler in self._samplers:
            if hasattr(sampler, "set_epoch"):  # torch's DistributedSampler shuffles by it
                sampler.set_epoch(self._num_epochs)
        yield from self._data
        self._num_epochs += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the number of completed epochs and the state of the samplers."""
        return {
            "num_epochs": self._num_epochs,
            "samplers": [position.state_dict() for position in self._positions],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position from a `state_dict`."""
        self._num_epochs = state["num_epochs"]
        for sampler, position in zip(self._positions, state["samplers"], strict=False):
            sampler.load_state_dict(position)


def evaluate(
    task: Task,
    batches: Iterable[Any],
    names: Sequence[str],
    on_batch: Callable[[dict[str, list[Any]]], None],
) -> dict[str, float]:
    """Return `loss` and `weight` over all batches of all ranks, which must be on the model's
    device.

    With `names`, `on_batch` gets these values of each batch as lists, with one entry per rank that
    still had a batch.
    """
    total = torch.zeros(2, dtype=torch.float64, device=communication_device())
    with untouched(task.model), torch.no_grad():
        for batch in batches:
            output = as_output(task.compute(batch))
            total[0] += float(output.loss_sum)
            total[1] += float(output.weight)
            if names:
                on_batch(gather_tensors(_values(output, names)))
        # other ranks may have more batches than this one
        while names and (values := gather_tensors(None)):
            on_batch(values)
    if world_size() > 1:
        dist.all_reduce(total)
    loss_sum, weight = total.tolist()
    return {"loss": loss_sum / weight if weight else float("nan"), "weight": weight}


def _values(output: StepOutput, names: Sequence[str]) -> dict[str, Tensor]:
    """Return the named values of one batch. `loss` is the mean per unit of weight unless the task
    provides its own.
    """
    named = {"loss": output.loss_sum / output.weight, **output.tensors}
    missing = [name for name in names if name not in named]
    if missing:
        raise SettingError(
            f"the task gives no value called {', '.join(missing)}",
            hint=f"it gives {', '.join(sorted(named))}",
        )
    return {name: torch.as_tensor(named[name]).detach() for name in names}


@contextmanager
def untouched(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode; restore its mode and every generator when the block
    ends.
    """
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with generators_restored():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
