"""The task of sonde's own models: a Transformer on the batches of `data/`, translation or language model.

The loss is label-smoothed cross-entropy, summed over target tokens; evaluation also gives the plain negative
log-likelihood, which perplexity is about. Row weights count: a row of weight zero, such as that of an empty batch, adds nothing.
"""

from typing import final

import torch
from torch import Tensor, nn

from sonde.data.batch import Batch
from sonde.errors import SettingError
from sonde.models.loss import token_losses
from sonde.train.task import StepOutput


@final
class TransformerTask:
    """Trains a model that is called as `model(decoder_input, source)` and returns logits [B, T, V]."""

    def __init__(self, model: nn.Module, *, pad: int = 1, label_smoothing: float = 0.0) -> None:
        if not 0.0 <= label_smoothing < 1.0:
            raise SettingError(
                f"label_smoothing is {label_smoothing!r}", hint="use a rate from 0 up to, not including, 1"
            )
        self._model = model
        self._pad = pad
        self._label_smoothing = label_smoothing

    @property
    def model(self) -> nn.Module:
        """What is trained."""
        return self._model

    def compute(self, batch: Batch) -> StepOutput:
        """The loss of one batch; smoothed in training, plain in evaluation."""
        logits = self._model(batch.decoder_input, batch.source)
        smoothing = self._label_smoothing if self._model.training else 0.0
        losses = token_losses(logits, batch.target, pad=self._pad, label_smoothing=smoothing)
        weighted = losses.losses * batch.weights[:, None]
        with torch.no_grad():
            lengths = batch.target_lengths.clamp_min(1)
            plain = losses.negative_log_likelihoods
            sample_losses: Tensor = plain.sum(1) / lengths
        return StepOutput(
            loss_sum=weighted.sum(),
            weight=(batch.weights * batch.target_lengths).sum(),
            sample_losses=sample_losses,
            token_losses=plain,
            token_counts=batch.target_lengths,
            sample_ids=batch.provenance,
            tensors={"sample_loss": sample_losses},
        )
