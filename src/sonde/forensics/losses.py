"""Compute the losses of an update per sample and per token: forward only, with the random numbers of that update.

The model stays in training mode and the graph is built as in training, so that every value is identical to training;
then the graph is discarded. The random generators are restored afterwards.
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
    """The loss of one sample of this rank."""

    sample_id: Any
    """The sample's id in the task: (dataset, number) in sonde's own datasets."""
    loss: float | None
    """The mean loss per token, without label smoothing."""
    num_tokens: int | None
    """The number of target tokens."""
    token_losses: tuple[float, ...] | None
    """The loss of each target token."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Losses:
    """The losses of an update that is not applied."""

    loss: float
    """The mean loss per unit of weight over all ranks, equal to `StepResult.loss`."""
    loss_sum: float
    """The sum of the losses over all ranks."""
    weight: float
    """The number of target tokens over all ranks."""
    outputs: tuple[StepOutput, ...]
    """The task's outputs on this rank, by micro-batch, detached."""

    @property
    def samples(self) -> list[SampleLoss]:
        """The samples of this rank, in order."""
        return [sample for output in self.outputs for sample in _samples(output)]


def compute_losses(
    task: Task, micro_batches: Sequence[tuple[int, Any]], settings: TrainerSettings, *, update: int
) -> Losses:
    """Compute the losses of numbered micro-batches in the update with the 0-based index `update`."""
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
