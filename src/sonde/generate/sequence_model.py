"""The interface between a search and any network: the input and output of a next-token function,
and what a model provides.

    def next_logits(frontier):
        return table[frontier.tokens[:, :, -1]]           # a bigram model: [B, K, V]

A stateless function reads `frontier.tokens`. One that caches keys and values first drops the
finished sentences (`kept`), then lets every hypothesis continue its parent (`parents`), then reads
the last token. Two models are here: our own Transformer, whose decoder state follows the beams, and
models of Hugging Face. Your own class with the methods of `SequenceModel` works as well.

`transformers` is not imported: a model is called the way its own `generate` calls it, and its cache
is asked to reorder itself. With `stop="hf"` the results equal those of `model.generate`, token for
token (tests/integration/test_hf_generate.py).

Shapes: B sentences still open, K hypotheses of each (1 at the first step), T tokens so far, V
vocabulary, S source tokens.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from sonde.errors import SettingError
from sonde.models.layers import DecoderState
from sonde.models.transformer import Transformer

_MAX_TOKENS: Final = 8192
"""Maximum length of a text in tokens. Attention memory grows with its square; this takes a gigabyte
and more.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Frontier:
    """The open hypotheses."""

    tokens: Tensor
    """[B, K, T]: the prefix of every hypothesis: start token or prompt (padded on the left), then
    the generated tokens.
    """

    sentences: Tensor
    """[B]: for each row, the index of its sentence in the search's input."""

    step: int
    """Number of tokens generated so far."""

    kept: Tensor | None = None
    """[B]: rows of the last call's batch that are still open, in their new order; None if all are,
    unmoved.
    """

    parents: Tensor | None = None
    """[B, K]: the hypothesis of the last call that each one continues, in the same sentence; None
    at the first step.
    """


class NextLogits(Protocol):
    """Any callable that returns logits for the next token."""

    def __call__(self, frontier: Frontier, /) -> Tensor | tuple[Tensor, Tensor]:
        """Return logits [B, K, V], or a pair of them and attention over the source, [B, K, S]."""


class SequenceModel(Protocol):
    """A network whose token ids are fixed."""

    @property
    def reads_source(self) -> bool:
        """Whether it is an encoder-decoder; otherwise its input is a prompt to continue."""

    @property
    def device(self) -> torch.device:
        """The device for the search's tensors."""

    def next_logits(self, sources: Sequence[Sequence[int]]) -> NextLogits:
        """Return a new next-token function for these sources, or for these prompts if the model is
        causal.
        """

    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], start: int
    ) -> list[list[float]]:
        """Return the log-probability of every target token, given its source (or prompt) and the
        tokens before it.

        `start` is the first input of a target; a causal model starts from the prompt instead.
        """


def padded(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    """Return rows of token ids as one tensor, padded with `pad` on the right."""
    width = max(map(len, rows), default=0)
    filled = [[*row, *[pad] * (width - len(row))] for row in rows]
    return torch.tensor(filled, dtype=torch.long).view(len(rows), width)


class _NetworkModel(ABC):
    """What the two models here have in common. Puts the network into evaluation mode."""

    def __init__(self, network: Any, pad: int, *, reads_source: bool) -> None:
        self._network = network.eval()
        self._pad = pad
        self.reads_source = reads_source
        """Whether there is an encoder."""

    @property
    def device(self) -> torch.device:
        """The device of the parameters."""
        device: torch.device = next(self._network.parameters()).device
        return device

    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], start: int
    ) -> list[list[float]]:
        """Return teacher-forced log-probabilities of the targets."""
        _refuse_long([*sources, *targets])
        heads = [[start]] * len(targets) if self.reads_source else sources
        pairs = list(zip(heads, targets, strict=True))
        previous = padded([[*head, *target[:-1]] for head, target in pairs], self._pad).to(
            self.device
        )
        with torch.no_grad():
            log_probs = self._all_logits(previous, sources).float().log_softmax(-1)
        # The logits at the last token of a head are those of the first token of its target.
        return [
            log_probs[row, range(len(head) - 1, len(head) - 1 + len(target)), target].tolist()
            for row, (head, target) in enumerate(pairs)
        ]

    @abstractmethod
    def _all_logits(self, previous: Tensor, sources: Sequence[Sequence[int]]) -> Tensor:
        """Return logits [B, T, V] after each of `previous` [B, T]."""


