"""Drawing continuations at random, from a generator of its own: the global random state is neither read nor moved.

Every sentence has its own generator, seeded from `seed` and its number, so what is drawn for a sentence depends on neither the
batch around it nor the order of sentences.

Shapes: B sentences still open, K samples of each, T tokens so far, V vocabulary.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite
from typing import final

import torch
from torch import Tensor

from sonde.errors import SettingError
from sonde.generate.beam import refilled, starting_tokens
from sonde.generate.candidates import log_probabilities
from sonde.generate.constraints import Constraints
from sonde.generate.frontier import Frontier, NextLogits
from sonde.generate.hypotheses import Hypothesis
from sonde.generate.settings import SearchSettings

# Seeds of neighbouring sentences lie this far apart, so that (seed, sentence) pairs do not meet.
SEED_STRIDE = 0x9E3779B97F4A7C15
SEED_RANGE = 2**63


def sample(
    next_logits: NextLogits,
    num_sentences: int,
    settings: SearchSettings | None = None,
    sampling: "Sampling | None" = None,
    *,
    source_lengths: Sequence[int] | None = None,
    prompts: Sequence[Sequence[int]] | None = None,
    device: torch.device | str = "cpu",
) -> list[list[Hypothesis]]:
    """Draw `settings.beam` continuations of each sentence; the `n_best` best scored come back, best first.

    `settings.temperature` shapes the distribution, `sampling` cuts its tail; scores are log-probabilities before the cut.
    """
    settings = settings or SearchSettings()
    constraints = Constraints(settings, num_sentences, source_lengths)
    tokens = starting_tokens(num_sentences, settings, prompts).to(device)
    with torch.no_grad():
        return _Sampler(settings, sampling or Sampling(), constraints, tokens).run(next_logits)


def draw(log_probs: Tensor, uniform: Tensor, sampling: "Sampling") -> Tensor:
    """One token of each row of `log_probs` [..., V], by where `uniform` [...] falls in the sorted distribution."""
    num_kept = min(sampling.top_k or log_probs.shape[-1], log_probs.shape[-1])
    best = log_probs.topk(num_kept, dim=-1)
    mass = best.values.double().exp().cumsum(-1)
    if sampling.top_p < 1.0 or sampling.min_p > 0.0:
        probabilities = best.values.double().exp()
        # The smallest set that holds top_p of all: a token stays if those before it hold less.
        stays = mass - probabilities < sampling.top_p * mass[..., -1:]
        stays &= probabilities >= sampling.min_p * probabilities[..., :1]
        total = mass.gather(-1, stays.sum(-1, keepdim=True).clamp_min(1) - 1)
    else:
        total = mass[..., -1:]
    place = torch.searchsorted(mass, uniform.double().unsqueeze(-1) * total, right=True).clamp_max(num_kept - 1)
    return best.indices.gather(-1, place).squeeze(-1)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Which part of the distribution is drawn from, and the seed."""

    seed: int = 0
    """Two draws with one seed are equal."""

    top_k: int = 0
    """Draw from this many most likely tokens only; 0 for all."""

    top_p: float = 1.0
    """Draw from the smallest set of most likely tokens that holds this share of what `top_k` left."""

    numbers: tuple[int, ...] | None = None
    """The numbers of the sentences in a larger whole, by which they are seeded; None counts those at hand."""

    min_p: float = 0.0
    """Draw only from tokens at least this many times as likely as the most likely one."""

    def __post_init__(self) -> None:
        if not (isfinite(self.min_p) and 0 <= self.min_p <= 1):
            raise SettingError(f"min_p is {self.min_p!r}", hint="use a share from 0 to 1")
        if type(self.top_k) is not int or self.top_k < 0:
            raise SettingError(f"top_k is {self.top_k!r}", hint="use a whole number, 0 for no limit")
        if not (isfinite(self.top_p) and 0 < self.top_p <= 1):
            raise SettingError(f"top_p is {self.top_p!r}", hint="use a share above 0, up to 1")


