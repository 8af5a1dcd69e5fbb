"""The layers of a Transformer: positions, attention and feed-forward, for whole sequences and for incremental decoding.

Positions enter as added sinusoids, or as rotations of queries and keys. Both are computed from the given positions, in
float32, so there is no table and no maximum length. Cost in a decoder step of 160 rows (6 layers, width 256): below 1
%.

There is one code path for attention: the caller says what each query may attend to (a mask, or "causal"), and a
`LayerMemory`, if given, adds the keys and values of earlier steps. The product itself is torch's
`scaled_dot_product_attention`.

The norm of a layer comes before or after:

    pre    x + f(norm(x))
    post   norm(x + f(x))

Shapes: B sentences, Q queries, T tokens, S keys, H heads, C width of one head, D = H * C.
"""

from dataclasses import dataclass
from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.models.incremental import LayerMemory
from sonde.models.settings import TransformerSettings

BASE = 10000.0


def positions_of(is_token: Tensor) -> Tensor:
    """Return the position of every token. Padding, left or right, is not counted."""
    return (is_token.long().cumsum(1) - 1).clamp_min(0)


def _angles(positions: Tensor, num_angles: int) -> Tensor:
    steps = torch.arange(num_angles, device=positions.device, dtype=torch.float32)
    return positions.unsqueeze(-1).float() * torch.pow(BASE, -steps / num_angles)


