"""Self-attention and cross-attention, for a whole sequence or for the next tokens of many hypotheses.

There is one code path: whoever calls says what each query may look at (a mask, or "causal"), and a `LayerMemory`, if given, adds
the keys and values of earlier steps. The product itself is torch's `scaled_dot_product_attention`.

Shapes: B sentences, Q queries, S keys, H heads, C width of one head, D = H * C.
"""

from typing import final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.models.incremental import LayerMemory
from sonde.models.positions import rotate
from sonde.models.settings import TransformerSettings


def split_heads(x: Tensor, num_heads: int) -> Tensor:
    """[B, Q, D] -> [B, H, Q, C], a view."""
    return x.view(*x.shape[:2], num_heads, -1).transpose(1, 2)


def join_heads(x: Tensor) -> Tensor:
    """[B, H, Q, C] -> [B, Q, D]."""
    return x.transpose(1, 2).flatten(2)


def additive(visible: Tensor, dtype: torch.dtype) -> Tensor:
    """0 where `visible`, -inf elsewhere. Made once for all layers: given booleans, torch would make it anew in each (9 % of a step)."""
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, -torch.inf)


@final
class SelfAttention(nn.Module):
    """Every token looks at tokens of its own sequence; queries, keys and values come from one matrix product."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.num_heads = settings.num_heads
        self.dropout = settings.attention_dropout
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

        `mask` [B, 1, Q, S] is added to the products; None means causal. With `memory`, the first `num_slots` keys are those of
        earlier steps.
        """
        queries, keys, values = (split_heads(part, self.num_heads) for part in self.qkv(x).chunk(3, dim=-1))
        if rotation is not None:
            queries, keys = rotate(queries, rotation), rotate(keys, rotation)
        if memory is not None:
            keys, values = memory.append(keys, values, num_slots)
        attended = F.scaled_dot_product_attention(
            queries,
            keys,
            values,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None,
        )
        output: Tensor = self.out(join_heads(attended))
        return output


@final
class CrossAttention(nn.Module):
    """Every target token looks at the encoded source; keys and values can be computed once and kept."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.num_heads = settings.num_heads
        self.dropout = settings.attention_dropout
        self.q = nn.Linear(settings.model_dim, settings.model_dim)
        self.kv = nn.Linear(settings.model_dim, 2 * settings.model_dim)
        self.out = nn.Linear(settings.model_dim, settings.model_dim)

    def project(self, encoded: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [B, H, S, C] of the encoded source [B, S, D]."""
        keys, values = self.kv(encoded).chunk(2, dim=-1)
        return split_heads(keys, self.num_heads), split_heads(values, self.num_heads)

    def forward(self, x: Tensor, source: tuple[Tensor, Tensor], mask: Tensor) -> Tensor:
        """Attend from `x` [B, Q, D] to projected keys and values; `mask` [B, 1, 1, S] is added to the products."""
        attended = F.scaled_dot_product_attention(
            split_heads(self.q(x), self.num_heads),
            *source,
            attn_mask=mask,
            dropout_p=self.dropout if self.training else 0.0,
        )
        output: Tensor = self.out(join_heads(attended))
        return output

    def weights(self, x: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """How much each query looks at each source token, [B, Q, S], mean over heads: the alignment a search may ask for."""
        queries = split_heads(self.q(x), self.num_heads)
        products = queries @ keys.transpose(-1, -2) / keys.shape[-1] ** 0.5
        return torch.softmax(products + mask, dim=-1).mean(1)
