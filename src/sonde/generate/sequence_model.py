"""The seam between a search and any network: what a next-token function is given and returns, and what a model offers.

    def next_logits(frontier):
        return table[frontier.tokens[:, :, -1]]           # a bigram model: [B, K, V]

A function without memory reads `frontier.tokens`. One that keeps keys and values first drops the sentences that are finished
(`kept`), then lets every hypothesis continue its parent (`parents`), then reads the last token. `sonde.generate.transformer` and
`sonde.generate.huggingface` are two models; a class of your own with the methods of `SequenceModel` is a third.

Shapes: B sentences still open, K hypotheses of each (1 at the first step), T tokens so far, V vocabulary, S source tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, final

import torch
from torch import Tensor


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """The open hypotheses."""

    tokens: Tensor
    """[B, K, T]: the prefix of every hypothesis: start token or prompt (padded on the left), then what was generated."""

    sentences: Tensor
    """[B]: which of the sentences the search was started with each row is."""

    step: int
    """How many tokens have been generated."""

    kept: Tensor | None = None
    """[B]: rows of the last call's batch that are still open, in their new order; None if all are, unmoved."""

    parents: Tensor | None = None
    """[B, K]: which hypothesis of the same sentence, in the last call, each one continues; None at the first step."""


class NextLogits(Protocol):
    """Any callable that says how likely each next token is."""

    def __call__(self, frontier: Frontier, /) -> Tensor | tuple[Tensor, Tensor]:
        """Logits [B, K, V]; or a pair of them and attention over the source, [B, K, S]."""
        ...


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


def previous_tokens(
    sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], start: int | None, pad: int
) -> tuple[Tensor, int]:
    """What a decoder reads to be scored on the targets, [B, T], and the column of the logits at which they begin.

    A target starts from `start`, or without one from its source, which then is a prompt.
    """
    if start is not None:
        return padded([[start, *target[:-1]] for target in targets], pad), 0
    prompts = padded(sources, pad, left=True)
    rest = padded([target[:-1] for target in targets], pad)
    return torch.cat((prompts, rest), dim=1), prompts.shape[1] - 1
