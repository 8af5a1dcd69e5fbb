"""The rule that needs no threshold, on losses that fall, jump, climb, rest, and have heavy
tails.
"""

import json
import random
from collections.abc import Callable

import pytest

from sonde.spikes.detectors import DIVERGENCE, JUMP, NONFINITE, SPIKE, Event, find_events
from sonde.spikes.robust_rule import RobustRule


def curve(number: int = 2000, sigma: float = 0.03, seed: int = 1) -> list[float]:
    draw = random.Random(seed)
    return [2.0 + 8.0 * (1 + step / 40) ** -0.5 + draw.gauss(0, sigma) for step in range(number)]


def events(losses: list[float]) -> list[Event]:
    return find_events(losses, RobustRule())


@pytest.mark.parametrize("sigma", [0.0, 0.001, 0.03, 0.15])
def test_a_healthy_falling_loss_has_no_events(sigma: float) -> None:
    assert events(curve(sigma=sigma)) == []


def test_a_constant_loss_has_no_events_and_its_end_is_seen() -> None:
    assert [event.first_step for event in events([2.5] * 500 + [3.0] + [2.5] * 50)] == [500]


@pytest.mark.parametrize("step", [100, 150, 400, 1990])
def test_a_single_bad_step_is_found_where_it_is_also_while_the_loss_still_falls_fast(
    step: int,
) -> None:
    losses = curve()
    losses[step] += 0.5
    (event,) = events(losses)
    assert (event.kind, event.first_step, event.last_step, event.num_bad) == (SPIKE, step, step, 1)
    assert event.value == losses[step]
    assert event.baseline == pytest.approx(losses[step] - 0.5, abs=0.3)
    assert event.z > 5


def test_a_burst_of_five_bad_steps_is_one_event_with_a_span() -> None:
    losses = curve()
    for place in (0, 1, 3, 4, 6):
        losses[1000 + place] += 1.0 + place / 10
    (event,) = events(losses)
    assert (event.first_step, event.last_step, event.num_bad, event.peak_step) == (
        1000,
        1006,
        5,
        1006,
    )


def test_a_jump_to_a_higher_plateau_is_one_event_and_then_the_new_normal() -> None:
    losses = curve()
    losses = losses[:1000] + [loss + 1.0 for loss in losses[1000:]]
    losses[1500] += 1.0
    jump, spike = events(losses)
    assert (jump.kind, jump.first_step) == (JUMP, 1000)
    assert jump.last_step < 1050
    assert (spike.kind, spike.first_step) == (SPIKE, 1500)


def test_a_slow_divergence_is_seen_though_no_step_of_it_stands_out() -> None:
    losses = [loss + max(0, step - 1000) * 0.004 for step, loss in enumerate(curve())]
    first, *_ = events(losses)
    assert first.kind == DIVERGENCE
    assert 1000 < first.first_step < 1150


def test_falling_learning_rates_and_plateaus_are_no_events() -> None:
    losses = curve()
    losses[801:] = [loss - 0.4 for loss in losses[801:]]
    losses[1401:] = [loss - 0.3 for loss in losses[1401:]]
    assert events(losses) == []


def test_nans_to_the_end_are_one_event() -> None:
    (event,) = events(curve(500) + [float("nan")] * 500)
    assert (event.kind, event.first_step, event.last_step, event.num_bad) == (
        NONFINITE,
        500,
        999,
        500,
    )


def test_the_limit_rises_with_heavy_tails() -> None:
    def limit(noise: Callable[[random.Random], float]) -> float:
        draw = random.Random(3)
        rule = RobustRule()
        state = rule.start()
        for _ in range(3000):
            rule.score(state, 3.0 + 0.03 * noise(draw))
        return state.limit

    tame = limit(lambda draw: draw.gauss(0, 1))
    # Student's t
    heavy = limit(lambda draw: draw.gauss(0, 1) / (draw.gammavariate(1.5, 2 / 3) ** 0.5))
    assert tame < 6 < 8 < heavy


def test_its_state_is_small_plain_data() -> None:
    rule = RobustRule()
    state = rule.start()
    for loss in curve():
        rule.score(state, loss)
    packed = json.dumps(rule.pack(state))
    assert len(packed) < 10_000
    assert rule.pack(rule.unpack(json.loads(packed))) == rule.pack(state)


def test_beside_a_loss_that_has_gone_to_nothing_only_a_large_rise_is_a_spike() -> None:
    falling = [2.3 * 0.9**step + 1e-4 for step in range(200)]
    small = find_events([*falling, 0.1, *falling[-4:]], RobustRule())
    large = find_events([*falling, 1.5, *falling[-4:]], RobustRule())
    assert small == []
    assert [event.first_step for event in large] == [200]
