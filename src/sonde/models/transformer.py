"""A Transformer, encoder-decoder or decoder-only, with the same code for training and incremental
decoding.

    model = Transformer(TransformerSettings(vocab_size=8000))
    logits = model(previous, source)                     # training: [B, T, V]

    state = model.start(source)                          # decoding: the source is encoded and
                                                         # projected once
    logits, _ = model.decode(tokens, state)              # tokens [B, K, Q] -> logits [B, K, Q, V]
    state.reorder(beam_indices)                          # when hypotheses change places

`forward` and `decode` both end in `_layers`; they differ only in the source of the mask and in
whether keys are cached. Their logits agree to 1e-5 at every position
(tests/unit/models/test_transformer.py). Works under `torch.compile`, bfloat16 autocast,
DistributedDataParallel and `fully_shard`.

Shapes: B sentences, K hypotheses, Q new tokens, T target tokens, S source tokens, D model width, V
vocabulary.
"""

from typing import Any

import torch
from torch import Tensor, nn

from sonde.errors import SettingError
from sonde.models.layers import (
    Block,
    DecoderState,
    View,
    additive,
    positions_of,
    rotary_angles,
    sinusoids,
)
from sonde.models.settings import TransformerSettings


def _embedding(vocab_size: int, settings: TransformerSettings) -> nn.Embedding:
    padding_idx = settings.pad if settings.pad < vocab_size else None
    embedding = nn.Embedding(vocab_size, settings.model_dim, padding_idx=padding_idx)
    nn.init.normal_(embedding.weight, std=settings.model_dim**-0.5)
    if padding_idx is not None:
        nn.init.zeros_(embedding.weight[padding_idx].detach())
    return embedding


def _initialise(module: nn.Module) -> None:
    if isinstance(module, nn.Linear):
        nn.init.xavier_uniform_(module.weight)
        if module.bias is not None:
            nn.init.zeros_(module.bias)