def sinusoids(positions: Tensor, dim: int) -> Tensor:
    """Return the sinusoidal embedding [B, T, dim]: first the sines, then the cosines, as in fairseq and Marian."""
    angles = _angles(positions, dim // 2)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def rotary_angles(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [B, 1, T, head_dim / 2] that `rotate` uses for every head."""
    angles = _angles(positions, head_dim // 2).unsqueeze(1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair (i, i + C/2) of a head's dimensions by its angle, so that inner products depend on distance only."""
    cos, sin = rotation
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """Reshape [B, Q, D] to [B, H, Q, C], as a view."""
    return x.view(*x.shape[:2], num_heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """Reshape [B, H, Q, C] to [B, Q, D]."""
    return x.transpose(1, 2).flatten(2)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 0 where `visible`, -inf elsewhere. Made once for all layers; from booleans torch would remake it in each (9 % of a step)."""
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, -torch.inf)


@final
class SelfAttention(nn.Module):
    """Self-attention, with queries, keys and values from one matrix product."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.num_heads = settings.num_heads
        self.qkv = nn.Linear(settings.model_dim, 3 * settings.model_dim)
        self.out = nn.Linear(settings.model_dim, settings.model_dim)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None,
        rotation: tuple[Tensor, Tensor] | None,
        memory: LayerMemory | None = None,
        num_slots: int = 0,
    ) -> Tensor:
        """Attend from `x` [B, Q, D].

        `mask` [B, 1, Q, S] is added to the attention scores; None means causal. With `memory`, the first `num_slots`
        keys are those of earlier steps.
        """
        queries, keys, values = (split_heads(part, self.num_heads) for part in self.qkv(x).chunk(3, dim=-1))
        if rotation is not None:
            queries, keys = rotate(queries, rotation), rotate(keys, rotation)
        if memory is not None:
            keys, values = memory.append(keys, values, num_slots)
        attended = F.scaled_dot_product_attention(queries, keys, values, attn_mask=mask, is_causal=mask is None)
        output: Tensor = self.out(join_heads(attended))
        return output


@final
class CrossAttention(nn.Module):
    """Attention from target tokens to the encoded source, whose keys and values can be computed once and reused."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.num_heads = settings.num_heads
        self.q = nn.Linear(settings.model_dim, settings.model_dim)
        self.kv = nn.Linear(settings.model_dim, 2 * settings.model_dim)
        self.out = nn.Linear(settings.model_dim, settings.model_dim)

    def project(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, H, S, C] of the encoded source [B, S, D]."""
        keys, values = self.kv(encoded).chunk(2, dim=-1)
        return split_heads(keys, self.num_heads), split_heads(values, self.num_heads)

    def forward(self, x: Tensor, source: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Attend from `x` [B, Q, D] to projected keys and values; `mask` [B, 1, 1, S] is added to the scores."""
        attended = F.scaled_dot_product_attention(split_heads(self.q(x), self.num_heads), *source, attn_mask=mask)
        output: Tensor = self.out(join_heads(attended))
        return output

    def weights(self, x: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """Return the attention weights over the source, [B, Q, S], averaged over heads; used for alignments."""
        queries = split_heads(self.q(x), self.num_heads)
        products = queries @ keys.transpose(-1, -2) / keys.shape[-1] ** 0.5
        return torch.softmax(products + mask, dim=-1).mean(1)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What the queries of one call may attend to; the same for all layers."""

    mask: Tensor | None = None
    """[B, 1, Q, slots]: 0 where a query may attend to a token of its own sequence, else -inf; None means causal."""

    rotation: tuple[Tensor, Tensor] | None = None
    """Cosines and sines of rotary positions."""

    source_mask: Tensor | None = None
    """[B, 1, 1, S]: 0 at source tokens, else -inf."""

    num_slots: int = 0
    """Slots of the layer memories that were in use before this call."""


@final
class FeedForward(nn.Module):
    """Two linear layers with a ReLU between them."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.inner = nn.Linear(settings.model_dim, settings.ffn_dim)
        self.outer = nn.Linear(settings.ffn_dim, settings.model_dim)

    def forward(self, x: Tensor) -> Tensor:
        """Transform every token separately."""
        output: Tensor = self.outer(F.relu_(self.inner(x)))
        return output


@final
class Block(nn.Module):
    """One layer of the encoder or decoder."""

    def __init__(self, settings: TransformerSettings, *, has_source: bool) -> None:
        super().__init__()
        self.is_pre_norm = settings.norm == "pre"
        self.attention = SelfAttention(settings)
        self.attention_norm = nn.LayerNorm(settings.model_dim)
        self.cross = CrossAttention(settings) if has_source else None
        self.cross_norm = nn.LayerNorm(settings.model_dim) if has_source else None
        self.feed_forward = FeedForward(settings)
        self.feed_forward_norm = nn.LayerNorm(settings.model_dim)
        self.dropout = nn.Dropout(settings.dropout)

    def forward(
        self,
        x: Tensor,
        view: View,
        encoded: Tensor | None = None,
        memory: LayerMemory | None = None,
        *,
        with_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the layer on `x` [B, Q, D]; also return cross-attention weights [B, Q, S] if requested.

        The source is `encoded` [B, S, D] or, already projected, in `memory.cross`.
        """
        attended = self.attention(
            self._before(self.attention_norm, x), view.mask, view.rotation, memory, view.num_slots
        )
        x = self._after(self.attention_norm, x, attended)
        weights = None
        if self.cross is not None and self.cross_norm is not None:
            assert view.source_mask is not None
            source = memory.cross if memory is not None else None
            if source is None:
                assert encoded is not None
                source = self.cross.project(encoded)
            asking = self._before(self.cross_norm, x)
            if with_weights:
                weights = self.cross.weights(asking, source[0], view.source_mask)
            x = self._after(self.cross_norm, x, self.cross(asking, source, view.source_mask))
        transformed = self.feed_forward(self._before(self.feed_forward_norm, x))
        return self._after(self.feed_forward_norm, x, transformed), weights

    def project_source(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values [B, H, S, C] of the encoded source, to be reused in all steps."""
        assert self.cross is not None
        keys, values = self.cross.project(encoded)
        return keys.contiguous(), values.contiguous()

    def _before(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        normed: Tensor = norm(x) if self.is_pre_norm else x
        return normed

    def _after(self, norm: nn.LayerNorm, x: Tensor, added: Tensor) -> Tensor:
        x = x + (self.dropout(added) if self.training else added)
        return x if self.is_pre_norm else norm(x)
