"""When a sentence is finished: pure decisions on numbers.

    exact     the pool holds n_best, and no open hypothesis can still beat the worst of them, however it goes on
    fairseq   the pool holds `beam`, first come, first served
    hf        the pool holds `beam`, and the best open hypothesis, scored at its present length, does not beat the worst of them

"exact" needs a bound: log-probabilities only fall, so an open hypothesis with sum s can reach at most s / length ** penalty at the
length that suits it best. Under every rule a beam of 1 is greedy search: the first end token ends it.
"""

from sonde.generate.hypotheses import Pool
from sonde.generate.settings import SearchSettings


def make_pool(settings: SearchSettings, beam: int) -> Pool:
    """The pool for a beam (or one group of it) under the settings' rule."""
    if settings.stop == "exact":
        return Pool(min(settings.n_best, beam))
    return Pool(beam, first_come=settings.stop == "fairseq")


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
