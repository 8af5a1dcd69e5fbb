"""Settings that cannot work are refused when they are made."""

import pytest

from sonde.errors import SettingError
from sonde.models.settings import TransformerSettings


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"vocab_size": 0}, "vocab_size is 0"),
        ({"vocab_size": True}, "vocab_size is True"),
        ({"model_dim": 10, "num_heads": 4}, "not a multiple"),
        ({"model_dim": 15, "num_heads": 3}, "even width"),
        ({"model_dim": 12, "num_heads": 4, "positions": "rotary"}, "even width"),
        ({"encoder_layers": -1}, "encoder_layers is -1"),
        ({"decoder_layers": 0}, "decoder_layers is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"norm": "middle"}, "norm is 'middle'"),
        ({"positions": "learned"}, "positions is 'learned'"),
        ({"tie": "some"}, "tie is 'some'"),
        ({"pad": 99}, "outside the vocabulary"),
        ({"source_vocab_size": 20}, "shares one embedding"),
        ({"source_vocab_size": 0, "tie": "none"}, "source_vocab_size is 0"),
    ],
)
def test_a_setting_that_cannot_work_is_named_with_its_value(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        # wrong on purpose
        TransformerSettings(**{"vocab_size": 30, **settings})  # type: ignore[arg-type]


def test_no_encoder_layers_means_decoder_only() -> None:
    assert TransformerSettings(vocab_size=9, encoder_layers=0).is_decoder_only
    assert not TransformerSettings(vocab_size=9, source_vocab_size=7, tie="output").is_decoder_only
    assert TransformerSettings(vocab_size=9, model_dim=64, num_heads=8).head_dim == 8
