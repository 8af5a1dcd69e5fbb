"""A Hugging Face encoder-decoder or causal LM as a model to search with.

Nothing of `transformers` is imported: a model is called the way its own `generate` calls it, and its cache is asked to reorder
itself. With `stop="hf"` the results are those of `model.generate`, token for token (tests/integration/test_hf_generate.py).
"""

import inspect
from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor

from sonde.generate.sequence_model import Frontier, NextLogits, padded, picked_log_probs, previous_tokens


@final
class HuggingFaceNext:
    """The next-token function of one batch: rows are sentence-major, K hypotheses of each, as `generate` lays them out."""

    def __init__(self, model: Any, sources: Sequence[Sequence[int]], pad: int) -> None:
        self._model = model
        self._is_encoder_decoder = bool(model.config.is_encoder_decoder)
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters
        device = next(model.parameters()).device
        lengths = torch.tensor([len(source) for source in sources], device=device)
        width = int(lengths.max())
        columns = torch.arange(width, device=device)
        self._cache: Any = None
        self._num_hypotheses = 1
        self._encoded: Any = None
        self._encoded_rows: Any = None
        self._rows: Tensor | None = None
        if self._is_encoder_decoder:
            self._mask = (columns < lengths[:, None]).long()
            tokens = padded(sources, pad).to(device)
            self._encoded = model.get_encoder()(input_ids=tokens, attention_mask=self._mask, return_dict=True)
        else:
            self._mask = (columns >= width - lengths[:, None]).long()

    def __call__(self, frontier: Frontier, /) -> Tensor:
        """Logits [B, K, V]."""
        num_sentences, num_hypotheses = frontier.tokens.shape[:2]
        tokens = frontier.tokens.flatten(0, 1)
        if self._cache is not None:
            self._reorder(frontier)
            tokens = tokens[:, -1:]
        inputs = self._inputs(tokens, frontier.sentences.repeat_interleave(num_hypotheses), frontier.step)
        answer = self._model(**inputs, past_key_values=self._cache, use_cache=True, return_dict=True)
        self._cache = answer.past_key_values
        self._num_hypotheses = num_hypotheses
        logits: Tensor = answer.logits[:, -1].float()
        return logits.view(num_sentences, num_hypotheses, -1)

    def _reorder(self, frontier: Frontier) -> None:
        num_sentences = len(frontier.sentences)
        kept = torch.arange(num_sentences, device=self._mask.device) if frontier.kept is None else frontier.kept
        assert frontier.parents is not None
        self._cache.reorder_cache((kept[:, None] * self._num_hypotheses + frontier.parents).flatten())

    def all_logits(self, previous: Tensor) -> Tensor:
        """Logits [B, T, V] after each of `previous` [B, T], for a batch that is not searched but scored."""
        num_rows, num_given = len(previous), 0 if self._is_encoder_decoder else self._mask.shape[1]
        inputs = self._inputs(previous, torch.arange(num_rows, device=previous.device), previous.shape[1] - num_given)
        logits: Tensor = self._model(**inputs, use_cache=False, return_dict=True).logits
        return logits

    def _inputs(self, tokens: Tensor, rows: Tensor, num_generated: int) -> dict[str, Any]:
        """What the model is called with: `tokens`, of the sentences `rows`, the last after `num_generated` of its own."""
        if self._is_encoder_decoder:
            # The encoded source is copied for all hypotheses only when the batch changes.
            if self._rows is None or not torch.equal(self._rows, rows):
                self._rows = rows
                self._encoded_rows = type(self._encoded)(last_hidden_state=self._encoded.last_hidden_state[rows])
            return {
                "encoder_outputs": self._encoded_rows,
                "attention_mask": self._mask[rows],
                "decoder_input_ids": tokens,
            }
        mask = torch.cat((self._mask[rows], self._mask.new_ones(len(rows), num_generated)), dim=1)
        inputs: dict[str, Any] = {"input_ids": tokens, "attention_mask": mask}
        if self._takes_positions:
            inputs["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)[:, -tokens.shape[1] :]
        return inputs


@final
class HuggingFaceModel:
    """A model of `transformers`, ready to search with and to score with. Puts the model into evaluation mode."""

    def __init__(self, model: Any, *, pad: int | None = None) -> None:
        self._model = model.eval()
        configured = model.config.pad_token_id if pad is None else pad
        self._pad = 0 if configured is None else int(configured)

    @property
    def reads_source(self) -> bool:
        """Whether there is an encoder."""
        return bool(self._model.config.is_encoder_decoder)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        device: torch.device = next(self._model.parameters()).device
        return device

    def next_logits(self, sources: Sequence[Sequence[int]]) -> NextLogits:
        """A next-token function; encodes the sources now."""
        with torch.no_grad():
            return HuggingFaceNext(self._model, sources, self._pad)

    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], start: int
    ) -> list[list[float]]:
        """Teacher-forced log-probabilities of the targets."""
        previous, offset = previous_tokens(sources, targets, start if self.reads_source else None, self._pad)
        with torch.no_grad():
            logits = HuggingFaceNext(self._model, sources, self._pad).all_logits(previous.to(self.device))
        return picked_log_probs(logits, targets, offset)