@final
class _Sampler:
    """The samples under way."""

    def __init__(self, settings: SearchSettings, sampling: Sampling, constraints: Constraints, tokens: Tensor) -> None:
        self.settings = settings
        self.sampling = sampling
        self.constraints = constraints
        self.prompt_len = tokens.shape[2]
        self.tokens = tokens
        self.token_scores = torch.zeros(*tokens.shape[:2], 0, device=tokens.device)
        self.is_open = torch.ones(tokens.shape[:2], dtype=torch.bool, device=tokens.device)
        self.rows = list(range(len(tokens)))
        self.results: list[list[Hypothesis]] = [[] for _ in self.rows]
        numbers = self.rows if sampling.numbers is None else sampling.numbers
        self.generators = [
            torch.Generator().manual_seed((sampling.seed + number * SEED_STRIDE) % SEED_RANGE) for number in numbers
        ]

    def run(self, next_logits: NextLogits) -> list[list[Hypothesis]]:
        kept = parents = None
        step = 0
        while self.rows and (step or self._can_start()):
            sentences = torch.tensor(self.rows, device=self.tokens.device)
            answer = next_logits(
                Frontier(tokens=self.tokens, sentences=sentences, step=step, kept=kept, parents=parents)
            )
            logits = answer[0] if isinstance(answer, tuple) else answer
            parents = self._take_step(logits, step)
            step += 1
            kept = self._close(step)
            parents = parents if kept is None else parents[kept]
        return [sorted(found, key=lambda one: -one.score)[: self.settings.n_best] for found in self.results]

    def _can_start(self) -> bool:
        """Under "hf" a largest length of 0 allows no token at all."""
        if self.settings.stop == "hf" and min(self.constraints.max_lens) == 0:
            raise SettingError("max_len is 0", hint="under stop='hf' a sample has at least one token")
        return True

    def _take_step(self, logits: Tensor, step: int) -> Tensor:
        log_probs = log_probabilities(logits, self.settings.temperature)
        self.constraints.apply(log_probs, self.tokens, step, self.rows)
        num_samples = self.settings.beam
        parents = torch.arange(num_samples, device=logits.device).expand(len(self.rows), -1)
        if step == 0:
            parents = torch.zeros_like(parents)
            log_probs, self.tokens, self.token_scores, self.is_open = (
                x.expand(-1, num_samples, *x.shape[2:])
                for x in (log_probs, self.tokens, self.token_scores, self.is_open)
            )
        uniform = torch.stack([torch.rand(num_samples, generator=self.generators[row]) for row in self.rows])
        drawn = draw(log_probs, uniform.to(logits.device), self.sampling)
        scores = log_probs.gather(-1, drawn.unsqueeze(-1))
        self.tokens = torch.cat((self.tokens, drawn.unsqueeze(-1)), dim=2)
        self.token_scores = torch.cat((self.token_scores, scores), dim=2)
        return parents

    def _close(self, length: int) -> Tensor | None:
        """Collect samples that ended, drop those that cannot go on, let finished sentences leave."""
        is_end = self.tokens[:, :, -1] == self.settings.eos
        limits = [self.constraints.max_lens[sentence] for sentence in self.rows]
        at_limit = torch.tensor(limits, device=is_end.device).unsqueeze(1) <= length
        if self.settings.stop == "hf":
            is_end = is_end | at_limit
        is_dead = self.token_scores[:, :, -1] == -torch.inf
        for row, column in (is_end & self.is_open & ~is_dead).nonzero().tolist():
            self.results[self.rows[row]].append(self._hypothesis(row, column, length))
        self.is_open = self.is_open & ~is_end & ~is_dead
        has_open = self.is_open.any(1).tolist()
        if all(has_open):
            return None
        kept = torch.tensor(refilled(has_open), device=is_end.device, dtype=torch.long)
        self.rows = [self.rows[row] for row in kept.tolist()]
        self.tokens, self.token_scores, self.is_open = (x[kept] for x in (self.tokens, self.token_scores, self.is_open))
        return kept

    def _hypothesis(self, row: int, column: int, length: int) -> Hypothesis:
        tokens = self.tokens[row, column, self.prompt_len :].tolist()
        token_scores = self.token_scores[row, column].tolist()
        return Hypothesis(
            tokens=tokens,
            score=sum(token_scores) / float(length**self.settings.length_penalty),
            token_scores=token_scores,
            ended=tokens[-1] == self.settings.eos,
        )
