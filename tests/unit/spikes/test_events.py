"""Bad steps that belong together: one event, told when it begins and when it is over, over ranks
and checkpoints.
"""

import dataclasses
import json
import math

import pytest

from sonde.spikes.detectors import (
    GOOD_STEPS,
    Event,
    EventDetector,
    RelativeRule,
    SigmaRule,
    ThresholdRule,
    find_events,
    merge_events,
)

RULE = ThresholdRule(above=5.0)


def test_an_event_is_told_at_its_first_bad_step_and_after_enough_calm() -> None:
    detector = EventDetector(RULE)
    sentences = [detector.update(step, 9.0 if step in (10, 12) else 1.0) for step in range(40)]
    assert [step for step, (_, begun) in enumerate(sentences) if begun] == [10]
    ((step, event),) = [(step, over) for step, (over, _) in enumerate(sentences) if over]
    assert step == 12 + GOOD_STEPS
    assert (event.first_step, event.last_step, event.num_bad) == (10, 12, 2)
    assert detector.open is None


def test_bad_steps_far_apart_are_two_events() -> None:
    values = [9.0 if step in (10, 10 + GOOD_STEPS + 1) else 1.0 for step in range(60)]
    assert [event.first_step for event in find_events(values, RULE, first_step=100)] == [110, 123]


def test_the_peak_is_the_highest_and_nan_is_higher_still() -> None:
    (event,) = find_events([1.0, 6.0, 8.0, 7.0], RULE)
    assert (event.peak, event.peak_step, event.value) == (8.0, 2, 6.0)
    (event,) = find_events([1.0, math.nan, 6.0, 8.0], RULE)
    assert math.isnan(event.peak)
    assert event.peak_step == 1


def test_a_number_that_is_not_finite_is_an_event_of_its_own_within_another() -> None:
    detector = EventDetector(RULE)
    over, begun = [detector.update(step, value) for step, value in enumerate([6.0, math.nan])][-1]
    assert over is not None
    assert begun is not None
    assert (over.first_step, over.last_step, begun.first_step) == (0, 0, 1)
    assert (over.kind, begun.kind) == ("spike", "nonfinite")


@pytest.mark.parametrize(("value", "firsts"), [(25.0, [0, 2]), (23.0, [0])])
def test_a_far_higher_number_after_good_steps_is_an_event_of_its_own(
    value: float, firsts: list[int]
) -> None:
    values = [6.0] * 100 + [12.0, 6.0, value]
    events = find_events(values, RelativeRule(factor=1.5), first_step=-100)
    assert [event.first_step for event in events] == firsts


def test_a_detector_resumes_from_json_in_the_middle_of_an_event() -> None:
    values = [1.0] * 80 + [9.0] * 3 + [1.0] * 5 + [9.0] + [1.0] * 40
    whole = EventDetector(SigmaRule())
    first = EventDetector(SigmaRule())
    for step, value in enumerate(values[:82]):
        whole.update(step, value)
        first.update(step, value)
    second = EventDetector(SigmaRule())
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    assert second.open == whole.open
    rest = list(enumerate(values))[82:]
    assert [second.update(*step) for step in rest] == [whole.update(*step) for step in rest]


def test_the_state_of_another_rule_is_left_alone() -> None:
    detector = EventDetector(RULE)
    detector.load_state_dict(EventDetector(SigmaRule()).state_dict())
    assert detector.update(0, 9.0)[1] is not None


def event(first: int, z: float, last: int | None = None) -> Event:
    last = first if last is None else last
    return dataclasses.replace(
        find_events([9.0], RULE)[0], first_step=first, last_step=last, z=z, num_bad=last - first + 1
    )


def test_events_of_ranks_merge_to_the_worst_with_the_whole_span() -> None:
    merged = merge_events([event(11, 7.0, 14), event(10, 5.0), event(12, 6.0)])
    assert merged == dataclasses.replace(event(11, 7.0, 14), first_step=10)


@pytest.mark.parametrize("z", [math.nan, math.inf])
def test_what_is_not_finite_is_the_worst(z: float) -> None:
    merged = merge_events([event(10, 99.0), event(10, z)])
    assert merged is not None
    assert not math.isfinite(merged.z)


def test_good_steps_are_stored_under_their_first_name() -> None:
    detector = EventDetector(RULE)
    for step, value in enumerate([1.0, 9.0, 1.0, 1.0]):
        detector.update(step, value)
    state = detector.state_dict()
    assert state["num_calm"] == 2  # checkpoints of any age have this key
    resumed = EventDetector(RULE)
    resumed.load_state_dict({**state, "num_calm": GOOD_STEPS - 1})
    assert resumed.update(4, 1.0)[0] is not None
