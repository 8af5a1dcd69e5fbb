"""What the rows of TRL's trainers are, for the callback of Hugging Face's Trainer.

TRL's models return the log-probabilities of the labels instead of logits, so the loss of supervised
fine-tuning does not go through `F.cross_entropy`. What the model returned is kept until the loss is
known; it costs nothing to compute.

Trainers on preferences put the chosen texts of a batch before its rejected ones: sample i is made
of the rows i and i + N/2. The recorder gets such a batch with both in one row, so that rows are
samples everywhere: in the watch, in a replay, on the skip list. The trainer gets it back as it was.
"""

import sys
from collections.abc import Mapping
from typing import Any, Final

import torch
from torch import Tensor, nn

_SUPERVISED: Final = ("SFTTrainer",)
_PAIRED: Final = ("DPOTrainer", "RewardTrainer")


def trains_on_pairs(trainer: Any) -> bool:
    """Return whether a batch holds the chosen texts of its samples, then the rejected ones."""
    return _is_one_of(trainer, _PAIRED)


def shows_token_losses(trainer: Any) -> bool:
    """Return whether the loss is the mean over the tokens whose log-probabilities the model
    returns.
    """
    return _is_one_of(trainer, _SUPERVISED) and trainer.args.loss_type == "nll"


def fold_pairs(inputs: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return a batch with both texts of a sample in one row, and the names of what was folded."""
    tokens = inputs.get("input_ids")
    if not isinstance(tokens, Tensor) or len(tokens) % 2:
        return dict(inputs), []
    folded = dict(inputs)
    names = []
    for name, part in inputs.items():
        if isinstance(part, Tensor) and part.dim() and len(part) == len(tokens):
            folded[name] = part.unflatten(0, (2, -1)).transpose(0, 1)
            names.append(name)
    return folded, names


def unfold_pairs(inputs: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """Return a batch as the trainer made it: the chosen texts, then the rejected ones."""
    unfolded = dict(inputs)
    for name in names:
        unfolded[name] = inputs[name].transpose(0, 1).flatten(0, 1)
    return unfolded


class TokenLossHook:
    """Keeps the token losses of a model's last call until its loss is known."""

    def __init__(self, model: nn.Module) -> None:
        self._token_losses: Tensor | None = None
        self._handle = model.register_forward_hook(self._keep)

    def take(self) -> Tensor | None:
        """Return the token losses of the last call, NaN where there is no label; None if it
        returned none.
        """
        token_losses = self._token_losses
        self._token_losses = None
        return token_losses

    def close(self) -> None:
        """Leave the model alone."""
        self._handle.remove()

    def _keep(self, module: nn.Module, args: Any, output: Any) -> None:
        """Take what is needed of an output. The rest, such as logits, is not held."""
        del module, args
        log_probs = getattr(output, "log_probs", None)
        mask = getattr(output, "label_mask", None)
        self._token_losses = None
        if log_probs is not None and mask is not None:
            self._token_losses = torch.where(mask, -log_probs.detach(), torch.nan)


def _is_one_of(trainer: Any, names: tuple[str, ...]) -> bool:
    """Return whether a trainer is one of TRL's. TRL is not imported for this."""
    trl = sys.modules.get("trl")
    kinds = [getattr(trl, name, None) for name in names] if trl is not None else []
    return any(isinstance(kind, type) and isinstance(trainer, kind) for kind in kinds)
