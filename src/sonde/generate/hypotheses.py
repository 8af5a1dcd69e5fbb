"""A finished continuation, the pool in which the best ones of a sentence wait, and when a sentence is finished.

    exact     the pool holds n_best, and no open hypothesis can still beat the worst of them, however it goes on
    fairseq   the pool holds `beam`, first come, first served
    hf        the pool holds `beam`, and the best open hypothesis, scored at its present length, does not beat the worst of them

"exact" needs a bound: log-probabilities only fall, so an open hypothesis with sum s can reach at most s / length ** penalty at the
length that suits it best. Under every rule a beam of 1 is greedy search: the first end token ends it.
"""

import heapq
from dataclasses import dataclass
from typing import final

from torch import Tensor

from sonde.generate.settings import SearchSettings


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


def make_pool(settings: SearchSettings, beam: int) -> Pool:
    """The pool for a beam (or one group of it) under the settings' rule."""
    size = min(settings.n_best, beam) if settings.stop == "exact" else beam
    return Pool(size, first_come=settings.stop == "fairseq")


def best_reachable(open_score: float, num_tokens: int, max_len: int, settings: SearchSettings) -> float:
    """The best final score of an open hypothesis of `num_tokens` tokens whose log-probabilities sum to `open_score`."""
    shortest, longest = num_tokens + 1, max(max_len, num_tokens) + 1
    # Only a negative penalty, a reward, lets the sum rise.
    highest = open_score + max(0.0, -settings.unk_penalty) * (longest - num_tokens)
    length = longest if (highest <= 0) == (settings.length_penalty > 0) else shortest
    return highest / float(length**settings.length_penalty)


def is_finished(pool: Pool, open_score: float, num_tokens: int, max_len: int, settings: SearchSettings) -> bool:
    """Whether the search of a sentence (or group) is over; `open_score` is the best open sum after `num_tokens` tokens."""
    if num_tokens >= (max_len if settings.stop == "hf" else max_len + 1) or open_score == float("-inf"):
        return True
    if not pool.is_full:
        return False
    if settings.stop == "fairseq" or settings.beam == settings.diverse_groups:
        return True
    if settings.stop == "hf":
        return open_score / float(num_tokens**settings.length_penalty) <= pool.worst
    return best_reachable(open_score, num_tokens, max_len, settings) <= pool.worst
