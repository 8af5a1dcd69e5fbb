"""Random sampling of the next token with its own generators: the global random state is neither
read nor changed.

Every sentence has its own generator, seeded from `seed` and its number, so its samples depend on
neither the rest of the batch nor the order of sentences.
"""

from dataclasses import dataclass
from typing import Annotated

import torch
from msgspec import Meta
from torch import Tensor

from sonde.fields import Count, check_fields

# Distance between the seeds of neighbouring sentences, so that (seed, sentence) pairs do not
# collide.
SEED_STRIDE = 0x9E3779B97F4A7C15
SEED_RANGE = 2**63


@dataclass(frozen=True, kw_only=True, slots=True)
class Sampling:
    """Which part of the distribution to sample from, and the seed."""

    seed: int = 0
    """Random seed; equal seeds give equal samples."""

    top_k: Count = 0
    """Sample only from the k most likely tokens; 0 uses all of them."""

    top_p: Annotated[float, Meta(gt=0, le=1)] = 1.0
    """Sample from the smallest set of most likely tokens that holds this share of what `top_k`
    left.
    """

    numbers: tuple[int, ...] | None = None
    """The position of each sentence in a larger input, which seeds its random numbers; None counts
    from 0.
    """

    min_p: Annotated[float, Meta(ge=0, le=1)] = 0.0
    """Sample only from tokens whose probability is at least this fraction of the most likely
    token's.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    def generators(self, num_sentences: int) -> list[torch.Generator]:
        """Return a generator for each sentence."""
        numbers = range(num_sentences) if self.numbers is None else self.numbers
        return [
            torch.Generator().manual_seed((self.seed + number * SEED_STRIDE) % SEED_RANGE)
            for number in numbers
        ]


def draw(log_probs: Tensor, uniform: Tensor, sampling: Sampling) -> Tensor:
    """Draw one token per row of `log_probs` [..., V], by the position of `uniform` [...] in the
    sorted distribution.
    """
    num_kept = min(sampling.top_k or log_probs.shape[-1], log_probs.shape[-1])
    best = log_probs.topk(num_kept, dim=-1)
    probabilities = best.values.double().exp()
    mass = probabilities.cumsum(-1)
    # The smallest set that holds top_p of all: a token stays if those before it hold less.
    stays = mass - probabilities < sampling.top_p * mass[..., -1:]
    stays &= probabilities >= sampling.min_p * probabilities[..., :1]
    total = mass.gather(-1, stays.sum(-1, keepdim=True).clamp_min(1) - 1)
    place = torch.searchsorted(mass, uniform.double().unsqueeze(-1) * total, right=True).clamp_max(
        num_kept - 1
    )
    return best.indices.gather(-1, place).squeeze(-1)
