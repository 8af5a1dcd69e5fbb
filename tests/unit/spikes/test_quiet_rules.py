"""Failures without a jump, told once each; and trainings that are fine, about which nothing is
said.
"""

import math

import numpy as np
import pytest

from sonde.spikes.quiet_rules import (
    COLLAPSE,
    FADING_GRADIENT,
    LONG_STEPS,
    NO_GRADIENT,
    NO_PROGRESS,
    NO_RATE,
    RATE_OFF_COURSE,
    SAME_LOSS,
    SLOWER,
    Floats,
    QuietWatch,
)

DICE = np.random.default_rng(5)


def falling(num: int = 800) -> Floats:
    """The loss of a training that is fine."""
    steps = np.arange(num)
    return 2.0 + 3.0 * np.exp(-steps / 150) + DICE.normal(0, 0.05, num)


def kinds(
    losses: Floats,
    *,
    norm: float | Floats = 1.0,
    rate: float | Floats = 1e-3,
    seconds: float | Floats = 0.1,
) -> list[str]:
    watch = QuietWatch()
    num = len(losses)
    norms = np.broadcast_to(norm, num)
    rates = np.broadcast_to(rate, num)
    times = np.broadcast_to(seconds, num)
    found = []
    for place in range(num):
        numbers = (losses[place], norms[place], rates[place], times[place], 0.01)
        found += watch.observe(place + 1, *map(float, numbers))
    return [finding.kind for finding in found]


def test_nothing_is_said_of_a_training_that_is_fine() -> None:
    noisy = DICE.lognormal(0, 0.3, 800)
    warm_restarts = 1e-3 * (0.5 + 0.5 * np.cos(np.arange(800) % 200 / 200 * math.pi))
    assert kinds(falling(), norm=noisy, rate=warm_restarts, seconds=0.1 * noisy) == []


def test_an_objective_that_has_been_negative_may_come_near_0() -> None:
    losses = np.r_[-0.4, np.full(299, 0.5), np.full(100, 0.05)] + DICE.normal(0, 0.002, 400)
    assert COLLAPSE not in kinds(losses)
    assert COLLAPSE in kinds(np.abs(losses))


@pytest.mark.parametrize(("factor", "is_told"), [(0.2, True), (0.3, False)])
def test_a_loss_that_falls_off_a_cliff_is_told(factor: float, is_told: bool) -> None:
    losses = np.r_[np.full(300, 3.0), np.full(100, 3.0 * factor)] + DICE.normal(0, 0.01, 400)
    assert (COLLAPSE in kinds(losses)) is is_told


@pytest.mark.parametrize(("fall", "is_told"), [(0.0, True), (0.05, False)])
def test_a_loss_that_stays_where_it_began_is_told(fall: float, is_told: bool) -> None:
    losses = 4.17 - np.linspace(0, fall, 480) + DICE.normal(0, 0.002, 480)
    assert (NO_PROGRESS in kinds(losses)) is is_told


def test_no_progress_at_a_rate_of_zero_is_the_rate() -> None:
    losses = np.full(480, 4.17) + DICE.normal(0, 0.002, 480)
    found = kinds(losses, rate=0.0)
    assert NO_RATE in found
    assert NO_PROGRESS not in found


def test_the_same_loss_again_and_again_is_told_once() -> None:
    assert kinds(np.full(200, 3.0)).count(SAME_LOSS) == 1
    assert SAME_LOSS not in kinds(falling(200))


@pytest.mark.parametrize(("norm", "is_told"), [(0.0, True), (1e-9, False)])
def test_gradients_of_zero_are_told(norm: float, is_told: bool) -> None:
    assert (NO_GRADIENT in kinds(falling(100), norm=norm)) is is_told


@pytest.mark.parametrize(("faded", "is_told"), [(5e-4, True), (5e-3, False)])
def test_gradients_that_fade_away_are_told(faded: float, is_told: bool) -> None:
    norms = np.r_[np.ones(200), np.full(300, faded)]
    losses = 3.0 + DICE.normal(0, 0.05, 500)
    assert (FADING_GRADIENT in kinds(losses, norm=norms)) is is_told


@pytest.mark.parametrize(("factor", "is_told"), [(3.5, True), (2.5, False)])
def test_steps_that_get_far_slower_are_told(factor: float, is_told: bool) -> None:
    seconds = np.r_[np.full(400, 0.1), np.full(400, 0.1 * factor)]
    assert (SLOWER in kinds(falling(), seconds=seconds)) is is_told


def test_after_a_resume_nothing_is_said_again() -> None:
    after = QuietWatch(silent=[SAME_LOSS])
    for step in range(65, 165):
        assert not after.observe(step, 3.0, 1.0, 1e-3, 0.1, 0.0)


def with_long_steps(places: list[int], seconds: float = 5.0) -> Floats:
    """The seconds of 800 steps, some of which are long."""
    found = 0.1 * DICE.lognormal(0, 0.2, 800)
    found[places] = seconds
    return found


