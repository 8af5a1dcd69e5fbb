"""What a model must offer to be searched and scored: the seam between beam search and any network.

`sonde.generate.transformer` and `sonde.generate.huggingface` are two such models; a class of one's own with these two methods is a
third.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from sonde.generate.frontier import NextLogits


def padded(rows: Sequence[Sequence[int]], pad: int, *, left: bool = False) -> Tensor:
    """Rows of token ids as one tensor, filled up with `pad` on the right or left."""
    width = max(map(len, rows), default=0)
    fill = [[pad] * (width - len(row)) for row in rows]
    filled = [[*f, *row] if left else [*row, *f] for row, f in zip(rows, fill, strict=True)]
    return torch.tensor(filled, dtype=torch.long).view(len(rows), width)


def picked_log_probs(logits: Tensor, targets: Sequence[Sequence[int]], offset: int = 0) -> list[list[float]]:
    """Log-probability of each target token under `logits` [B, T, V]; targets begin at column `offset`."""
    log_probs = torch.log_softmax(logits.float(), dim=-1)
    return [
        log_probs[row, offset : offset + len(target)]
        .gather(-1, torch.tensor(target, device=logits.device, dtype=torch.long).unsqueeze(-1))
        .squeeze(-1)
        .tolist()
        for row, target in enumerate(targets)
    ]


class SequenceModel(Protocol):
    """A network with its token ids settled."""

    @property
    def reads_source(self) -> bool:
        """Whether it is an encoder-decoder; otherwise what it is given is a prompt to continue."""
        ...

    @property
    def device(self) -> torch.device:
        """Where the search should keep its tensors."""
        ...

    def next_logits(self, sources: Sequence[Sequence[int]]) -> NextLogits:
        """A fresh next-token function for these sources; of a causal model, for these prompts."""
        ...

    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], start: int
    ) -> list[list[float]]:
        """Log-probability of every token of each target, given its source (or prompt) and the tokens before it.

        `start` is the token a target starts from; a causal model starts from the prompt instead.
        """
        ...
