"""One layer: self-attention, cross-attention where there is a source, feed-forward; norm before or after.

pre    x + f(norm(x))
post   norm(x + f(x))
"""

from dataclasses import dataclass
from typing import final

import torch.nn.functional as F
from torch import Tensor, nn

from sonde.models.attention import CrossAttention, SelfAttention
from sonde.models.incremental import LayerMemory
from sonde.models.settings import TransformerSettings


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What the queries of one call may look at; the same for all layers."""

    mask: Tensor | None = None
    """[B, 1, Q, slots], 0 where a query may look at a token of its own sequence, else -inf; None means causal."""

    rotation: tuple[Tensor, Tensor] | None = None
    """Cosines and sines of rotary positions."""

    source_mask: Tensor | None = None
    """[B, 1, 1, S], 0 at source tokens, else -inf."""

    num_slots: int = 0
    """Slots of the layer memories that were in use before this call."""


@final
class FeedForward(nn.Module):
    """Two matrix products with a non-linearity between."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.inner = nn.Linear(settings.model_dim, settings.ffn_dim)
        self.outer = nn.Linear(settings.ffn_dim, settings.model_dim)
        self.activation = F.relu_ if settings.activation == "relu" else F.gelu

    def forward(self, x: Tensor) -> Tensor:
        """Transform every token by itself."""
        output: Tensor = self.outer(self.activation(self.inner(x)))
        return output


@final
class Block(nn.Module):
    """One layer of encoder or decoder."""

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
        """Run the layer on `x` [B, Q, D]; also return cross-attention weights [B, Q, S] if asked for.

        The source is `encoded` [B, S, D], or, already projected, in `memory.cross`.
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
        """Keys and values [B, H, S, C] of the encoded source, to be kept for all steps."""
        assert self.cross is not None
        keys, values = self.cross.project(encoded)
        return keys.contiguous(), values.contiguous()

    def _before(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        normed: Tensor = norm(x) if self.is_pre_norm else x
        return normed

    def _after(self, norm: nn.LayerNorm, x: Tensor, added: Tensor) -> Tensor:
        x = x + (self.dropout(added) if self.training else added)
        return x if self.is_pre_norm else norm(x)
