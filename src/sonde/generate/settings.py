"""Search settings: what to search for and when to stop. They are checked when created."""

from dataclasses import dataclass
from typing import Literal

from sonde.errors import SettingError
from sonde.fields import Amount, Count, Finite, Positive, PositiveNumber, check_fields


@dataclass(frozen=True, kw_only=True, slots=True)
class SearchSettings:
    """How hypotheses are searched for, scored and finished. Token ids default to fairseq's."""

    eos: Count = 2
    """Id of the end token."""

    pad: int | None = 1
    """Id of the padding token, which is never generated (except under `stop="hf"`, where only
    `banned` forbids it).
    """

    unk: int | None = 3
    """Id of the unknown word, for `unk_penalty`."""

    start: int | None = None
    """First decoder input, not part of the result; None means `eos`, as in fairseq."""

    beam: Positive = 5
    """Beam size (for sampling: number of samples per sentence). 1 is greedy search under every
    `stop`.
    """

    n_best: Positive = 1
    """Number of hypotheses returned per sentence, at most `beam`; fewer are returned if fewer
    exist.
    """

    min_len: Count = 0
    """Minimum number of tokens before the end token: `int(min_len_ratio * source_length +
    min_len)`.
    """

    min_len_ratio: Amount = 0.0
    """Growth of the minimum length per source token."""

    max_len: Count = 200
    """Maximum number of tokens before the end token: `int(max_len_ratio * source_length +
    max_len)`.

    After that only the end token is allowed. Under `stop="hf"` the end token counts, and hypotheses
    that have not ended are returned without one (`max_new_tokens`).
    """

    max_len_ratio: Amount = 0.0
    """Growth of the maximum length per source token."""

    length_penalty: Finite = 1.0
    """Scores are log-probability / length ** length_penalty, end token included; 0 turns the
    normalisation off.
    """

    unk_penalty: Finite = 0.0
    """Penalty subtracted from the log-probability of every unknown word."""

    temperature: PositiveNumber = 1.0
    """Divisor of the logits, above 0; for greedy search use `beam=1`."""

    no_repeat_ngram: Count = 0
    """Size of n-grams that must not occur twice in start, prompt and result; 0 allows all. Ending
    is always allowed.
    """

    banned: tuple[int, ...] = ()
    """Tokens that are never generated."""

    forced: tuple[tuple[int, int], ...] = ()
    """Pairs (step, token), steps starting at 0, that force a token. Under `stop="hf"` it scores 0,
    as in Hugging Face.
    """

    diverse_groups: Positive = 1
    """Number of groups for diverse beam search with Hamming diversity (Vijayakumar et al. 2018).
    Each group searches and finishes on its own. fairseq's `--diverse-beam-groups` is a different
    method unless its `diversity_discount` is 0: there the penalty for following an earlier group
    grows with every step.
    """

    diversity: Finite = 0.5
    """Penalty on a token's log-probability for every hypothesis of earlier groups that chose it in
    the same step.
    """

    stop: Literal["exact", "fairseq", "hf"] = "exact"
    """When a sentence is finished. "exact": no open hypothesis can still enter the n best.
    "fairseq": `beam` have ended. "hf": `beam` have ended and the best open one, at its current
    length, is not better than the worst of them.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        if self.n_best > self.beam:
            raise SettingError(
                f"n_best is {self.n_best}, more than beam {self.beam}",
                hint="a search returns at most beam",
            )
        if self.beam % self.diverse_groups:
            raise SettingError(
                f"beam {self.beam} does not fall into {self.diverse_groups} equal groups",
                hint="use a multiple of diverse_groups",
            )
        if self.pad == self.eos:
            raise SettingError(
                f"pad and eos are both {self.eos}",
                hint="pad=None if the model has no padding token",
            )

    @property
    def start_token(self) -> int:
        """The first decoder input."""
        return self.eos if self.start is None else self.start

    def longest(self, source_length: int) -> int:
        """Return the maximum number of tokens for a source of this length."""
        return int(self.max_len_ratio * source_length + self.max_len)

    def shortest(self, source_length: int) -> int:
        """Return the minimum number of tokens before the end token for a source of this length, at
        most the maximum.
        """
        return min(
            int(self.min_len_ratio * source_length + self.min_len), self.longest(source_length)
        )
