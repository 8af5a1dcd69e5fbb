"""What is trained and on what: a model, how a batch becomes a loss, and where batches come from.

The trainer knows nothing of models or batches. A task gives it a *sum* of losses and the *weight* of that sum (target tokens), or a mean
and its count, which comes to the same: a mean alone cannot be put together with others when batches differ in size.

Data need not be sonde's own: a torch `DataLoader` will do, or any iterable that can be iterated repeatedly. With a `state_dict` and `load_state_dict` (torchdata's
`StatefulDataLoader`, or a sampler that has them) a run resumes exactly where it was. Without, it starts the interrupted epoch over, and says so.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

import torch
from torch import Tensor, nn

from sonde.errors import SettingError

_logger = logging.getLogger("sonde")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class StepOutput:
    """What a task made of one batch."""

    loss_sum: Tensor
    """The loss summed over all target tokens: a scalar with a graph."""
    weight: Tensor | float
    """The number of target tokens it was summed over."""
    sample_losses: Tensor | None = None
    """[B]: the mean loss of each sample, detached; for the spike recorder."""
    token_losses: Tensor | None = None
    """[B, T]: the loss of each token, detached."""
    token_counts: Tensor | None = None
    """[B]: the target tokens of each sample; what lies beyond them in `token_losses` is padding."""
    sample_ids: Sequence[Any] = ()
    """B identifiers: what the samples are called."""
    tensors: Mapping[str, Tensor] = field(default_factory=dict)
    """Named values that callbacks may ask for."""


class Task(Protocol):
    """A model and its loss. Any object with these two will do."""

    @property
    def model(self) -> nn.Module:
        """What is trained."""

    def compute(self, batch: Any) -> StepOutput | tuple[Tensor, Tensor | float]:
        """The loss of one batch; in training with a graph, in evaluation without."""


def as_output(output: Any) -> StepOutput:
    """What a task returned: a `StepOutput`, or a mean loss and the number of things it is a mean of."""
    if isinstance(output, StepOutput):
        return output
    if isinstance(output, tuple) and len(output) == 2 and isinstance(output[0], Tensor):
        loss, count = output
        return StepOutput(loss_sum=loss * count, weight=count)
    raise SettingError(
        f"the task's compute returned a {type(output).__name__}",
        hint="return a StepOutput, or a mean loss (a tensor) and its count: `return loss, num_tokens`",
    )


class TrainingData(Protocol):
    """Micro-batches of this rank, epoch after epoch, with a position that can be saved."""

    def __iter__(self) -> Iterator[Any]:
        """What is left of the current epoch; the position moves as batches are taken, past the last one to the next epoch."""

    def state_dict(self) -> dict[str, Any]:
        """The position. With `epoch` in it, the epoch of the next batch, a run knows the last update of each epoch."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a position."""


def grouped(data: TrainingData, size: int) -> Iterator[list[Any]]:
    """The micro-batches of one update after another, for the rest of the epoch; its last update may have fewer."""
    group: list[Any] = []
    for batch in data:
        group.append(batch)
        if len(group) == size:
            yield group
            group = []
    if group:
        yield group


def as_training_data(data: Any) -> TrainingData:
    """The data as the trainer wants it."""
    return data if _has_state(data) else _Loader(data)


def moved(batch: Any, device: torch.device) -> Any:
    """A batch on a device: a tensor, anything with `to`, and what lists, tuples and dicts hold of them. For a CPU it stays as it is."""
    if device.type == "cpu":
        return batch
    if isinstance(batch, Tensor) or hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: moved(value, device) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        return type(batch)(moved(value, device) for value in batch)
    return batch


def _has_state(data: Any) -> bool:
    return callable(getattr(data, "state_dict", None)) and callable(getattr(data, "load_state_dict", None))


@final
class _Loader:
    """Anything iterable, and the position in it that somebody knows: its sampler, or nobody."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._num_epochs = 0
        samplers = [getattr(data, name, None) for name in ("batch_sampler", "sampler")]
        samplers.append(getattr(samplers[0], "sampler", None))
        self._samplers = list({id(sampler): sampler for sampler in samplers if sampler is not None}.values())
        self._positions = [sampler for sampler in self._samplers if _has_state(sampler)]
        if not self._positions:
            _logger.warning(
                "%s does not tell its position: a run that is resumed begins its epoch anew. One with a state_dict "
                "(torchdata's StatefulDataLoader, or a sampler that has one) resumes exactly",
                type(data).__name__,
            )

    def __iter__(self) -> Iterator[Any]:
        for sampler in self._samplers:
            if hasattr(sampler, "set_epoch"):  # torch's DistributedSampler shuffles by it
                sampler.set_epoch(self._num_epochs)
        yield from self._data
        self._num_epochs += 1

    def state_dict(self) -> dict[str, Any]:
        """Epochs completed, and what the sampler knows."""
        return {"num_epochs": self._num_epochs, "samplers": [one.state_dict() for one in self._positions]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go there."""
        self._num_epochs = state["num_epochs"]
        for one, position in zip(self._positions, state["samplers"], strict=False):
            one.load_state_dict(position)
