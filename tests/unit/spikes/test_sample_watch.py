"""Single samples that stand out, and means with the lengths taken out."""

import json

import numpy as np
import pytest
from numpy.typing import NDArray

from sonde.spikes.sample_watch import MATCHED_LOSS, SampleEvent, SampleWatch

Step = tuple[NDArray[np.float64], NDArray[np.int64]]


def draw_steps(seed: int, number: int, rows: int = 64) -> list[Step]:
    """Losses that fall with time and with the length; short samples vary more, and the upper tail
    is longer than the lower.
    """
    generator = np.random.default_rng(seed)
    steps = []
    for step in range(number):
        lengths = generator.integers(5, 120, rows)
        noise = generator.gamma(60, 1 / 60, rows) - 1
        losses = 3 + 4 * 0.97**step - 0.2 * np.log(lengths) + noise * (1 + 5 / np.sqrt(lengths))
        steps.append((losses, lengths))
    return steps


def watched(steps: list[Step], watch: SampleWatch | None = None) -> list[SampleEvent]:
    watch = watch or SampleWatch()
    found = [watch.observe(number, *step)[1] for number, step in enumerate(steps, 1)]
    return [event for event in found if event is not None]


@pytest.mark.parametrize("rows", [8, 32, 64])
def test_one_bad_row_is_found_whatever_the_size_of_the_batch(rows: int) -> None:
    steps = draw_steps(11, 300, rows)
    steps[249][0][5] += 2.5
    (event,) = [event for event in watched(steps) if event.step == 250]
    assert event.rows == (5,)
    assert event.z[0] > event.limit
    assert abs(event.expected[0] - (steps[249][0][5] - 2.5)) < 1


def test_lists_of_a_few_samples_are_judged_as_arrays_are() -> None:
    steps = draw_steps(11, 300, 8)
    steps[249][0][5] += 2.5
    steps[269][0][2] = np.nan
    arrays = SampleWatch()
    lists = SampleWatch()
    for number, (losses, lengths) in enumerate(steps, 1):
        z, event, _ = arrays.observe(number, losses, lengths)
        z_of_list, event_of_list, _ = lists.observe(number, losses.tolist(), lengths.tolist())
        assert np.allclose(z, z_of_list, equal_nan=True)
        assert (event is None) == (event_of_list is None)
        assert event is None or event_of_list is None or event.rows == event_of_list.rows
    assert lists.model.num_samples == arrays.model.num_samples


@pytest.mark.slow
def test_clean_samples_stand_out_less_than_once_in_twenty_thousand() -> None:
    num_samples = sum(len(losses) for seed in range(10) for losses, _ in draw_steps(seed, 400))
    num_found = sum(
        len(event.rows) for seed in range(10) for event in watched(draw_steps(seed, 400))
    )
    assert num_found <= num_samples / 20_000


@pytest.mark.parametrize("rows", [16, 64])
def test_where_nearly_all_samples_are_known_by_heart_the_others_do_not_all_stand_out(
    rows: int,
) -> None:
    generator = np.random.default_rng(5)
    steps = [
        (
            7 * 0.97 ** min(step, 200) * np.exp(generator.normal(0, 1, rows)).clip(0, 9),
            generator.integers(5, 20, rows),
        )
        for step in range(500)
    ]
    steps[450][0][3] = 7.0
    found = watched(steps)
    assert 451 in [event.step for event in found]
    assert sum(len(event.rows) for event in found) <= 4


def test_bad_rows_do_not_teach_the_watch_that_they_are_normal() -> None:
    steps = draw_steps(2, 600)
    for number in range(100, 600, 5):
        steps[number][0][number % 64] += 3.0
    found = watched(steps)
    assert len(found) >= 90
    assert max(event.limit for event in found) < 8


def test_when_the_whole_batch_goes_up_no_row_stands_out() -> None:
    steps = draw_steps(3, 300)
    for losses, _ in steps[250:]:
        losses += 4.0
    assert watched(steps) == []


def test_a_step_is_judged_against_steps_of_its_own_length() -> None:
    generator = np.random.default_rng(4)
    watch = SampleWatch()
    begun = []
    for step in range(1, 401):
        long = step % 2 == 0
        lengths = np.full(32, 200 if long else 10)
        losses = (2.0 if long else 3.0) + generator.normal(0, 0.2, 32)
        if step == 300:
            # 2.5 where steps between 2 and 3 are usual, but 14 deviations for a step of long
            # samples
            losses += 0.5
        begun.append(watch.observe(step, losses, lengths)[2])
    (event,) = [event for event in begun if event is not None]
    assert (event.first_step, event.metric) == (300, MATCHED_LOSS)
    assert event.z > 7


@pytest.mark.parametrize("wild", [np.nan, np.inf, 1e30])
def test_a_loss_that_is_no_number_stands_out_and_is_forgotten(wild: float) -> None:
    steps = draw_steps(5, 300)
    steps[199][0][7] = wild
    watch = SampleWatch()
    (event,) = watched(steps, watch)
    assert (event.step, event.rows) == (200, (7,))
    assert event.z[0] > 1e6
    assert np.isfinite(watch.model.level)


def test_a_step_of_nothing_but_nan_is_no_sample_event() -> None:
    steps = draw_steps(6, 300)
    steps[199] = (np.full(64, np.nan), steps[199][1])
    assert watched(steps) == []


def test_an_empty_step_and_one_of_zero_tokens_are_taken() -> None:
    watch = SampleWatch()
    watch.observe(1, np.zeros(0), np.zeros(0, np.int64))
    watch.observe(2, np.array([0.0]), np.array([0]))
    assert watched(draw_steps(7, 100), watch) == []


def test_one_look_in_a_thousand_steps_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sonde.spikes.sample_watch._LOOK_EVERY", 120)
    steps = draw_steps(8, 400)
    for number in (200, 250, 300, 390):
        steps[number][0][3] += 5.0
    looks = [event.is_worth_a_look for event in watched(steps)]
    assert looks == [True, False, False, True]


def test_resumes_to_the_bit() -> None:
    steps = draw_steps(9, 400)
    for number in (250, 350):
        steps[number][0][3] += 5.0
    whole = SampleWatch()
    first = SampleWatch()
    second = SampleWatch()
    expected = [whole.observe(number, *step) for number, step in enumerate(steps)][217:]
    for number, step in enumerate(steps[:217]):
        first.observe(number, *step)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    found = [second.observe(217 + number, *step) for number, step in enumerate(steps[217:])]
    assert all(
        np.array_equal(whole[0], other[0]) and whole[1:] == other[1:]
        for whole, other in zip(expected, found, strict=True)
    )
