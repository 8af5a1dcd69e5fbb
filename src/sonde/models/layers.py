"""The layers of a Transformer: positions, attention and feed-forward, for whole sequences and for
incremental decoding.

Positions enter as added sinusoids, or as rotations of queries and keys. Both are computed from the
given positions, in float32, so there is no table and no maximum length. Cost in a decoder step of
160 rows (6 layers, width 256): below 1 %.

There is one code path for attention: the caller says what each query may attend to (a mask, or
"causal"), and a `DecoderState`, if given, adds the keys and values of earlier steps. The product
itself is torch's `scaled_dot_product_attention`.

Between steps, the state of a decoder is an explicit value that the search reorders. The hypotheses
(beams) of a sentence share one row of memory. Every token fed to the decoder takes a *slot*, and a
boolean table says which hypothesis sees which slot:

    memory    [L, 2, B, H, slots, C]   keys and values of every layer, never copied when beams
                                       change places
    visible   [B, K, slots]            hypothesis k of sentence b may look at the slot

`reorder(parents)` therefore permutes a few thousand booleans instead of every key and value. A
prompt takes its slots once, however many hypotheses continue it. Slots that no hypothesis sees any
more are dropped in place when they outnumber the others: after 50 steps of beam 5
(benchmarks/generate.py), 135 slots are in use where copying beams would hold 250. The memory is
preallocated and doubles when full. Cross-attention keys and values are computed once and stored per
sentence, not per hypothesis.

The norm of a layer comes before or after:

    pre    x + f(norm(x))
    post   norm(x + f(x))

Shapes: B sentences, K hypotheses of each, Q queries, T tokens, S keys, L layers, H heads, C width
of one head, D = H * C.
"""

from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.models.settings import TransformerSettings

BASE = 10000.0
# Looking for dead slots reads `visible` and, on an accelerator, waits for it: once in this many
# steps is enough.
STEPS_BETWEEN_SWEEPS = 4


def positions_of(is_token: Tensor) -> Tensor:
    """Return the position of every token. Padding, left or right, is not counted."""
    return (is_token.long().cumsum(1) - 1).clamp_min(0)


def _angles(positions: Tensor, num_angles: int) -> Tensor:
    steps = torch.arange(num_angles, device=positions.device, dtype=torch.float32)
    return positions.unsqueeze(-1).float() * torch.pow(BASE, -steps / num_angles)


