"""A finished continuation, and the pool in which the best ones of a sentence wait."""

import heapq
from dataclasses import dataclass
from typing import final

from torch import Tensor


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """One continuation that a search returns."""

    tokens: list[int]
    """Without start token or prompt; the end token is last if `ended`."""

    score: float
    """Sum of `token_scores`, divided by length ** length_penalty: what hypotheses are ranked by."""

    token_scores: list[float]
    """Log-probability of each token, penalties on single tokens included."""

    ended: bool = True
    """Whether it ended by itself; false if it was cut at the largest length (`stop="hf"`)."""

    attention: Tensor | None = None
    """[tokens, S]: how each token looked at the source, if the next-token function says so."""

    def alignment(self) -> list[int]:
        """For each token the source position it looked at most; empty if there is no attention."""
        return [] if self.attention is None else self.attention.argmax(-1).tolist()


@final
class Pool:
    """The finished hypotheses of one sentence, at most `size`: the best, or, `first_come`, the first."""

    def __init__(self, size: int, *, first_come: bool = False) -> None:
        self.size = size
        self._first_come = first_come
        self._heap: list[tuple[float, int, Hypothesis]] = []
        self._num_seen = 0

    @property
    def is_full(self) -> bool:
        """Whether `size` hypotheses are in."""
        return len(self._heap) >= self.size

    @property
    def worst(self) -> float:
        """Score of the worst one in; minus infinity if there is none."""
        return self._heap[0][0] if self._heap else float("-inf")

    def would_take(self, score: float) -> bool:
        """Whether a hypothesis with this score would come in."""
        return not self.is_full or (not self._first_come and score > self.worst)

    def add(self, hypothesis: Hypothesis) -> None:
        """Take the hypothesis in if it is good enough; among equals the earlier one stays and ranks first."""
        if not self.would_take(hypothesis.score):
            return
        self._num_seen += 1
        entry = (hypothesis.score, -self._num_seen, hypothesis)
        if self.is_full:
            heapq.heapreplace(self._heap, entry)
        else:
            heapq.heappush(self._heap, entry)

    def ranked(self) -> list[Hypothesis]:
        """Best first."""
        return [entry[2] for entry in sorted(self._heap, key=lambda entry: entry[:2], reverse=True)]
