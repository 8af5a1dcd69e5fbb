"""Our own Transformer as a model to search with: the decoder's state follows the beams."""

from collections.abc import Sequence
from typing import Final, final

import torch
from torch import Tensor

from sonde.errors import SettingError
from sonde.generate.sequence_model import Frontier, NextLogits, padded, picked_log_probs, previous_tokens
from sonde.models.incremental import DecoderState
from sonde.models.transformer import Transformer

_MAX_TOKENS: Final = 8192
"""Attention over a text takes memory that grows with the square of its length: this one takes a gigabyte and more."""


@final
class TransformerNext:
    """The next-token function of one batch. The first call reads all tokens so far, later ones only the last."""

    def __init__(self, model: Transformer, source: Tensor | None, *, with_attention: bool = False) -> None:
        self._model = model
        self._source = source
        self._with_attention = with_attention
        self._state: DecoderState | None = None

    @torch.inference_mode()
    def __call__(self, frontier: Frontier, /) -> Tensor | tuple[Tensor, Tensor]:
        """Logits [B, K, V], and how the last layer looks at the source if that was asked for."""
        tokens = frontier.tokens
        if self._state is None:
            source = None if self._source is None else self._source[frontier.sentences]
            self._state = self._model.start(source, num_sentences=len(tokens))
        else:
            if frontier.kept is not None:
                self._state.keep(frontier.kept)
            if frontier.parents is not None:
                self._state.reorder(frontier.parents)
            tokens = tokens[:, :, -1:]
        logits, weights = self._model.decode(tokens, self._state, last_only=True, with_attention=self._with_attention)
        return logits[:, :, 0] if weights is None else (logits[:, :, 0], weights[:, :, 0])


@final
class TransformerModel:
    """A `Transformer`, ready to search with and to score with. Puts the model into evaluation mode."""

    def __init__(self, model: Transformer, *, with_attention: bool = False) -> None:
        self._model = model.eval()
        self._with_attention = with_attention and not model.settings.is_decoder_only

    @property
    def reads_source(self) -> bool:
        """Whether there is an encoder."""
        return not self._model.settings.is_decoder_only

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self._model.parameters()).device

    def next_logits(self, sources: Sequence[Sequence[int]]) -> NextLogits:
        """A next-token function; a decoder-only model reads its prompts from the search."""
        _refuse_long(sources)
        source = padded(sources, self._model.settings.pad).to(self.device) if self.reads_source else None
        return TransformerNext(self._model, source, with_attention=self._with_attention)

    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], start: int
    ) -> list[list[float]]:
        """Teacher-forced log-probabilities of the targets."""
        _refuse_long([*sources, *targets])
        pad = self._model.settings.pad
        previous, offset = previous_tokens(sources, targets, start if self.reads_source else None, pad)
        source = padded(sources, pad).to(self.device) if self.reads_source else None
        with torch.no_grad():
            logits = self._model(previous.to(self.device), source, left_padded=not self.reads_source)
        return picked_log_probs(logits, targets, offset)


def _refuse_long(texts: Sequence[Sequence[int]]) -> None:
    longest = max(map(len, texts), default=0)
    if longest > _MAX_TOKENS:
        raise SettingError(
            f"a text has {longest:,} tokens, and at most {_MAX_TOKENS:,} are read", hint="split it into sentences"
        )
