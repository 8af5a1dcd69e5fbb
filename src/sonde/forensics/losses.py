"""What an update loses, sample by sample and token by token: forward only, with the random numbers of that update.

The model stays in training mode and the graph is built as in training, so that every number is the training's own; then the graph is thrown
away. Generators are as before afterwards.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, final

import torch

from sonde import ranks
from sonde.train.determinism import generators_kept, seed_generators
from sonde.train.settings import TrainerSettings
from sonde.train.task import StepOutput, Task, as_output


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SampleLoss:
    """One sample of this rank."""

    sample_id: Any
    """What the task calls it: (dataset, number) for sonde's own."""
    loss: float | None
    """Mean loss per token, without smoothing."""
    num_tokens: int | None
    """Its target tokens."""
    token_losses: tuple[float, ...] | None
    """The loss of each of them."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """What an update would lose."""

    loss: float
    """Mean per unit of weight, over all ranks: what `StepResult.loss` would be."""
    loss_sum: float
    """Over all ranks."""
    weight: float
    """Target tokens, over all ranks."""
    outputs: tuple[StepOutput, ...]
    """What the task gave on this rank, micro-batch by micro-batch, detached."""

    @property
    def samples(self) -> list[SampleLoss]:
        """The samples of this rank, in order."""
        return [sample for output in self.outputs for sample in _samples(output)]


def compute_losses(
    task: Task, micro_batches: Sequence[tuple[int, Any]], settings: TrainerSettings, *, update: int
) -> Losses:
    """The losses of micro-batches, each with its number, in the update with this 0-based number."""
    outputs: list[StepOutput] = []
    device_type = next(task.model.parameters()).device.type
    with generators_kept():
        for number, batch in micro_batches:
            seed_generators(settings.seed, update, number)
            autocast = (
                nullcontext()
                if settings.precision == "float32"
                else torch.autocast(device_type, dtype=getattr(torch, settings.precision))
            )
            with autocast:
                outputs.append(_detached(as_output(task.compute(batch))))
    own = [sum(float(output.loss_sum) for output in outputs), sum(float(output.weight) for output in outputs)]
    of_ranks = ranks.gather(own)
    loss_sum, weight = (sum(one[place] for one in of_ranks) for place in (0, 1))
    return Losses(
        loss=loss_sum / weight if weight else math.nan,
        loss_sum=loss_sum,
        weight=weight,
        outputs=tuple(outputs),
    )


def _detached(output: StepOutput) -> StepOutput:
    return StepOutput(
        loss_sum=output.loss_sum.detach(),
        weight=output.weight,
        sample_losses=output.sample_losses,
        token_losses=output.token_losses,
        token_counts=output.token_counts,
        sample_ids=output.sample_ids,
    )


def _samples(output: StepOutput) -> list[SampleLoss]:
    losses = None if output.sample_losses is None else output.sample_losses.tolist()
    counts = None if output.token_counts is None else output.token_counts.tolist()
    tokens = None if output.token_losses is None else output.token_losses.tolist()
    found = []
    for row, sample_id in enumerate(output.sample_ids):
        count = None if counts is None else int(counts[row])
        found.append(
            SampleLoss(
                sample_id=sample_id,
                loss=None if losses is None else losses[row],
                num_tokens=count,
                token_losses=None if tokens is None else tuple(tokens[row][:count]),
            )
        )
    return found
