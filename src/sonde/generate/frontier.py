"""What a next-token function is given at every step, and what it returns.

    def next_logits(frontier):
        return table[frontier.tokens[:, :, -1]]           # a bigram model: [B, K, V]

A function without memory reads `frontier.tokens`. One that keeps keys and values first drops the sentences that are finished
(`kept`), then lets every hypothesis continue its parent (`parents`), then reads the last token.

Shapes: B sentences still open, K hypotheses of each (1 at the first step), T tokens so far, V vocabulary, S source tokens.
"""

from dataclasses import dataclass
from typing import Protocol, final

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
