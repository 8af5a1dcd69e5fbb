"""Label-smoothed cross-entropy that keeps one number per token, because a loss spike is found in single tokens.

Computed in float32 whatever the logits are. The smoothed loss is that of `torch.nn.functional.cross_entropy`; the plain negative
log-likelihood comes with it, since perplexity is about that one.
"""

from dataclasses import dataclass
from typing import final

from torch import Tensor

from sonde.errors import SettingError


def token_losses(logits: Tensor, targets: Tensor, *, pad: int, label_smoothing: float = 0.0) -> "TokenLosses":
    """Losses of `targets` [B, T] under `logits` [B, T, V]; padding gets exactly 0 and no gradient."""
    if not 0.0 <= label_smoothing < 1.0:
        raise SettingError(f"label_smoothing is {label_smoothing!r}", hint="use a rate from 0 up to, not including, 1")
    logits = logits.float()
    is_token = targets != pad
    normaliser = logits.logsumexp(-1)
    likelihood = normaliser - logits.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
    smoothed = likelihood
    if label_smoothing:
        uniform = normaliser - logits.mean(-1)
        smoothed = (1 - label_smoothing) * likelihood + label_smoothing * uniform
    return TokenLosses(
        losses=smoothed.masked_fill(~is_token, 0.0),
        negative_log_likelihoods=likelihood.detach().masked_fill(~is_token, 0.0),
        num_tokens=is_token.sum(),
    )


@final
@dataclass(frozen=True, slots=True)
class TokenLosses:
    """What one batch lost, token by token."""

    losses: Tensor
    """[B, T]: the smoothed loss to train on, 0 at padding."""

    negative_log_likelihoods: Tensor
    """[B, T]: without smoothing, detached, 0 at padding."""

    num_tokens: Tensor
    """How many tokens are not padding: a scalar tensor, so that nothing waits for it."""

    def mean(self) -> Tensor:
        """Loss per token: what to call `backward` on, in one process."""
        return self.losses.sum() / self.num_tokens.clamp_min(1)
