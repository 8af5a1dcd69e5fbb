"""A cross-entropy that a script writes by hand is seen like one of torch's."""

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sonde.recorder.checking.forward_watch import BackwardReached, ForwardWatch, Look, LossCall

NUM_CLASSES = 7
TARGET = torch.randint(0, NUM_CLASSES, (4, 5), generator=torch.Generator().manual_seed(1))
MASK = torch.ones(4, 5)
MASK[0, 3:] = 0


def gathered(scores: Tensor) -> Tensor:
    """Pick with gather, and leave out what is masked."""
    picked = F.log_softmax(scores, -1).gather(-1, TARGET.unsqueeze(-1)).squeeze(-1)
    return -(picked * MASK).sum() / MASK.sum()


def gathered_from_classes_in_the_middle(scores: Tensor) -> Tensor:
    """Pick with gather, where classes are in the second dimension."""
    log_probabilities = F.log_softmax(scores, -1).transpose(1, 2)
    picked = log_probabilities.gather(1, TARGET.unsqueeze(1)).squeeze(1)
    return -(picked * MASK).sum() / MASK.sum()


def indexed(scores: Tensor) -> Tensor:
    """Pick with an index of rows and targets."""
    log_probabilities = scores.flatten(0, 1).log_softmax(1)
    picked = log_probabilities[torch.arange(TARGET.numel()), TARGET.flatten()]
    return -(picked * MASK.flatten()).sum() / MASK.sum()


def with_logsumexp(scores: Tensor) -> Tensor:
    """Subtract the score of the target from the logarithm of the sum."""
    losses = scores.logsumexp(-1) - torch.take_along_dim(scores, TARGET[..., None], 2)[..., 0]
    return (losses * MASK).sum() / MASK.sum()


def with_one_hot(scores: Tensor) -> Tensor:
    """Multiply with one-hot vectors."""
    chosen = F.one_hot(TARGET, NUM_CLASSES).float()
    losses = -(chosen * F.log_softmax(scores, -1)).sum(-1)
    return (losses * MASK).sum() / MASK.sum()


def masked_by_the_script(scores: Tensor) -> Tensor:
    """Let torch compute the losses, and leave out what is masked."""
    losses = F.cross_entropy(scores.flatten(0, 1), TARGET.flatten(), reduction="none")
    return (losses * MASK.flatten()).sum() / MASK.sum()


def look_at(loss_of: Callable[[Tensor], Tensor]) -> Look:
    """Run a loss up to its backward pass."""
    generator = torch.Generator().manual_seed(2)
    scores = torch.randn(4, 5, NUM_CLASSES, generator=generator, requires_grad=True)
    watch = ForwardWatch()
    try:
        with watch:
            loss_of(scores).backward()
    except BackwardReached:
        pass
    assert scores.grad is None
    return watch.look


def main_loss(loss_of: Callable[[Tensor], Tensor]) -> LossCall:
    """Return the loss that is seen."""
    found = look_at(loss_of).main_loss()
    assert found is not None
    return found


@pytest.mark.parametrize(
    "loss_of",
    [
        gathered,
        gathered_from_classes_in_the_middle,
        indexed,
        with_logsumexp,
        with_one_hot,
        masked_by_the_script,
    ],
)
def test_targets_and_what_counts_are_seen(loss_of: Callable[[Tensor], Tensor]) -> None:
    call = main_loss(loss_of)
    assert call.counts is not None
    assert torch.equal(call.target.flatten(), TARGET.flatten())
    assert torch.equal(call.counts.flatten(), MASK.flatten() == 1)
    assert call.mean == pytest.approx(look_at(loss_of).roots[0], rel=1e-5)
    assert not call.is_normalised


def test_a_softmax_before_log_softmax_is_seen() -> None:
    call = main_loss(lambda scores: gathered(scores.softmax(-1)))
    assert call.function == "log_softmax"
    assert call.is_normalised


def test_rewards_are_no_cross_entropy() -> None:
    rewards = torch.randn(4, 5, generator=torch.Generator().manual_seed(3))

    def policy(scores: Tensor) -> Tensor:
        picked = F.log_softmax(scores, -1).gather(-1, TARGET.unsqueeze(-1)).squeeze(-1)
        return -(picked * rewards).mean()

    assert look_at(policy).main_loss() is None


def test_values_of_actions_are_no_cross_entropy() -> None:
    def values(scores: Tensor) -> Tensor:
        return scores.gather(-1, TARGET.unsqueeze(-1)).square().mean()

    assert look_at(values).main_loss() is None


def test_what_is_picked_for_a_log_line_is_no_loss() -> None:
    def logged(scores: Tensor) -> Tensor:
        F.log_softmax(scores, -1).gather(-1, TARGET.unsqueeze(-1))
        return scores.square().mean()

    assert look_at(logged).main_loss() is None
