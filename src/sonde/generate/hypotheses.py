"""Finished hypotheses, the pool of the best ones of a sentence, and the rules for when a sentence
is finished.

    exact     the pool holds n_best, and no open hypothesis can still beat the worst of them,
              however it continues
    fairseq   the pool holds `beam`, first come, first served
    hf        the pool holds `beam`, and the best open hypothesis, scored at its current length,
              does not beat the worst of them

"exact" needs a bound: log-probabilities are never positive, so an open hypothesis with sum s can
reach at most s / length ** penalty at the length that suits it best. Under every rule a beam of 1
is greedy search: the first end token ends it.
"""

import bisect
from dataclasses import dataclass

from torch import Tensor

from sonde.generate.settings import SearchSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class Hypothesis:
    """One continuation found by a search."""

    tokens: list[int]
    """The tokens without start token or prompt; the end token is last if `ended`."""

    score: float
    """Sum of `token_scores` divided by length ** length_penalty, by which hypotheses are ranked."""

    token_scores: list[float]
    """Log-probability of each token, including penalties on single tokens."""

    ended: bool = True
    """Whether it ended with the end token; False if it was cut at the maximum length
    (`stop="hf"`).
    """

    attention: Tensor | None = None
    """[tokens, S]: attention of each token over the source, if the next-token function provides
    it.
    """

    @property
    def words(self) -> list[int]:
        """The tokens without the end token."""
        return self.tokens[:-1] if self.ended else self.tokens


class Pool:
    """The finished hypotheses of one sentence, at most `size`: the best, or with `first_come` the
    first.
    """

    def __init__(self, size: int, *, first_come: bool = False) -> None:
        self.size = size
        self.ranked: list[Hypothesis] = []
        """The hypotheses, best first. Among equals, the earlier one ranks first."""
        self._first_come = first_come

    @property
    def is_full(self) -> bool:
        """Whether the pool holds `size` hypotheses."""
        return len(self.ranked) >= self.size

    def would_take(self, score: float) -> bool:
        """Return whether a hypothesis with this score would be added."""
        return not self.is_full or (not self._first_come and score > self.ranked[-1].score)

    def add(self, hypothesis: Hypothesis) -> None:
        """Add a hypothesis that the pool would take; in a full pool it replaces the worst."""
        bisect.insort(self.ranked, hypothesis, key=lambda one: -one.score)
        del self.ranked[self.size :]


def best_reachable(
    open_score: float, num_tokens: int, max_len: int, settings: SearchSettings
) -> float:
    """Return the best final score that an open hypothesis of `num_tokens` tokens with sum
    `open_score` can reach.
    """
    shortest = num_tokens + 1
    longest = max(max_len, num_tokens) + 1
    # Only a negative penalty, which is a reward, lets the sum rise.
    highest = open_score + max(0.0, -settings.unk_penalty) * (longest - num_tokens)
    length = longest if (highest <= 0) == (settings.length_penalty > 0) else shortest
    return highest / float(length**settings.length_penalty)


def is_finished(
    pool: Pool, open_score: float, num_tokens: int, max_len: int, settings: SearchSettings
) -> bool:
    """Return whether a sentence or group is finished; `open_score` is the best open sum after
    `num_tokens` tokens.
    """
    if num_tokens >= (max_len if settings.stop == "hf" else max_len + 1) or open_score == float(
        "-inf"
    ):
        return True
    if not pool.is_full:
        return False
    if settings.stop == "fairseq" or settings.beam == settings.diverse_groups:
        return True
    if settings.stop == "hf":
        reachable = open_score / float(num_tokens**settings.length_penalty)
    else:
        reachable = best_reachable(open_score, num_tokens, max_len, settings)
    return reachable <= pool.ranked[-1].score
