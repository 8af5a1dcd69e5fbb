"""What is trained and on what: a model, how a batch becomes a loss, and where batches come from.

The trainer knows nothing of models or batches. A task gives it a *sum* of losses and the *weight* of that sum (target tokens), or a mean
and its count, which comes to the same: a mean alone cannot be put together with others when batches differ in size.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, final

from torch import Tensor, nn

from sonde.errors import SettingError


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