class TransformerModel(_NetworkModel):
    """A `Transformer` for search and scoring. Puts the model into evaluation mode."""

    def __init__(self, model: Transformer, *, with_attention: bool = False) -> None:
        super().__init__(model, model.settings.pad, reads_source=not model.settings.is_decoder_only)
        self._with_attention = with_attention and self.reads_source

    def next_logits(self, sources: Sequence[Sequence[int]]) -> NextLogits:
        """Return a next-token function. A decoder-only model gets its prompts from the search.

        The first call reads all tokens so far, later ones only the last.
        """
        _refuse_long(sources)
        source = self._source(sources)
        state: DecoderState | None = None

        @torch.inference_mode()
        def next_logits(frontier: Frontier, /) -> Tensor | tuple[Tensor, Tensor]:
            nonlocal state
            tokens = frontier.tokens
            if state is None:
                rows = None if source is None else source[frontier.sentences]
                state = self._network.start(rows, num_sentences=len(tokens))
            else:
                if frontier.kept is not None:
                    state.keep(frontier.kept)
                if frontier.parents is not None:
                    state.reorder(frontier.parents)
                tokens = tokens[:, :, -1:]
            logits, weights = self._network.decode(
                tokens, state, last_only=True, with_attention=self._with_attention
            )
            return logits[:, :, 0] if weights is None else (logits[:, :, 0], weights[:, :, 0])

        return next_logits

    def _all_logits(self, previous: Tensor, sources: Sequence[Sequence[int]]) -> Tensor:
        logits: Tensor = self._network(previous, self._source(sources))
        return logits

    def _source(self, sources: Sequence[Sequence[int]]) -> Tensor | None:
        return padded(sources, self._pad).to(self.device) if self.reads_source else None


def _refuse_long(texts: Sequence[Sequence[int]]) -> None:
    longest = max(map(len, texts), default=0)
    if longest > _MAX_TOKENS:
        raise SettingError(
            f"a text has {longest:,} tokens, and at most {_MAX_TOKENS:,} are read",
            hint="split it into sentences",
        )


class HuggingFaceModel(_NetworkModel):
    """A model of `transformers` for search and scoring. Puts the model into evaluation mode."""

    def __init__(self, model: Any, *, pad: int | None = None) -> None:
        configured = model.config.pad_token_id if pad is None else pad
        super().__init__(model, configured or 0, reads_source=bool(model.config.is_encoder_decoder))
        self._takes_positions = "position_ids" in inspect.signature(model.forward).parameters

    @torch.no_grad()
    def next_logits(self, sources: Sequence[Sequence[int]]) -> NextLogits:
        """Encode the sources and return a next-token function. Its rows are sentence-major, as in
        `generate`.
        """
        source = self._source(sources)
        mask = source["attention_mask"]
        encoded = (
            self._network.get_encoder()(**source, return_dict=True) if self.reads_source else None
        )
        cache: Any = None
        num_before = 1

        def next_logits(frontier: Frontier, /) -> Tensor:
            nonlocal cache, num_before
            num_sentences, num_hypotheses = frontier.tokens.shape[:2]
            tokens = frontier.tokens.flatten(0, 1)
            rows = frontier.sentences.repeat_interleave(num_hypotheses)
            if cache is not None:
                assert frontier.parents is not None
                if frontier.kept is None:
                    kept = torch.arange(num_sentences, device=tokens.device)
                else:
                    kept = frontier.kept
                cache.reorder_cache((kept[:, None] * num_before + frontier.parents).flatten())
                tokens = tokens[:, -1:]
            if encoded is None:
                # the search pads prompts on the left
                inputs = self._prompt(tokens, mask.flip(1)[rows], frontier.step)
            else:
                inputs = {"decoder_input_ids": tokens, "attention_mask": mask[rows]}
                inputs["encoder_outputs"] = type(encoded)(
                    last_hidden_state=encoded.last_hidden_state[rows]
                )
            answer = self._network(
                **inputs, past_key_values=cache, use_cache=True, return_dict=True
            )
            cache = answer.past_key_values
            num_before = num_hypotheses
            logits: Tensor = answer.logits[:, -1].float()
            return logits.view(num_sentences, num_hypotheses, -1)

        return next_logits

    def _prompt(self, tokens: Tensor, mask: Tensor, num_generated: int) -> dict[str, Any]:
        """Return the inputs that feed `tokens` to a causal model; `mask` is that of the prompts
        before the generated tokens.
        """
        mask = torch.cat((mask, mask.new_ones(len(mask), num_generated)), dim=1)
        inputs = {"input_ids": tokens, "attention_mask": mask}
        if self._takes_positions:
            inputs["position_ids"] = (mask.cumsum(1) - 1).clamp_min(0)[:, -tokens.shape[1] :]
        return inputs

    def _all_logits(self, previous: Tensor, sources: Sequence[Sequence[int]]) -> Tensor:
        inputs = {"input_ids": previous}
        if self.reads_source:
            inputs = {**self._source(sources), "decoder_input_ids": previous}
        logits: Tensor = self._network(**inputs, use_cache=False, return_dict=True).logits
        return logits

    def _source(self, sources: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        mask = padded([[1] * len(source) for source in sources], 0)
        return {
            "input_ids": padded(sources, self._pad).to(self.device),
            "attention_mask": mask.to(self.device),
        }
