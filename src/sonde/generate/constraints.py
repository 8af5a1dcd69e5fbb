"""Constraints on the next token: bans, penalties, lengths, prefixes, forced tokens, repeated
n-grams.

They are applied to log-probabilities, in place and in this order. A later rule overrides an earlier
one:

    unknown word                costs `unk_penalty`
    padding and banned tokens   never generated
    shortest length             no end token before it
    n-grams                     no repetition
    forced tokens, then prefix  no other token; scored by the model (forced tokens under "hf": 0)
    longest length              only the end token (not under "hf", where the search truncates)

Whatever is the same for all hypotheses of a sentence is decided on the host from plain integers, so
nothing waits for a device.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from sonde.errors import SettingError
from sonde.generate.settings import SearchSettings


def forbid_repeated_ngrams(log_probs: Tensor, tokens: Tensor, size: int, eos: int) -> None:
    """Set tokens to -inf in `log_probs` [B, K, V] that would repeat an n-gram of `tokens` [B, K,
    T].
    """
    if tokens.shape[2] < size:
        return
    ngrams = tokens.unfold(2, size, 1)
    context = tokens[:, :, tokens.shape[2] - size + 1 :]
    repeats = (ngrams[..., :-1] == context.unsqueeze(2)).all(-1) & (ngrams[..., -1] != eos)
    sentence, hypothesis, position = repeats.nonzero(as_tuple=True)
    log_probs[sentence, hypothesis, ngrams[sentence, hypothesis, position, -1]] = -torch.inf


class Constraints:
    """The constraints of one search: the settings, and what is specific to each sentence."""

    def __init__(
        self,
        settings: SearchSettings,
        num_sentences: int,
        source_lengths: Sequence[int] | None = None,
        prefix_tokens: Sequence[Sequence[int]] | None = None,
    ) -> None:
        for name, given in (("source_lengths", source_lengths), ("prefix_tokens", prefix_tokens)):
            if given is not None and len(given) != num_sentences:
                raise SettingError(f"{name} has {len(given)} entries for {num_sentences} sentences")
        if source_lengths is None and (settings.min_len_ratio or settings.max_len_ratio):
            raise SettingError(
                "source_lengths is None", hint="lengths relative to the source need it"
            )
        lengths = [0] * num_sentences if source_lengths is None else source_lengths
        self._settings = settings
        self._prefixes = prefix_tokens
        self._forced = dict(settings.forced)
        self._never = list(settings.banned)
        if settings.stop != "hf" and settings.pad is not None:
            self._never.append(settings.pad)
        self.min_lens = [settings.shortest(length) for length in lengths]
        self.max_lens = [settings.longest(length) for length in lengths]

    def apply(self, log_probs: Tensor, tokens: Tensor, step: int, sentences: list[int]) -> None:
        """Constrain `log_probs` [B, K, V] of the open `sentences`, whose hypotheses so far are
        `tokens` [B, K, T].
        """
        settings = self._settings
        if settings.unk is not None and settings.unk_penalty:
            log_probs[..., settings.unk] -= settings.unk_penalty
        required = self._required(step, sentences)
        rows = list(required)
        allowed = list(required.values())
        kept = log_probs[rows, :, allowed]
        if settings.stop == "hf" and step in self._forced:
            kept[[not self._has_prefix(step, sentences[row]) for row in rows]] = 0.0
        if self._never:
            log_probs[..., self._never] = -torch.inf
        too_short = [
            row for row, sentence in enumerate(sentences) if step < self.min_lens[sentence]
        ]
        if too_short:
            log_probs[too_short, :, settings.eos] = -torch.inf
        if settings.no_repeat_ngram:
            forbid_repeated_ngrams(log_probs, tokens, settings.no_repeat_ngram, settings.eos)
        if required:
            log_probs[rows] = -torch.inf
            log_probs[rows, :, allowed] = kept

    def _has_prefix(self, step: int, sentence: int) -> bool:
        return self._prefixes is not None and step < len(self._prefixes[sentence])

    def _required(self, step: int, sentences: list[int]) -> dict[int, int]:
        """Return the only allowed next token for each row that has no choice."""
        required = {}
        for row, sentence in enumerate(sentences):
            if step >= self.max_lens[sentence] and self._settings.stop != "hf":
                required[row] = self._settings.eos
            elif self._prefixes is not None and self._has_prefix(step, sentence):
                required[row] = self._prefixes[sentence][step]
            elif step in self._forced:
                required[row] = self._forced[step]
        return required