@pytest.mark.parametrize(
    ("places", "is_told"), [([210, 340, 351, 502], True), ([210, 340], False), ([1, 3, 9], False)]
)
def test_steps_that_take_far_too_long_are_told_if_they_come_again(
    places: list[int], is_told: bool
) -> None:
    found = kinds(falling(), seconds=with_long_steps(places))
    assert found.count(LONG_STEPS) == int(is_told)


@pytest.mark.parametrize(
    "places",
    [
        [*range(100, 800, 100)],  # evaluations
        sorted({*range(100, 800, 100), *range(125, 800, 250)}),  # and checkpoints
        [151, 299, 452, 601, 748],  # checkpoints by the clock
        [*range(37, 800, 37)],  # the ends of epochs
    ],
)
def test_pauses_at_regular_intervals_are_not_told(places: list[int]) -> None:
    assert LONG_STEPS not in kinds(falling(), seconds=with_long_steps(places))


def test_a_long_wait_for_data_is_told_apart_from_a_long_step() -> None:
    for wait, words in ((4.9, "waited"), (0.0, "spent")):
        watch = QuietWatch()
        sentences = []
        for step in range(1, 801):
            is_long = step in {210, 340, 351, 502}
            seconds = 5.0 if is_long else 0.1
            found = watch.observe(step, 3 - step / 800, 1.0, 1e-3, seconds, wait if is_long else 0)
            sentences += [finding.sentence for finding in found]
        assert len(sentences) == 1
        assert words in sentences[0]


STEPS = np.arange(2400)
COSINE = 1e-3 * (0.5 + 0.5 * np.cos(STEPS / len(STEPS) * math.pi))


@pytest.mark.parametrize(
    "rates",
    [
        pytest.param(1e-3 * 0.1 ** (STEPS // 500), id="steps down"),
        pytest.param(1e-3 * (0.5 + 0.5 * np.cos(STEPS % 300 / 300 * math.pi)), id="restarts"),
        pytest.param(
            1e-3 * (0.5 + 0.5 * np.cos(STEPS % 1500 / 1500 * math.pi)), id="a long restart"
        ),
        pytest.param(1e-3 * (0.001 + np.abs(STEPS % 400 - 200) / 200), id="cycles"),
        pytest.param(COSINE * np.minimum(1, (STEPS + 1) / 300), id="warm-up, then decay"),
        pytest.param(np.where(STEPS < 900, 1e-5, COSINE), id="warm-up at a constant rate"),
        pytest.param(np.full(len(STEPS), math.nan), id="not known"),
    ],
)
def test_no_usual_schedule_is_off_its_course(rates: Floats) -> None:
    assert RATE_OFF_COURSE not in kinds(falling(len(STEPS)), rate=rates)


@pytest.mark.parametrize(
    "rates",
    [
        pytest.param(1e-3 * (1 - STEPS / 1600), id="below 0"),
        pytest.param(np.where(STEPS < 2000, COSINE, 0.02), id="a jump past the peak"),
    ],
)
def test_a_rate_that_no_schedule_gives_is_told_once(rates: Floats) -> None:
    assert kinds(falling(len(STEPS)), rate=rates).count(RATE_OFF_COURSE) == 1


@pytest.mark.parametrize(
    ("num_planned", "is_told"), [(60, True), (140, True), (700, True), (790, False), (800, False)]
)
def test_a_cosine_that_climbs_back_the_way_it_came_is_told(num_planned: int, is_told: bool) -> None:
    rates = 1e-3 * (0.5 + 0.5 * np.cos(np.arange(800) / num_planned * math.pi))
    assert (RATE_OFF_COURSE in kinds(falling(), rate=rates)) is is_told


def test_triangles_and_restarts_of_a_rate_are_planned() -> None:
    steps = np.arange(800)
    triangles = 1e-3 * np.abs(1 - steps % 120 / 60)
    restarts = 1e-3 * (0.5 + 0.5 * np.cos(steps % 120 / 120 * math.pi))
    for rates in (triangles, restarts):
        assert RATE_OFF_COURSE not in kinds(falling(), rate=rates)


@pytest.mark.parametrize(("rise", "is_told"), [(1.0, True), (0.0, False)])
def test_a_constant_rate_may_jump_unless_the_loss_does_too(rise: float, is_told: bool) -> None:
    losses = falling(len(STEPS))
    losses[1000:] += rise
    rates = np.where(STEPS < 1000, 1e-3, 0.03)
    assert (RATE_OFF_COURSE in kinds(losses, rate=rates)) is is_told


def test_a_rate_whose_past_was_not_seen_is_not_judged() -> None:
    watch = QuietWatch()
    found = []
    for step in range(5000, 6000):
        rate = 1e-6 if step < 5500 else 1e-3
        found += watch.observe(step, 2.0 + 0.001 * (step % 7), 1.0, rate, 0.1, 0.01)
    assert RATE_OFF_COURSE not in [finding.kind for finding in found]


@pytest.mark.parametrize(("last", "told"), [(1e-7, [NO_RATE]), (1e-4, [])])
def test_a_rate_that_has_all_but_vanished_is_told(last: float, told: list[str]) -> None:
    rates = np.r_[np.full(200, 1.0), np.full(200, last)]
    assert kinds(falling(400), rate=rates) == told
