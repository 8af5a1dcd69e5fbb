"""Our search on Hugging Face models gives what their own `generate` gives, token for token."""

import importlib
import importlib.util
import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from sonde.generate.search import beam_search
from sonde.generate.sequence_model import HuggingFaceModel
from sonde.generate.settings import SearchSettings

if importlib.util.find_spec("transformers") is None and os.environ.get("CI") != "true":
    pytest.skip("transformers is not installed", allow_module_level=True)

# Importing transformers sets off deprecation warnings that are not ours.
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

VOCAB = 30
PAD = 1
EOS = 2
SOURCES = [[5, 9, 13, 7, EOS], [23, 4, EOS], [8, 21, 8, 14, 15, 16, EOS], [29, EOS]]


def sharpened(model: Any) -> Any:
    """Random weights large enough that sources matter, no two scores are nearly equal, and some
    results end early.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=1.5 / parameter.shape[-1] ** 0.5)
        model.get_output_embeddings().weight[EOS] *= 1.5
    return model.eval()


ENCODER_DECODER: dict[str, Any] = {
    "vocab_size": VOCAB,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "max_position_embeddings": 64,
    "pad_token_id": PAD,
    "bos_token_id": 3,
    "eos_token_id": EOS,
    "forced_eos_token_id": None,
    "tie_word_embeddings": False,
}


def make_marian() -> Any:
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(0)
    config = transformers.MarianConfig(
        **ENCODER_DECODER, decoder_start_token_id=PAD, scale_embedding=True
    )
    return sharpened(transformers.MarianMTModel(config))


def make_bart() -> Any:
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(1)
    config = transformers.BartConfig(**ENCODER_DECODER, decoder_start_token_id=EOS)
    return sharpened(transformers.BartForConditionalGeneration(config))


def make_gpt2() -> Any:
    transformers: Any = importlib.import_module("transformers")
    torch.manual_seed(2)
    ids = {"pad_token_id": PAD, "bos_token_id": EOS, "eos_token_id": EOS}
    config = transformers.GPT2Config(
        vocab_size=VOCAB,
        n_positions=64,
        n_embd=16,
        n_layer=2,
        n_head=2,
        tie_word_embeddings=False,
        **ids,
    )
    return sharpened(transformers.GPT2LMHeadModel(config))


MAKERS = {"marian": make_marian, "bart": make_bart, "gpt2": make_gpt2}


@pytest.fixture(scope="module", params=list(MAKERS))
def model(request: pytest.FixtureRequest) -> Any:
    return MAKERS[request.param]()


def theirs(model: Any, sources: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
    """What `generate` gives, without prompt, start token and padding."""
    is_encoder_decoder = model.config.is_encoder_decoder
    width = max(map(len, sources))
    rows = []
    masks = []
    for source in sources:
        fill = width - len(source)
        rows.append([*source, *[PAD] * fill] if is_encoder_decoder else [*[PAD] * fill, *source])
        masks.append(
            [1] * len(source) + [0] * fill if is_encoder_decoder else [0] * fill + [1] * len(source)
        )
    found = model.generate(
        torch.tensor(rows),
        attention_mask=torch.tensor(masks),
        **{"do_sample": False, "bad_words_ids": [[PAD]], "eos_token_id": EOS, **options},
    )
    cut = found[:, 1 if is_encoder_decoder else width :].tolist()
    return [[token for token in row if token != PAD] for row in cut]


def ours(model: Any, sources: Sequence[Sequence[int]], **options: Any) -> list[list[int]]:
    adapter = HuggingFaceModel(model)
    is_encoder_decoder = model.config.is_encoder_decoder
    start = model.config.decoder_start_token_id if is_encoder_decoder else None
    chosen = SearchSettings(
        eos=EOS, pad=PAD, start=start, stop="hf", **{"banned": (PAD,), **options}
    )
    prompts = None if is_encoder_decoder else sources
    found = beam_search(adapter.next_logits(sources), len(sources), chosen, prompts=prompts)
    return [token.tokens for sentence in found for token in sentence]


@pytest.mark.parametrize("num_beams", range(1, 9))
def test_every_beam_gives_the_tokens_of_generate(model: Any, num_beams: int) -> None:
    expected = theirs(model, SOURCES, num_beams=num_beams, max_new_tokens=20)
    assert ours(model, SOURCES, beam=num_beams, max_len=20) == expected
    assert len(set(map(tuple, expected))) >= 3, "a test whose sentences all agree shows little"


@pytest.mark.parametrize(
    ("mine", "other"),
    [
        ({"beam": 4, "length_penalty": 0.0}, {"num_beams": 4, "length_penalty": 0.0}),
        ({"beam": 4, "length_penalty": 2.0}, {"num_beams": 4, "length_penalty": 2.0}),
        ({"beam": 3, "length_penalty": -1.0}, {"num_beams": 3, "length_penalty": -1.0}),
        ({"beam": 4, "no_repeat_ngram": 2}, {"num_beams": 4, "no_repeat_ngram_size": 2}),
        ({"beam": 1, "no_repeat_ngram": 3}, {"num_beams": 1, "no_repeat_ngram_size": 3}),
        ({"beam": 4, "min_len": 6}, {"num_beams": 4, "min_new_tokens": 6}),
        (
            {"beam": 4, "banned": (PAD, 7, 11, 20)},
            {"num_beams": 4, "bad_words_ids": [[PAD], [7], [11], [20]]},
        ),
        ({"beam": 4, "n_best": 3}, {"num_beams": 4, "num_return_sequences": 3}),
        ({"beam": 5, "max_len": 1}, {"num_beams": 5, "max_new_tokens": 1}),
    ],
)
def test_penalties_and_rules_give_the_tokens_of_generate(
    model: Any, mine: dict[str, Any], other: dict[str, Any]
) -> None:
    expected = theirs(model, SOURCES, **{"max_new_tokens": 12, **other})
    assert ours(model, SOURCES, **{"max_len": 12, **mine}) == expected


def test_forced_tokens_give_the_tokens_of_generate() -> None:
    model = make_bart()
    expected = theirs(
        model, SOURCES, num_beams=4, max_length=9, forced_bos_token_id=11, forced_eos_token_id=EOS
    )
    assert ours(model, SOURCES, beam=4, max_len=8, forced=((0, 11), (7, EOS))) == expected


def test_scores_of_given_targets_are_those_the_search_found(model: Any) -> None:
    adapter = HuggingFaceModel(model)
    is_encoder_decoder = model.config.is_encoder_decoder
    start = model.config.decoder_start_token_id if is_encoder_decoder else EOS
    chosen = SearchSettings(eos=EOS, pad=None, start=start, stop="hf", beam=3, max_len=9)
    prompts = None if is_encoder_decoder else SOURCES
    found = [
        best
        for best, *_ in beam_search(
            adapter.next_logits(SOURCES), len(SOURCES), chosen, prompts=prompts
        )
    ]
    scored = adapter.token_log_probs(SOURCES, [hypothesis.tokens for hypothesis in found], start)
    for hypothesis, token_scores in zip(found, scored, strict=True):
        torch.testing.assert_close(
            torch.tensor(hypothesis.token_scores), torch.tensor(token_scores), atol=1e-4, rtol=1e-4
        )
