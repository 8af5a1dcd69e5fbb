"""One loss per token, equal to torch's own."""

import pytest
import torch
import torch.nn.functional as F

from sonde.errors import SettingError
from sonde.models.loss import token_losses


@pytest.mark.parametrize("label_smoothing", [0.0, 0.1, 0.6])
def test_losses_and_gradients_are_those_of_torch(label_smoothing: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 5, 11, requires_grad=True)
    targets = torch.tensor([[3, 4, 5, 1, 1], [2, 2, 9, 10, 1]])
    ours = token_losses(logits, targets, pad=1, label_smoothing=label_smoothing)
    (gradient,) = torch.autograd.grad(ours.mean(), logits)
    flat = F.cross_entropy(
        logits.flatten(0, 1),
        targets.flatten(),
        ignore_index=1,
        reduction="none",
        label_smoothing=label_smoothing,
    )
    (expected_gradient,) = torch.autograd.grad(flat.sum() / 7, logits)
    torch.testing.assert_close(ours.losses.flatten(), flat)
    torch.testing.assert_close(gradient, expected_gradient)
    assert int(ours.num_tokens) == 7
    assert (ours.losses[targets == 1] == 0).all()


def test_the_likelihood_is_not_smoothed_and_carries_no_gradient() -> None:
    logits = torch.randn(1, 2, 5, requires_grad=True)
    targets = torch.tensor([[2, 3]])
    ours = token_losses(logits, targets, pad=1, label_smoothing=0.3)
    expected = -logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(ours.negative_log_likelihoods, expected.detach())
    assert not ours.negative_log_likelihoods.requires_grad


def test_half_precision_logits_are_summed_in_float32() -> None:
    logits = torch.randn(1, 3, 1000).bfloat16()
    losses = token_losses(logits, torch.tensor([[2, 3, 4]]), pad=1).losses
    torch.testing.assert_close(
        losses, token_losses(logits.float(), torch.tensor([[2, 3, 4]]), pad=1).losses
    )
    assert losses.dtype == torch.float32


def test_a_batch_of_padding_has_mean_zero() -> None:
    assert float(token_losses(torch.randn(1, 2, 5), torch.full((1, 2), 1), pad=1).mean()) == 0.0


def test_a_smoothing_that_is_no_rate_is_refused() -> None:
    with pytest.raises(SettingError, match=r"label_smoothing is 1\.5"):
        token_losses(torch.randn(1, 2, 5), torch.full((1, 2), 2), pad=1, label_smoothing=1.5)