def sinusoids(positions: Tensor, dim: int) -> Tensor:
    """Return the sinusoidal embedding [B, T, dim]: first the sines, then the cosines, as in fairseq
    and Marian.
    """
    angles = _angles(positions, dim // 2)
    return torch.cat((angles.sin(), angles.cos()), dim=-1)


def rotary_angles(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [B, 1, T, head_dim / 2] that `rotate` uses for every head."""
    angles = _angles(positions, head_dim // 2).unsqueeze(1)
    return angles.cos(), angles.sin()


def rotate(x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate each pair (i, i + C/2) of a head's dimensions by its angle, so that inner products
    depend on distance only.
    """
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
    """Return 0 where `visible`, -inf elsewhere. Made once for all layers; from booleans torch would
    remake it in each (9 % of a step).
    """
    return torch.zeros_like(visible, dtype=dtype).masked_fill_(~visible, -torch.inf)


@dataclass(slots=True)
class DecoderState:
    """Everything a decoder needs to continue. `Transformer.decode` extends it, and the search
    reorders it.
    """

    memory: Tensor
    """[L, 2, B, H, capacity, C]: keys and values of the tokens fed so far. Only the slots in use
    have a meaning.
    """

    cross: Tensor
    """[L, 2, B, H, S, C]: keys and values of the encoded source; S is 0 without an encoder."""

    source_visible: Tensor
    """[B, 1, 1, S]: which source tokens may be attended to."""

    visible: Tensor
    """[B, K, slots]: which hypothesis sees which slot."""

    lengths: Tensor
    """[B, K]: tokens fed so far without padding, which is the position of the next one."""

    _steps_since_sweep: int = field(default=0, repr=False)

    @property
    def num_slots(self) -> int:
        """Number of slots in use, the same in every layer."""
        return self.visible.shape[2]

    def extend(self, is_token: Tensor) -> tuple[Tensor, Tensor]:
        """Make room for new tokens; `is_token` [B, K, Q] is False for padding.

        Returns their positions [B, K * Q] and what each may attend to, [B, 1, K * Q, slots],
        including itself.
        """
        num_sentences, num_hypotheses, num_new = is_token.shape
        num_queries = num_hypotheses * num_new
        itself = torch.eye(num_queries, dtype=torch.bool, device=is_token.device)
        own = itself
        if num_new > 1:
            order = torch.arange(num_queries, device=is_token.device)
            own = (order[:, None] >= order) & (order[:, None] // num_new == order // num_new)
        is_token_flat = is_token.reshape(num_sentences, 1, num_queries)
        before = self.visible.repeat_interleave(num_new, dim=1)
        # A padding token sees itself, so that every softmax has an entry; no other token sees it.
        mask = torch.cat((before, (own & is_token_flat) | itself), dim=2)
        lasting = (own & is_token_flat)[:, num_new - 1 :: num_new]
        positions = self.lengths[:, :, None] + (is_token.long().cumsum(2) - 1).clamp_min(0)
        self.visible = torch.cat((self.visible, lasting), dim=2)
        self.lengths = self.lengths + is_token.sum(2)
        return positions.reshape(num_sentences, num_queries), mask.unsqueeze(1)

    def append(self, layer: int, keys: Tensor, values: Tensor) -> Tensor:
        """Write a layer's keys and values [B, H, n, C] into the newest slots; return all of them,
        [2, B, H, slots, C].
        """
        first = self.num_slots - keys.shape[2]
        capacity = self.memory.shape[4]
        if capacity < self.num_slots:
            grown = keys.new_empty(
                *self.memory.shape[:4], max(self.num_slots, 64, 2 * capacity), keys.shape[3]
            )
            grown[..., :first, :] = self.memory[..., :first, :]
            self.memory = grown
        pair = self.memory[layer, ..., : self.num_slots, :]
        pair[0, ..., first:, :] = keys
        pair[1, ..., first:, :] = values
        return pair

    def reorder(self, beam_indices: Tensor) -> None:
        """Let hypothesis k of sentence b continue from hypothesis `beam_indices[b, k]` of the same
        sentence.

        The number of hypotheses may change: this is also how one prompt becomes K beams.
        """
        self.visible = self.visible.gather(
            1, beam_indices[:, :, None].expand(-1, -1, self.num_slots)
        )
        self.lengths = self.lengths.gather(1, beam_indices)
        self._steps_since_sweep += 1
        if self._steps_since_sweep >= STEPS_BETWEEN_SWEEPS:
            self._steps_since_sweep = 0
            self._drop_dead_slots()

    def keep(self, sentences: Tensor) -> None:
        """Keep only these sentences, in this order. Only rows that change place are copied."""
        num_sentences = len(sentences)
        destinations = torch.arange(num_sentences, device=sentences.device)
        moved = destinations != sentences
        for buffer in (self.memory[..., : self.num_slots, :], self.cross):
            buffer[:, :, destinations[moved]] = buffer[:, :, sentences[moved]]
        self.memory = self.memory[:, :, :num_sentences]
        self.cross = self.cross[:, :, :num_sentences]
        self.source_visible = self.source_visible[sentences]
        self.visible = self.visible[sentences]
        self.lengths = self.lengths[sentences]

    def _drop_dead_slots(self) -> None:
        in_use = self.visible.any(1)
        num_live = int(in_use.sum(1).max())
        if num_live * 3 > self.num_slots * 2:
            return
        live_first = in_use.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[
            :, :num_live
        ]
        index = live_first[:, None, :, None].expand(
            *self.memory.shape[:4], num_live, self.memory.shape[5]
        )
        self.memory[..., :num_live, :] = self.memory.gather(4, index)
        self.visible = self.visible.gather(
            2, live_first[:, None].expand(-1, self.visible.shape[1], -1)
        )


class SelfAttention(nn.Module):
    """Self-attention, with queries, keys and values from one matrix product."""

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.num_heads = settings.num_heads
        self.qkv = nn.Linear(settings.model_dim, 3 * settings.model_dim)
        self.out = nn.Linear(settings.model_dim, settings.model_dim)

    def forward(self, x: Tensor, view: "View", layer: int) -> Tensor:
        """Attend from `x` [B, Q, D] to the tokens that `view` shows: those of `x`, and those in its
        state's memory of `layer`.
        """
        queries, keys, values = (
            split_heads(part, self.num_heads) for part in self.qkv(x).chunk(3, dim=-1)
        )
        if view.rotation is not None:
            queries = rotate(queries, view.rotation)
            keys = rotate(keys, view.rotation)
        if view.state is not None:
            keys, values = view.state.append(layer, keys, values)
        is_causal = view.mask is None
        attended = F.scaled_dot_product_attention(
            queries, keys, values, attn_mask=view.mask, is_causal=is_causal
        )
        output: Tensor = self.out(join_heads(attended))
        return output


class CrossAttention(nn.Module):
    """Attention from target tokens to the encoded source, whose keys and values can be computed
    once and reused.
    """

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.num_heads = settings.num_heads
        self.q = nn.Linear(settings.model_dim, settings.model_dim)
        self.kv = nn.Linear(settings.model_dim, 2 * settings.model_dim)
        self.out = nn.Linear(settings.model_dim, settings.model_dim)

    def project(self, encoded: Tensor) -> list[Tensor]:
        """Return keys and values [B, H, S, C] of the encoded source [B, S, D]."""
        return [split_heads(part, self.num_heads) for part in self.kv(encoded).chunk(2, dim=-1)]

    def forward(self, x: Tensor, source: list[Tensor], mask: Tensor) -> Tensor:
        """Attend from `x` [B, Q, D] to projected keys and values; `mask` [B, 1, 1, S] is added to
        the scores.
        """
        keys, values = source
        attended = F.scaled_dot_product_attention(
            split_heads(self.q(x), self.num_heads), keys, values, attn_mask=mask
        )
        output: Tensor = self.out(join_heads(attended))
        return output

    def weights(self, x: Tensor, keys: Tensor, mask: Tensor) -> Tensor:
        """Return the attention weights over the source, [B, Q, S], averaged over heads; used for
        alignments.
        """
        queries = split_heads(self.q(x), self.num_heads)
        products = queries @ keys.transpose(-1, -2) / keys.shape[-1] ** 0.5
        return torch.softmax(products + mask, dim=-1).mean(1)


@dataclass(frozen=True, kw_only=True, slots=True)
class View:
    """What the queries of one call may attend to; the same for all layers."""

    mask: Tensor | None = None
    """[B, 1, Q, slots]: 0 where a query may attend to a token of its own sequence, else -inf; None
    means causal.
    """

    rotation: tuple[Tensor, Tensor] | None = None
    """Cosines and sines of rotary positions."""

    source_mask: Tensor | None = None
    """[B, 1, 1, S]: 0 at source tokens, else -inf."""

    state: DecoderState | None = None
    """What was fed to the decoder before, when it decodes step by step."""


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
        layer: int,
        encoded: Tensor | None = None,
        *,
        with_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the layer on `x` [B, Q, D]; also return cross-attention weights [B, Q, S] if
        requested.

        The source is `encoded` [B, S, D] or, already projected, in the state.
        """
        attended = self.attention(self._before(self.attention_norm, x), view, layer)
        x = self._after(self.attention_norm, x, attended)
        weights = None
        if self.cross is not None and self.cross_norm is not None:
            assert view.source_mask is not None
            if view.state is None:
                assert encoded is not None
                source = self.cross.project(encoded)
            else:
                source = list(view.state.cross[layer])
            asking = self._before(self.cross_norm, x)
            if with_weights:
                weights = self.cross.weights(asking, source[0], view.source_mask)
            x = self._after(self.cross_norm, x, self.cross(asking, source, view.source_mask))
        transformed = self.feed_forward(self._before(self.feed_forward_norm, x))
        return self._after(self.feed_forward_norm, x, transformed), weights

    def _before(self, norm: nn.LayerNorm, x: Tensor) -> Tensor:
        normed: Tensor = norm(x) if self.is_pre_norm else x
        return normed

    def _after(self, norm: nn.LayerNorm, x: Tensor, added: Tensor) -> Tensor:
        x = x + (self.dropout(added) if self.training else added)
        return x if self.is_pre_norm else norm(x)
