"""Bits per character of single samples: rows of many cheap tokens stand out, ordinary ones do
not.
"""

import json

import numpy as np
import pytest

from sonde.spikes.bits_watch import BitsWatch, CharacterCounts
from sonde.spikes.sample_watch import SampleEvent, SampleWatch

ROWS = 32
BAD = 5


class Training:
    """A training whose rows have 64 tokens of about four characters each."""

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)
        self.losses = SampleWatch()
        self.bits = BitsWatch()

    def step(
        self, number: int, *, bad_loss: float = 0.0, bad_part: float = 1.0
    ) -> SampleEvent | None:
        """Make a step; a bad row has a loss that is higher by `bad_loss`, and this part of the
        characters.
        """
        lengths = np.full(ROWS, 64)
        losses = 3 + self._generator.normal(0, 0.25, ROWS)
        characters = 256 * np.exp(self._generator.normal(0, 0.06, ROWS))
        if bad_part < 1:
            losses[BAD] = 3 + bad_loss
            characters[BAD] = 256 * bad_part
        z, _, _ = self.losses.observe(number, losses, lengths)
        rows = self.bits.rows_wanted(number, z)
        return self.bits.observe(
            number,
            rows,
            losses[rows].tolist(),
            lengths[rows].tolist(),
            characters[rows].astype(int).tolist(),
            [3.0] * len(rows),
        )


@pytest.fixture
def training() -> Training:
    made = Training(seed=4)
    assert [made.step(number) for number in range(1, 601)] == [None] * 600
    return made


def test_a_row_of_many_cheap_tokens_stands_out_by_its_bits(training: Training) -> None:
    event = training.step(601, bad_loss=0.8, bad_part=0.4)
    assert event is not None
    assert event.rows == (BAD,)
    assert event.z[0] > event.limit


def test_a_row_whose_loss_is_not_high_is_not_counted(training: Training) -> None:
    assert BAD not in training.bits.rows_wanted(602, [0.0] * ROWS)
    assert BAD in training.bits.rows_wanted(602, [0.0] * BAD + [2.6] + [0.0] * (ROWS - BAD - 1))
    assert training.step(602, bad_loss=0.0, bad_part=0.4) is None


def test_a_high_loss_with_ordinary_characters_is_no_outlier_of_bits(training: Training) -> None:
    assert training.step(601, bad_loss=0.8, bad_part=0.97) is None


def test_nothing_is_judged_before_enough_was_seen() -> None:
    young = Training(seed=4)
    for number in range(1, 100):
        young.step(number)
    assert young.step(100, bad_loss=0.8, bad_part=0.4) is None


def test_numbers_that_are_not_finite_are_neither_judged_nor_learnt(training: Training) -> None:
    level = training.bits.model.level
    assert training.bits.observe(601, [3], [float("nan")], [64], [256], [3.0]) is None
    assert training.bits.model.level == level


def test_a_restored_watch_goes_on_as_if_nothing_had_happened(training: Training) -> None:
    other = BitsWatch()
    other.load_state_dict(json.loads(json.dumps(training.bits.state_dict())))
    for watch in (training.bits, other):
        watch.observe(601, [BAD], [3.2], [64], [250], [3.0])
    assert other.state_dict() == training.bits.state_dict()


def test_a_token_is_decoded_once_and_counts_its_characters() -> None:
    asked = []

    def decode(tokens: list[int]) -> str:
        asked.append(tokens)
        return "abc" * tokens[0]

    counts = CharacterCounts(decode)
    assert counts.count([1, 2, 1]) == 12
    assert counts.count([2]) == 6
    assert asked == [[1], [2]]
