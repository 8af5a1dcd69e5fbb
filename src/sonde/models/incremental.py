"""The state of a decoder between steps: an explicit value that the search reorders.

The hypotheses (beams) of a sentence share one row of memory. Every token fed to the decoder takes a *slot*, and a
boolean table says which hypothesis sees which slot:

    keys, values   [B, H, slots, C]   one pair per layer, written once, never copied when beams change places
    visible        [B, K, slots]      hypothesis k of sentence b may look at the slot

`reorder(parents)` therefore permutes a few thousand booleans instead of every key and value. A prompt takes its slots
once, however many hypotheses continue it. Slots that no hypothesis sees any more are dropped in place when they
outnumber the others: after 50 steps of beam 5 (benchmarks/generate.py), 135 slots are in use where copying beams would
hold 250. Buffers are preallocated and double when full. Cross-attention keys and values are computed once and stored
per sentence, not per hypothesis.

Shapes: B sentences, K hypotheses of each, Q new tokens of each hypothesis, S source tokens, H heads, C width of one head.
"""

from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

# Looking for dead slots reads `visible` and, on an accelerator, waits for it: once in this many steps is enough.
STEPS_BETWEEN_SWEEPS = 4


def _identity(size: int, device: torch.device) -> Tensor:
    return torch.eye(size, dtype=torch.bool, device=device)


def _grown(buffer: Tensor | None, like: Tensor, num_slots: int, needed: int) -> Tensor:
    num_sentences, num_heads, _, head_dim = like.shape
    capacity = max(needed, 64 if buffer is None else 2 * buffer.shape[2])
    grown = like.new_empty(num_sentences, num_heads, capacity, head_dim)
    if buffer is not None:
        grown[:, :, :num_slots] = buffer[:, :, :num_slots]
    return grown


@final
@dataclass(slots=True)
class LayerMemory:
    """Keys and values of one layer: buffers [B, H, capacity, C] for self-attention, and fixed ones for cross-attention."""

    keys: Tensor | None = None
    values: Tensor | None = None
    cross: tuple[Tensor, Tensor] | None = None

    def append(self, keys: Tensor, values: Tensor, num_slots: int) -> tuple[Tensor, Tensor]:
        """Write new keys and values [B, H, n, C] after the first `num_slots`; return all of them, as views."""
        end = num_slots + keys.shape[2]
        if self.keys is None or self.values is None or self.keys.shape[2] < end:
            self.keys = _grown(self.keys, keys, num_slots, end)
            self.values = _grown(self.values, values, num_slots, end)
        self.keys[:, :, num_slots:end] = keys
        self.values[:, :, num_slots:end] = values
        return self.keys[:, :, :end], self.values[:, :, :end]

    def move_sentences(self, destinations: Tensor, sources: Tensor, num_sentences: int, num_slots: int) -> None:
        """Copy the rows `sources` over `destinations` and drop all rows from `num_sentences` on."""
        if self.keys is not None and self.values is not None:
            for buffer in (self.keys, self.values):
                buffer[destinations, :, :num_slots] = buffer[sources, :, :num_slots]
            self.keys, self.values = self.keys[:num_sentences], self.values[:num_sentences]
        if self.cross is not None:
            for buffer in self.cross:
                buffer[destinations] = buffer[sources]
            self.cross = (self.cross[0][:num_sentences], self.cross[1][:num_sentences])

    def move_slots(self, sources: Tensor) -> None:
        """Move the slots `sources` [B, n] to the front."""
        if self.keys is None or self.values is None:
            return
        for buffer in (self.keys, self.values):
            index = sources[:, None, :, None].expand(-1, buffer.shape[1], -1, buffer.shape[3])
            buffer[:, :, : sources.shape[1]] = buffer.gather(2, index)


@final
@dataclass(slots=True)
class DecoderState:
    """Everything a decoder needs to continue. `Transformer.decode` extends it, and the search reorders it."""

    layers: list[LayerMemory]
    """One memory per decoder layer."""

    visible: Tensor
    """[B, K, slots]: which hypothesis sees which slot."""

    lengths: Tensor
    """[B, K]: tokens fed so far without padding, which is the position of the next one."""

    source_visible: Tensor | None = None
    """[B, 1, 1, S]: which source tokens may be attended to; None without an encoder."""

    _steps_since_sweep: int = field(default=0, repr=False)

    @property
    def num_slots(self) -> int:
        """Number of slots in use, the same in every layer."""
        return self.visible.shape[2]

    def extend(self, is_token: Tensor) -> tuple[Tensor, Tensor]:
        """Make room for new tokens; `is_token` [B, K, Q] is False for padding.

        Returns their positions [B, K * Q] and what each may attend to, [B, 1, K * Q, slots], including itself.
        """
        num_sentences, num_hypotheses, num_new = is_token.shape
        num_queries = num_hypotheses * num_new
        itself = _identity(num_queries, is_token.device)
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

    def reorder(self, beam_indices: Tensor) -> None:
        """Let hypothesis k of sentence b continue from hypothesis `beam_indices[b, k]` of the same sentence.

        The number of hypotheses may change: this is also how one prompt becomes K beams.
        """
        self.visible = self.visible.gather(1, beam_indices[:, :, None].expand(-1, -1, self.num_slots))
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
        destinations, sources = destinations[moved], sentences[moved]
        for layer in self.layers:
            layer.move_sentences(destinations, sources, num_sentences, self.num_slots)
        self.visible = self.visible[sentences]
        self.lengths = self.lengths[sentences]
        if self.source_visible is not None:
            self.source_visible = self.source_visible[sentences]

    def _drop_dead_slots(self) -> None:
        in_use = self.visible.any(1)
        num_live = int(in_use.sum(1).max())
        if num_live * 3 > self.num_slots * 2:
            return
        live_first = in_use.to(torch.uint8).argsort(dim=1, descending=True, stable=True)[:, :num_live]
        for layer in self.layers:
            layer.move_slots(live_first)
        self.visible = self.visible.gather(2, live_first[:, None].expand(-1, self.visible.shape[1], -1))
