"""Strings in, strings out, in the order they were given."""

import math
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from sonde.errors import SettingError
from sonde.generate.sequence_model import Frontier, NextLogits, padded
from sonde.generate.settings import SearchSettings
from sonde.generate.translation import as_sequence_model, in_batches, score, translate
from sonde.models.settings import TransformerSettings
from sonde.models.transformer import Transformer

EOS = 2
LETTERS = "abcdefghijklmnop"


class Letters:
    """A tokenizer of your own."""

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [[4 + LETTERS.index(letter) for letter in text] for text in texts]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join(LETTERS[token - 4] if token >= 4 else "?" for token in ids)


TOKENIZER = Letters()


class Copier:
    """A model that repeats its source, with a fixed probability per token."""

    reads_source = True
    device = torch.device("cpu")

    def __init__(self, probabilities: list[list[float]] | None = None) -> None:
        self.probabilities = probabilities
        self.batches: list[int] = []

    def next_logits(self, sources: Sequence[Sequence[int]]) -> NextLogits:
        self.batches.append(len(sources))

        def next_logits(frontier: Frontier) -> Tensor:
            logits = torch.full((*frontier.tokens.shape[:2], 20), -9.0)
            for row, sentence in enumerate(frontier.sentences.tolist()):
                source = sources[sentence]
                logits[row, :, source[min(frontier.step, len(source) - 1)]] = 0.0
            return logits

        return next_logits

    def token_log_probs(
        self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], start: int
    ) -> list[list[float]]:
        assert self.probabilities is not None
        table = {len(row): row for row in self.probabilities}
        return [[math.log(probability) for probability in table[len(target)]] for target in targets]


def make_transformer(encoder_layers: int) -> Transformer:
    torch.manual_seed(3)
    sizes = TransformerSettings(
        vocab_size=20,
        model_dim=16,
        num_heads=2,
        ffn_dim=32,
        encoder_layers=encoder_layers,
        decoder_layers=2,
    )
    return Transformer(sizes)


def test_results_come_back_in_input_order_whatever_the_batches() -> None:
    texts = ["abc", "", "hgfedcba", "p", "ponm", "ab"]
    model = Copier()
    seen = list[int]()
    results = translate(model, TOKENIZER, texts, batch_tokens=10, on_progress=seen.append)
    assert [result.text for result in results] == texts
    assert len(model.batches) > 1
    assert seen[-1] == len(texts)
    assert translate(model, TOKENIZER, []) == []


def test_n_best_lists_carry_text_tokens_and_scores() -> None:
    result = translate(Copier(), TOKENIZER, ["ab"], SearchSettings(beam=3, n_best=3))[0]
    assert len(result.n_best) == 3
    assert result.n_best[0][0] == result.text == "ab"
    assert result.n_best[0][1].tokens == [4, 5, EOS]
    scores = [hypothesis.score for _, hypothesis in result.n_best]
    assert scores == sorted(scores, reverse=True)
    assert result.score == scores[0]


def test_given_pairs_get_the_probabilities_of_fairseqs_scorer_test() -> None:
    probabilities = [[0.6, 0.7, 0.5, 0.9], [0.6, 0.8, 0.15], [0.3, 0.7]]
    pairs = [("abc", "abc"), ("ab", "ba"), ("a", "b")]
    found = score(Copier(probabilities), TOKENIZER, pairs)
    assert [
        [round(math.exp(value), 4) for value in scored.token_scores] for scored in found
    ] == probabilities
    assert found[2].tokens == [5, EOS]
    assert math.isclose(found[2].score, math.log(0.3 * 0.7), rel_tol=1e-6)


@pytest.mark.parametrize("encoder_layers", [0, 2])
def test_a_transformer_scores_its_own_translations_as_it_found_them(encoder_layers: int) -> None:
    model = make_transformer(encoder_layers)
    texts = ["abcab", "d", "gfe"]
    chosen = SearchSettings(beam=3, max_len=8, banned=(0, 3))
    results = translate(model, TOKENIZER, texts, chosen)
    pairs = list(zip(texts, [result.text for result in results], strict=True))
    for result, scored in zip(results, score(model, TOKENIZER, pairs, chosen), strict=True):
        _, hypothesis = result.n_best[0]
        assert scored.tokens == hypothesis.tokens
        torch.testing.assert_close(
            torch.tensor(scored.token_scores),
            torch.tensor(hypothesis.token_scores),
            atol=1e-4,
            rtol=1e-4,
        )


@pytest.mark.parametrize("encoder_layers", [0, 2])
def test_a_transformer_finds_the_same_alone_and_in_a_batch(encoder_layers: int) -> None:
    model = make_transformer(encoder_layers)
    texts = ["abcab", "d", "gfe", "ponmlkjihg"]
    chosen = SearchSettings(beam=4, n_best=2, max_len_ratio=1.0, max_len=3)
    together = translate(model, TOKENIZER, texts, chosen)
    alone = [translate(model, TOKENIZER, [text], chosen)[0] for text in texts]
    assert [[text for text, _ in translation.n_best] for translation in together] == [
        [text for text, _ in translation.n_best] for translation in alone
    ]


def test_attention_of_a_transformer_spans_its_source() -> None:
    from sonde.generate.sequence_model import TransformerModel

    model = TransformerModel(make_transformer(2), with_attention=True)
    _, hypothesis = translate(model, TOKENIZER, ["abcd"], SearchSettings(beam=2, max_len=5))[
        0
    ].n_best[0]
    assert hypothesis.attention is not None
    assert hypothesis.attention.shape == (len(hypothesis.tokens), 5)
    torch.testing.assert_close(hypothesis.attention.sum(-1), torch.ones(len(hypothesis.tokens)))


def test_a_text_without_any_translation_is_empty() -> None:
    class Silent(Copier):
        def next_logits(self, sources: Sequence[Sequence[int]]) -> NextLogits:
            return lambda frontier: torch.full((*frontier.tokens.shape[:2], 20), -torch.inf)

    result = translate(Silent(), TOKENIZER, ["ab"])[0]
    assert (result.text, result.score, result.n_best) == ("", -math.inf, [])


def test_batches_hold_their_budget_and_results_keep_their_order() -> None:
    lengths = [3, 9, 1, 4, 4, 20]
    batches: list[list[int]] = []

    def squares(batch: list[int]) -> list[int]:
        batches.append(batch)
        return [index * index for index in batch]

    assert in_batches(squares, lengths, 12) == [0, 1, 4, 9, 16, 25]
    assert batches == [[5], [1], [3, 4, 0], [2]]
    assert in_batches(squares, [], 12) == []
    with pytest.raises(SettingError, match="batch_tokens is 0"):
        in_batches(squares, lengths, 0)


@pytest.mark.parametrize("encoder_layers", [0, 1])
def test_a_text_that_would_fill_the_memory_is_refused(encoder_layers: int) -> None:
    model = as_sequence_model(make_transformer(encoder_layers))
    with pytest.raises(SettingError, match=r"a text has 9,000 tokens.*at most 8,192"):
        model.next_logits([[4, 5], [4] * 9000])
    with pytest.raises(SettingError, match=r"9,000 tokens"):
        model.token_log_probs([[4]], [[5] * 9000], 2)


def test_something_that_is_no_model_is_refused() -> None:
    with pytest.raises(SettingError, match="model is a dict"):
        as_sequence_model({})


def test_rows_are_padded_on_the_right() -> None:
    assert padded([[3], [4, 5]], 1).tolist() == [[3, 1], [4, 5]]
    assert padded([], 1).shape == (0, 0)
