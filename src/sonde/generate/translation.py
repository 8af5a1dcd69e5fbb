"""Translate texts with a model object, and score given pairs.

    results = translate(model, tokenizer, ["ein Haus", "zwei Häuser"], SearchSettings(beam=5))
    results[0].text

Sentences are sorted by length internally and returned in the given order. Which sentences share a
batch does not change the results, up to rounding in the last bits. `model` is a `Transformer`, a
Hugging Face model, or any `SequenceModel`; a causal model continues the texts instead of
translating them.

BLEU and chrF are sacrebleu's (extra `eval`), so that numbers can be compared with published ones.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np

from sonde.data.batching import Batches, cut_batches
from sonde.data.tokenizer import Ragged
from sonde.errors import SettingError, check_at_least, import_extra
from sonde.generate.hypotheses import Hypothesis
from sonde.generate.sampling import Sampling
from sonde.generate.search import beam_search, sample
from sonde.generate.sequence_model import HuggingFaceModel, SequenceModel, TransformerModel
from sonde.generate.settings import SearchSettings
from sonde.models.transformer import Transformer

BATCH_TOKENS = 4096
R = TypeVar("R")
Tokenizer: TypeAlias = Any
"""A tokenizer of `sonde.data`, a `tokenizers.Tokenizer`, or any object with `encode_batch` (a list
of ids per text) and `decode`.
"""


def translate(
    model: object,
    tokenizer: Tokenizer,
    texts: Sequence[str],
    settings: SearchSettings | None = None,
    *,
    targets: Tokenizer | None = None,
    sampling: Sampling | None = None,
    batch_tokens: int = BATCH_TOKENS,
    on_progress: Callable[[int], object] | None = None,
) -> list["Translation"]:
    """Translate every text, or continue it with a causal model, by beam search or with `sampling`
    at random.

    With `sampling`, `beam` samples are drawn per text. `targets` is the tokenizer of the
    translations, if they have their own. A batch holds at most `batch_tokens` source tokens,
    padding included. `on_progress` is called after each batch with the number of finished texts.
    """
    chosen = settings or SearchSettings()
    network = as_sequence_model(model)
    sources = _encoded(tokenizer, texts, chosen, is_prompt=not network.reads_source)

    def translated(batch: list[int]) -> list[Translation]:
        rows = [sources[index] for index in batch]
        search = beam_search
        if sampling is not None:
            search = partial(sample, sampling=replace(sampling, numbers=tuple(batch)))
        found = search(
            network.next_logits(rows),
            len(rows),
            chosen,
            source_lengths=[len(row) for row in rows],
            prompts=None if network.reads_source else rows,
            device=network.device,
        )
        return [_translation(targets or tokenizer, hypotheses) for hypotheses in found]

    return in_batches(translated, [len(source) for source in sources], batch_tokens, on_progress)


def score(
    model: object,
    tokenizer: Tokenizer,
    pairs: Sequence[tuple[str, str]],
    settings: SearchSettings | None = None,
    *,
    targets: Tokenizer | None = None,
    batch_tokens: int = BATCH_TOKENS,
) -> list["PairScore"]:
    """Score the second text of each pair, given the first, including the end token.

    `targets` is the tokenizer of the second texts, if they have their own.
    """
    chosen = settings or SearchSettings()
    network = as_sequence_model(model)
    sources = _encoded(
        tokenizer, [source for source, _ in pairs], chosen, is_prompt=not network.reads_source
    )
    wanted = _encoded(
        targets or tokenizer, [target for _, target in pairs], chosen, is_prompt=False
    )

    def scored(batch: list[int]) -> list[PairScore]:
        given = [sources[index] for index in batch]
        asked = [wanted[index] for index in batch]
        found = network.token_log_probs(given, asked, chosen.start_token)
        return [
            PairScore(tokens=row, token_scores=of, score=sum(of))
            for row, of in zip(asked, found, strict=True)
        ]

    lengths = [
        max(len(source), len(target)) for source, target in zip(sources, wanted, strict=True)
    ]
    return in_batches(scored, lengths, batch_tokens)


def as_sequence_model(model: object) -> SequenceModel:
    """Return the model as a `SequenceModel`, wrapped if necessary."""
    if isinstance(model, Transformer):
        return TransformerModel(model)
    if hasattr(model, "next_logits") and hasattr(model, "token_log_probs"):
        return cast("SequenceModel", model)
    if hasattr(model, "config") and hasattr(model.config, "is_encoder_decoder"):
        return HuggingFaceModel(model)
    raise SettingError(
        f"model is a {type(model).__name__}, which cannot be searched with",
        hint=(
            "use a sonde Transformer, a Hugging Face model, or a class with the methods of"
            " SequenceModel"
        ),
    )


def in_batches(
    function: Callable[[list[int]], list[R]],
    lengths: Sequence[int],
    batch_tokens: int,
    on_progress: Callable[[int], object] | None = None,
) -> list[R]:
    """Return the results of `function`, which takes a batch of indices, in the order of the
    indices.

    Batches come longest first and hold at most `batch_tokens` padded tokens, or a single index.
    """
    check_at_least(1, batch_tokens=batch_tokens)
    order = np.argsort(-np.array(lengths, np.int64), kind="stable")
    cost = np.minimum(np.array(lengths, np.int64), batch_tokens)[order]
    results: dict[int, R] = {}
    for batch in Batches(order, cut_batches(cost, batch_tokens), skipped=order[:0]):
        indices = batch.tolist()
        results.update(zip(indices, function(indices), strict=True))
        if on_progress is not None:
            on_progress(len(results))
    return [results[index] for index in range(len(lengths))]


def _encoded(
    tokenizer: Tokenizer, texts: Sequence[str], settings: SearchSettings, *, is_prompt: bool
) -> list[list[int]]:
    """Return the token ids of every text. A sentence ends in the end token; a prompt does not, and
    is never empty.
    """
    found = tokenizer.encode_batch(list(texts))
    if isinstance(found, Ragged):
        if not texts:
            return []
        ends = np.cumsum(found.sizes)[:-1]
        found = [row[:-1].tolist() for row in np.split(found.tokens, ends)]
    rows = []
    for encoding in found:
        ids = list(getattr(encoding, "ids", encoding))
        if ids[-1:] == [settings.eos]:
            ids.pop()
        rows.append((ids or [settings.start_token]) if is_prompt else [*ids, settings.eos])
    return rows


def _translation(tokenizer: Tokenizer, hypotheses: list[Hypothesis]) -> "Translation":
    n_best = [(str(tokenizer.decode(hypothesis.words)), hypothesis) for hypothesis in hypotheses]
    best_text, best_score = (n_best[0][0], n_best[0][1].score) if n_best else ("", float("-inf"))
    return Translation(text=best_text, score=best_score, n_best=n_best)


@dataclass(frozen=True, kw_only=True, slots=True)
class Translation:
    """The translations found for one text."""

    text: str
    """The best translation; empty if none was found."""

    score: float
    """Its score; minus infinity if none was found."""

    n_best: list[tuple[str, Hypothesis]]
    """The best hypotheses, best first, as text and as tokens with their scores."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PairScore:
    """The score of a given target."""

    tokens: list[int]
    """Tokens of the target, end token last."""

    token_scores: list[float]
    """Log-probability of each token."""

    score: float
    """Sum of the token scores: the log-probability of the target."""


def translation_quality(translations: Sequence[str], references: Sequence[str]) -> "Quality":
    """Return corpus BLEU and chrF of detokenised text, with one reference each."""
    if len(translations) != len(references) or not references:
        raise SettingError(
            f"there are {len(translations)} translations for {len(references)} references",
            hint="give one reference for each translation, and at least one",
        )
    sacrebleu = import_extra("sacrebleu", needed_for="measuring BLEU and chrF", extra="eval")
    bleu = sacrebleu.metrics.BLEU()
    chrf = sacrebleu.metrics.CHRF()
    return Quality(
        bleu=float(bleu.corpus_score(list(translations), [list(references)]).score),
        chrf=float(chrf.corpus_score(list(translations), [list(references)]).score),
        bleu_signature=str(bleu.get_signature()),
        chrf_signature=str(chrf.get_signature()),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """BLEU and chrF of translations against their references, 0 to 100."""

    bleu: float
    """Corpus BLEU."""

    chrf: float
    """Corpus chrF."""

    bleu_signature: str
    """sacrebleu's description of how BLEU was computed; quote it with the number."""

    chrf_signature: str
    """sacrebleu's description of how chrF was computed."""
