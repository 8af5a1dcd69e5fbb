"""Compute the losses of an update per sample and per token: forward only, with the random numbers of that update.

The model stays in training mode and the graph is built as in training, so that every value is identical to training;
then the graph is discarded. The random generators are restored afterwards.
"""

import math
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import torch

from sonde import ranks
from sonde.train.determinism import generators_kept, seed_generators
from sonde.train.settings import TrainerSettings
from sonde.train.task import StepOutput, Task, as_output


class SampleLoss(NamedTuple):
    """The loss of one sample of this rank."""

    sample_id: Any
    """The sample's id in the task: (dataset, number) in sonde's own datasets."""
    loss: float | None
    """The mean loss per token, without label smoothing."""
    num_tokens: int | None
    """The number of target tokens."""
    token_losses: tuple[float, ...] | None
    """The loss of each target token."""


class Losses(NamedTuple):
    """The losses of an update that is not applied."""

    loss: float
    """The mean loss per unit of weight over all ranks, equal to `StepResult.loss`."""
    of_batches: Sequence[Sequence[SampleLoss]]
    """The samples of this rank, by micro-batch."""

    @property
    def samples(self) -> list[SampleLoss]:
        """The samples of this rank, in order."""
        return [sample for samples in self.of_batches for sample in samples]


def compute_losses(
    task: Task, micro_batches: Sequence[tuple[int, Any]], settings: TrainerSettings, *, update: int
) -> Losses:
    """Compute the losses of numbered micro-batches in the update with the 0-based index `update`."""
    own, of_batches = [0.0, 0.0], list[list[SampleLoss]]()
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
                output = as_output(task.compute(batch))
            own = [own[0] + output.loss_sum.item(), own[1] + float(output.weight)]
            of_batches.append(sample_losses(output))
    loss_sum, weight = map(sum, zip(*ranks.gather(own), strict=True))
    return Losses(loss_sum / weight if weight else math.nan, of_batches)


def sample_losses(output: StepOutput) -> list[SampleLoss]:
    """Return the loss of each sample of a task's output."""
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
