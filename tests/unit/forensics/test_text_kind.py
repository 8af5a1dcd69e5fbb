"""One odd row of a large batch counts by its sign, its rarity and its deviations."""

import math

import pytest

from sonde.forensics.causes.text_kind import odds_alone
from sonde.forensics.samples_seen import SeenSample
from sonde.forensics.seams import Row, SampleLoss
from sonde.texts.signs import FOREIGN_LANGUAGE, LOG, SHOUTING, Sign

_RARE = math.log10(32 * 0.0002)
_COMMON = math.log10(32 * 0.02)


def _seen(z: float, bits_z: float) -> SeenSample:
    return SeenSample(
        row=Row(("train", 3), (1,) * 40),
        sample=SampleLoss(sample_id=3, num_tokens=40, loss=4.0, token_losses=None),
        rank=0,
        z=z,
        bits_z=bits_z,
        bits=3.0,
        tail=0.0,
        rarity=0.0,
        excess=0.0,
    )


def test_a_clear_and_rare_sign_with_high_bits_counts_without_excess_loss() -> None:
    assert odds_alone(Sign(LOG, 1.0), _seen(z=1.5, bits_z=9.0), _RARE) > 0


def test_without_high_bits_it_does_not() -> None:
    assert odds_alone(Sign(LOG, 1.0), _seen(z=1.5, bits_z=2.0), _RARE) < 0


def test_a_sign_that_such_a_batch_usually_has_does_not() -> None:
    assert odds_alone(Sign(SHOUTING, 1.0), _seen(z=1.5, bits_z=9.0), _COMMON) < 0


def test_a_weak_sign_does_not() -> None:
    assert odds_alone(Sign(LOG, 0.3), _seen(z=1.5, bits_z=9.0), _RARE) < 0


@pytest.mark.parametrize("bits_z", [0.0, 50.0])
def test_bits_of_a_target_say_nothing_about_its_source(bits_z: float) -> None:
    sign = Sign(FOREIGN_LANGUAGE, 1.0, of_source=True)
    assert odds_alone(sign, _seen(1.0, bits_z), _RARE) == odds_alone(sign, _seen(1.0, 0.0), _RARE)


def test_infinite_deviations_do_not_count_without_end() -> None:
    odds = odds_alone(Sign(LOG, 1.0), _seen(math.inf, math.nan), _RARE)
    assert math.isfinite(odds)