class Transformer(nn.Module):
    """The reference model. `settings.encoder_layers == 0` makes it decoder-only.

    ```python
    import torch

    from sonde.models import Transformer, TransformerSettings

    settings = TransformerSettings(vocab_size=100, model_dim=16, num_heads=2, ffn_dim=32)
    model = Transformer(settings)
    source = torch.tensor([[5, 6, 2]])
    assert model(torch.tensor([[2, 4]]), source).shape == (1, 2, 100)
    ```
    """

    def __init__(self, settings: TransformerSettings) -> None:
        super().__init__()
        self.settings = settings
        self.embed = _embedding(settings.vocab_size, settings)
        has_source = not settings.is_decoder_only
        self.source_embed = self.embed
        if has_source and settings.tie != "all":
            self.source_embed = _embedding(
                settings.source_vocab_size or settings.vocab_size, settings
            )
        self.encoder = nn.ModuleList(
            Block(settings, has_source=False) for _ in range(settings.encoder_layers)
        )
        self.decoder = nn.ModuleList(
            Block(settings, has_source=has_source) for _ in range(settings.decoder_layers)
        )
        is_pre_norm = settings.norm == "pre"
        self.encoder_norm = (
            nn.LayerNorm(settings.model_dim) if is_pre_norm and has_source else nn.Identity()
        )
        self.decoder_norm = nn.LayerNorm(settings.model_dim) if is_pre_norm else nn.Identity()
        self.dropout = nn.Dropout(settings.dropout)
        self.output = nn.Linear(settings.model_dim, settings.vocab_size, bias=False)
        self.encoder.apply(_initialise)
        self.decoder.apply(_initialise)
        _initialise(self.output)
        if settings.tie != "none":
            self.output.weight = self.embed.weight

    def forward(self, previous: Tensor, source: Tensor | None = None) -> Tensor:
        """Return logits [B, T, V] for the token after each of `previous` [B, T], given `source` [B,
        S] with an encoder.

        Sources may be padded on either side. Targets are padded on the right, which a causal mask
        hides at no cost. Logits at padding are meaningless.
        """
        self._check_source(source)
        positions = positions_of(previous != self.settings.pad)
        encoded = None if source is None else self.encode(source)
        view = self._view(None, positions, None if source is None else self._source_visible(source))
        hidden, _ = self._layers(previous, positions, view, encoded=encoded)
        logits: Tensor = self.output(hidden)
        return logits

    def encode(self, source: Tensor) -> Tensor:
        """Return the encoded source [B, S, D]."""
        positions = positions_of(source != self.settings.pad)
        view = self._view(self._source_visible(source), positions)
        x = self._embedded(self.source_embed, source, positions)
        for layer, block in enumerate(self.encoder):
            x, _ = block(x, view, layer)
        encoded: Tensor = self.encoder_norm(x)
        return encoded

    def start(
        self, source: Tensor | None = None, *, num_sentences: int | None = None
    ) -> DecoderState:
        """Return the state before the first token: one hypothesis per sentence, the source encoded
        and projected once.

        A decoder-only model has no source and needs `num_sentences`.
        """
        self._check_source(source)
        if source is not None:
            num_sentences = len(source)
        if num_sentences is None:
            raise SettingError(
                "num_sentences is None",
                hint="a decoder-only model cannot tell it from a source: pass it",
            )
        own = self.settings
        weight = self.embed.weight
        nothing = weight.new_empty(
            len(self.decoder), 2, num_sentences, own.num_heads, 0, own.head_dim
        )
        cross = nothing
        source_visible = weight.new_empty(num_sentences, 1, 1, 0, dtype=torch.bool)
        if source is not None:
            encoded = self.encode(source)
            source_visible = self._source_visible(source)
            cross_attentions: list[Any] = [block.cross for block in self.decoder]
            cross = torch.stack(
                [torch.stack(attention.project(encoded)) for attention in cross_attentions]
            )
        return DecoderState(
            memory=nothing,
            cross=cross,
            source_visible=source_visible,
            visible=weight.new_empty(num_sentences, 1, 0, dtype=torch.bool),
            lengths=weight.new_zeros(num_sentences, 1, dtype=torch.long),
        )

    def decode(
        self,
        tokens: Tensor,
        state: DecoderState,
        *,
        last_only: bool = False,
        with_attention: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Feed the next tokens [B, K, Q] of every hypothesis, which extends `state`.

        Returns logits [B, K, Q, V] and, if requested, the last layer's cross-attention over the
        source, [B, K, Q, S]. With `last_only` both are for the last of the Q tokens only, so Q = 1.
        """
        positions, visible = state.extend(tokens != self.settings.pad)
        view = self._view(visible, positions, state.source_visible, state)
        hidden, weights = self._layers(
            tokens.flatten(1), positions, view, with_weights=with_attention
        )
        wanted = slice(-1 if last_only else None, None)
        hidden = hidden.view(*tokens.shape, -1)[:, :, wanted]
        if weights is not None:
            weights = weights.view(*tokens.shape, -1)[:, :, wanted]
        return self.output(hidden), weights

    def _layers(
        self,
        tokens: Tensor,
        positions: Tensor,
        view: View,
        *,
        encoded: Tensor | None = None,
        with_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Run the decoder from tokens to the input of the output projection."""
        x = self._embedded(self.embed, tokens, positions)
        weights = None
        last = len(self.decoder) - 1
        for layer, block in enumerate(self.decoder):
            x, weights = block(x, view, layer, encoded, with_weights=with_weights and layer == last)
        return self.decoder_norm(x), weights

    def _embedded(self, embed: nn.Embedding, tokens: Tensor, positions: Tensor) -> Tensor:
        x: Tensor = embed(tokens) * self.settings.model_dim**0.5
        if self.settings.positions == "sinusoidal":
            x = x + sinusoids(positions, self.settings.model_dim).to(x.dtype)
        dropped: Tensor = self.dropout(x)
        return dropped

    def _view(
        self,
        visible: Tensor | None,
        positions: Tensor,
        source_visible: Tensor | None = None,
        state: DecoderState | None = None,
    ) -> View:
        dtype = self.embed.weight.dtype
        is_rotary = self.settings.positions == "rotary"
        return View(
            mask=None if visible is None else additive(visible, dtype),
            rotation=rotary_angles(positions, self.settings.head_dim) if is_rotary else None,
            source_mask=None if source_visible is None else additive(source_visible, dtype),
            state=state,
        )

    def _source_visible(self, source: Tensor) -> Tensor:
        """Return [B, 1, 1, S], True at tokens. A source of only padding is fully visible, so that
        every softmax has an entry.
        """
        is_token = source != self.settings.pad
        return (is_token | ~is_token.any(1, keepdim=True))[:, None, None]

    def _check_source(self, source: Tensor | None) -> None:
        if (source is None) != self.settings.is_decoder_only:
            kind = "an encoder-decoder needs a source"
            if source is not None:
                kind = "a decoder-only model reads no source"
            raise SettingError(kind, hint="encoder_layers=0 makes a decoder-only model")
