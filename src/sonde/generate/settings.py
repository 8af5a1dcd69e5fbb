"""What a search looks for and when it stops, checked when it is made."""

from dataclasses import dataclass
from math import isfinite
from typing import Literal, final, get_args

from sonde.errors import SettingError, check_at_least, check_choice

Stop = Literal["exact", "fairseq", "hf"]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSettings:
    """How continuations are searched for, scored and finished. Token ids default to fairseq's."""

    eos: int = 2
    """The token that ends a sentence."""

    pad: int | None = 1
    """Padding; never generated (except under `stop="hf"`, where only `banned` says so)."""

    unk: int | None = 3
    """The unknown word, for `unk_penalty`."""

    start: int | None = None
    """The token every continuation starts from, not part of the result; None means `eos`, as in fairseq."""

    beam: int = 5
    """Hypotheses kept open per sentence (for sampling: samples drawn). 1 is greedy search under every `stop`."""

    n_best: int = 1
    """Hypotheses returned per sentence, at most `beam`; fewer come back if fewer exist."""

    min_len: int = 0
    """Tokens before the end token, at least: `int(min_len_ratio * source_length + min_len)`."""

    min_len_ratio: float = 0.0
    """How much the shortest allowed length grows with the source."""

    max_len: int = 200
    """Tokens before the end token, at most: `int(max_len_ratio * source_length + max_len)`; then only the end token is allowed.

    Under `stop="hf"` the end token counts, and what has not ended by then is returned without one (`max_new_tokens`).
    """

    max_len_ratio: float = 0.0
    """How much the longest allowed length grows with the source."""

    length_penalty: float = 1.0
    """A hypothesis scores log-probability / length ** length_penalty, the end token counted; 0 compares plain log-probabilities."""

    unk_penalty: float = 0.0
    """Subtracted from the log-probability of every unknown word."""

    temperature: float = 1.0
    """Logits are divided by this."""

    no_repeat_ngram: int = 0
    """No n-gram of this size occurs twice in start, prompt and result together; 0 allows all. Ending is always allowed."""

    banned: tuple[int, ...] = ()
    """Tokens that are never generated."""

    forced: tuple[tuple[int, int], ...] = ()
    """Pairs (step, token), steps counted from 0: what every hypothesis generates there. Under `stop="hf"` it scores 0, as there."""

    diverse_groups: int = 1
    """Diverse beam search with Hamming diversity (Vijayakumar et al. 2018): the beam falls into this many groups, each of which searches and
    finishes for itself. fairseq's `--diverse-beam-groups` is another method unless its
    `diversity_discount` is 0: there the penalty for following an earlier group grows with every step."""

    diversity: float = 0.5
    """Subtracted from a token's log-probability for every hypothesis of earlier groups that chose it in the same step."""

    stop: Stop = "exact"
    """The finishing rule. "exact": when no open hypothesis can still enter the n best; "fairseq": when `beam` have ended;
    "hf": when `beam` have ended and the best open one, at its present length, is not better than the worst of them."""

    def __post_init__(self) -> None:
        self._check_counts()
        self._check_choices()

    def _check_counts(self) -> None:
        check_at_least(
            0, eos=self.eos, min_len=self.min_len, max_len=self.max_len, no_repeat_ngram=self.no_repeat_ngram
        )
        check_at_least(1, beam=self.beam, n_best=self.n_best, diverse_groups=self.diverse_groups)
        for name in ("min_len_ratio", "max_len_ratio"):
            value = getattr(self, name)
            if not (isfinite(value) and value >= 0):
                raise SettingError(f"{name} is {value!r}", hint="use a number, 0 or more")
        for name in ("length_penalty", "unk_penalty", "diversity"):
            if not isfinite(getattr(self, name)):
                raise SettingError(f"{name} is {getattr(self, name)!r}", hint="use a finite number")
        if not (isfinite(self.temperature) and self.temperature > 0):
            raise SettingError(f"temperature is {self.temperature!r}", hint="use a number above 0; for greedy, beam=1")

    def _check_choices(self) -> None:
        check_choice(get_args(Stop), stop=self.stop)
        if self.n_best > self.beam:
            raise SettingError(
                f"n_best is {self.n_best}, more than beam {self.beam}", hint="a search returns at most beam"
            )
        if self.beam % self.diverse_groups:
            raise SettingError(
                f"beam {self.beam} does not fall into {self.diverse_groups} equal groups",
                hint="use a multiple of diverse_groups",
            )
        if self.pad == self.eos:
            raise SettingError(f"pad and eos are both {self.eos}", hint="pad=None if the model has no padding token")

    @property
    def start_token(self) -> int:
        """The token every continuation starts from."""
        return self.eos if self.start is None else self.start

    def longest(self, source_length: int) -> int:
        """Largest number of tokens for a source of this length."""
        return int(self.max_len_ratio * source_length + self.max_len)

    def shortest(self, source_length: int) -> int:
        """Smallest number of tokens before the end token for a source of this length, never more than the largest."""
        return min(int(self.min_len_ratio * source_length + self.min_len), self.longest(source_length))
