"""The same logits whichever way they are computed; what is hidden has no influence."""

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from sonde.errors import SettingError
from sonde.models.layers import DecoderState
from sonde.models.settings import TransformerSettings
from sonde.models.transformer import Transformer

PAD = 1
CHOICES = list(
    product((0, 2), ("pre", "post"), ("sinusoidal", "rotary"), ("none", "output", "all"))
)


def make_model(encoder_layers: int = 2, **choices: Any) -> Transformer:
    torch.manual_seed(0)
    settings = TransformerSettings(
        vocab_size=23,
        model_dim=16,
        num_heads=2,
        ffn_dim=32,
        encoder_layers=encoder_layers,
        decoder_layers=2,
        **choices,
    )
    model = Transformer(settings).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return model


def padded_batch(lengths: list[int], side: str, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    rows = torch.full((len(lengths), max(lengths)), PAD)
    for row, length in zip(rows, lengths, strict=True):
        tokens = torch.randint(2, 23, (length,), generator=generator)
        row[-length:] = tokens if side == "left" else row[-length:]
        row[:length] = row[:length] if side == "left" else tokens
    return rows


def source_for(model: Transformer, side: str = "left") -> Tensor | None:
    return None if model.settings.is_decoder_only else padded_batch([5, 2, 7], side, seed=9)


def whole_logits(model: Transformer, targets: Tensor, source: Tensor | None) -> Tensor:
    """Return the logits of the full forward of every row without its padding, in the places of its
    tokens.
    """
    logits = torch.zeros(*targets.shape, model.settings.vocab_size)
    for row, tokens in enumerate(targets):
        own = None if source is None else source[row : row + 1]
        logits[row, tokens != PAD] = model(tokens[tokens != PAD][None], own)[0]
    return logits


def start(model: Transformer, source: Tensor | None, num_sentences: int = 3) -> DecoderState:
    return model.start(source, num_sentences=num_sentences)


@pytest.mark.parametrize(("encoder_layers", "norm", "positions", "tie"), CHOICES)
@pytest.mark.parametrize("side", ["left", "right"])
def test_full_forward_and_incremental_decoding_agree_at_every_position(
    encoder_layers: int, norm: str, positions: str, tie: str, side: str
) -> None:
    model = make_model(encoder_layers, norm=norm, positions=positions, tie=tie)
    targets = padded_batch([6, 9, 4], side)
    source = source_for(model, side)
    with torch.no_grad():
        whole = whole_logits(model, targets, source)
        if side == "right":
            is_token = targets != PAD
            torch.testing.assert_close(
                model(targets, source)[is_token], whole[is_token], atol=1e-5, rtol=0
            )
        state = start(model, source)
        steps = [
            model.decode(targets[:, None, t : t + 1], state)[0] for t in range(targets.shape[1])
        ]
        chunked_state = start(model, source)
        chunks = [
            model.decode(part[:, None], chunked_state)[0]
            for part in targets.split([4, 1, 3, 1], dim=1)
        ]
    stepwise = torch.cat(steps, dim=2)[:, 0]
    chunkwise = torch.cat(chunks, dim=2)[:, 0]
    is_token = targets != PAD
    torch.testing.assert_close(stepwise[is_token], whole[is_token], atol=1e-5, rtol=0)
    torch.testing.assert_close(chunkwise[is_token], whole[is_token], atol=1e-5, rtol=0)


@pytest.mark.parametrize("encoder_layers", [0, 2])
@pytest.mark.parametrize("positions", ["sinusoidal", "rotary"])
def test_reordered_beams_see_exactly_their_own_history(encoder_layers: int, positions: str) -> None:
    model = make_model(encoder_layers, positions=positions)
    generator = torch.Generator().manual_seed(3)
    source = source_for(model)
    prompt = padded_batch([3, 2, 3], "left", seed=4)
    sentences = torch.arange(3)
    num_slots = []
    with torch.no_grad():
        state = start(model, source)
        model.decode(prompt[:, None], state)
        prefixes = prompt[:, None]
        for step in range(24):
            # Few distinct parents, as in a real beam: most histories die, and their slots are
            # dropped.
            parents = torch.randint(
                0, min(2, prefixes.shape[1]), (len(sentences), 4), generator=generator
            )
            tokens = torch.randint(2, 23, (len(sentences), 4, 1), generator=generator)
            if step == 10:
                order = torch.tensor([2, 0])
                state.keep(order)
                sentences = sentences[order]
                prefixes = prefixes[order]
                parents = parents[:2]
                tokens = tokens[:2]
            state.reorder(parents)
            prefixes = torch.cat(
                (prefixes.gather(1, parents[:, :, None].expand(-1, -1, prefixes.shape[2])), tokens),
                dim=2,
            )
            logits = model.decode(tokens, state)[0][:, :, 0]
            num_slots.append(state.num_slots)
            rows = None if source is None else source[sentences].repeat_interleave(4, dim=0)
            expected = whole_logits(model, prefixes.flatten(0, 1), rows)[:, -1]
            torch.testing.assert_close(logits.flatten(0, 1), expected, atol=1e-5, rtol=0)
    assert num_slots[-1] < 24 * 4 * 0.7, "slots that nobody sees were not dropped"


def test_a_memory_that_grows_past_its_first_buffer_keeps_its_content() -> None:
    model = make_model(0)
    tokens = torch.randint(2, 23, (1, 150), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        state = start(model, None, 1)
        last = [model.decode(tokens[:, None, t : t + 1], state)[0] for t in range(150)][-1]
        torch.testing.assert_close(last[0, 0, 0], model(tokens)[0, -1], atol=1e-5, rtol=0)


@pytest.mark.parametrize("side", ["left", "right"])
def test_padding_of_source_and_target_does_not_change_logits(side: str) -> None:
    model = make_model()
    source = padded_batch([4], side)
    target = padded_batch([3], "right", seed=2)
    extra = torch.full((1, 3), PAD)
    wider = torch.cat((extra, source) if side == "left" else (source, extra), dim=1)
    longer = torch.cat((target, extra), dim=1)
    torch.testing.assert_close(
        model(longer, wider)[:, :3], model(target, source), atol=1e-5, rtol=0
    )


def test_a_later_token_does_not_change_earlier_logits() -> None:
    model = make_model(0)
    tokens = padded_batch([8], "right")
    changed = tokens.clone()
    changed[0, 5] = (tokens[0, 5] + 1) % 20 + 2
    before = model(tokens)
    after = model(changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], atol=0, rtol=0)
    assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_a_source_of_padding_only_gives_finite_logits() -> None:
    model = make_model()
    assert model(torch.tensor([[2, 3]]), torch.full((1, 4), PAD)).isfinite().all()


def test_attention_weights_are_a_distribution_over_source_tokens() -> None:
    model = make_model()
    source = padded_batch([5, 2, 7], "right", seed=9)
    with torch.no_grad():
        _, weights = model.decode(
            torch.full((3, 1, 2), 2), model.start(source), with_attention=True
        )
    assert weights is not None
    assert weights.shape == (3, 1, 2, 7)
    torch.testing.assert_close(weights.sum(-1), torch.ones(3, 1, 2))
    assert (weights[1, :, :, 2:] == 0).all()


def test_only_the_last_logits_are_computed_when_asked_for() -> None:
    model = make_model(0)
    tokens = padded_batch([6, 6], "right")
    with torch.no_grad():
        every, _ = model.decode(tokens[:, None], start(model, None, 2))
        last, _ = model.decode(tokens[:, None], start(model, None, 2), last_only=True)
    assert last.shape == (2, 1, 1, 23)
    torch.testing.assert_close(last[:, :, 0], every[:, :, -1])


@pytest.mark.parametrize(("tie", "num_tables"), [("none", 3), ("output", 2), ("all", 1)])
def test_tied_embeddings_are_one_parameter(tie: str, num_tables: int) -> None:
    shapes = [tuple(p.shape) for p in make_model(tie=tie).parameters()]
    assert shapes.count((23, 16)) == num_tables


def test_dropout_works_in_training_and_not_in_evaluation() -> None:
    model = make_model(0, dropout=0.5)
    tokens = padded_batch([5], "right")
    torch.testing.assert_close(model(tokens), model(tokens), atol=0, rtol=0)
    model.train()
    assert not torch.allclose(model(tokens), model(tokens))


def test_a_source_where_none_is_read_and_none_where_one_is_needed_are_refused() -> None:
    with pytest.raises(SettingError, match="decoder-only"):
        make_model(0)(torch.tensor([[2]]), torch.tensor([[2]]))
    with pytest.raises(SettingError, match="needs a source"):
        make_model(2).start(None)
    with pytest.raises(SettingError, match="num_sentences"):
        make_model(0).start(None)


def test_bfloat16_autocast_trains_and_stays_near_float32() -> None:
    model = make_model()
    source = padded_batch([5, 3], "left")
    target = padded_batch([4, 6], "right")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits = model(target, source)
    logits.float().logsumexp(-1).sum().backward()
    assert logits.dtype == torch.bfloat16
    torch.testing.assert_close(logits.float(), model(target, source), atol=0.15, rtol=0.1)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_incremental_decoding_under_autocast_agrees_with_the_full_forward() -> None:
    model = make_model()
    source = padded_batch([5, 3], "left")
    target = padded_batch([6, 6], "right")
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        state = model.start(source)
        steps = [model.decode(target[:, None, t : t + 1], state)[0] for t in range(6)]
        torch.testing.assert_close(
            torch.cat(steps, dim=2)[:, 0], model(target, source), atol=0.15, rtol=0.1
        )


@pytest.mark.slow
@pytest.mark.parametrize("encoder_layers", [0, 2])
def test_compiled_without_graph_breaks_it_gives_the_same_logits_and_gradients(
    encoder_layers: int,
) -> None:
    model = make_model(encoder_layers, positions="rotary")
    source = source_for(model)
    target = padded_batch([4, 6, 5], "right")
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    expected = model(target, source)
    expected.square().mean().backward()
    gradients = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    logits = compiled(target, source)
    logits.square().mean().backward()
    torch.testing.assert_close(logits, expected)
    torch.testing.assert_close(
        [p.grad for p in model.parameters() if p.grad is not None], gradients
    )
