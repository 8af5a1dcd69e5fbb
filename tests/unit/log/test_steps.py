import numpy as np
import pytest

from sonde.log.steps import StepCounter, StepParts, step_parts, step_text
from sonde.records.values import step_numbers


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (7, "Iteration: 7 "),
        ((0, 1), "Epoch: 0 Iteration: 1 "),
        ([0, 1, 2], "Epoch: 0 Iteration: 1 Validation Iteration: 2 "),
        ([0, 1, 2, 3], "Epoch: 0 Iteration: 1 Validation Iteration: 2 "),
        ((4,), "Epoch: 4 "),
        ((), ""),
        (None, ""),
        ("PARAMETER", "PARAMETER"),
        (2.5, "Iteration: 2.5 "),
    ],
)
def test_step_text_is_what_tcap_prints(step: object, text: str) -> None:
    assert step_text(step) == text


@pytest.mark.parametrize(
    ("step", "parts"),
    [
        (7, StepParts(iteration=7)),
        (np.int64(7), StepParts(iteration=7)),
        ([2, 7], StepParts(epoch=2, iteration=7)),
        ((2, 7, 1), StepParts(epoch=2, iteration=7, validation_iteration=1)),
        ((2, 7, 1, 9), StepParts()),
        ((2,), StepParts(epoch=2)),
        ("name", StepParts()),
        ((), StepParts()),
        (["a", 1], StepParts()),
        (1.5, StepParts()),
    ],
)
def test_step_parts(step: object, parts: StepParts) -> None:
    assert step_parts(step) == parts


def test_a_name_has_no_step_numbers() -> None:
    assert step_numbers("5") == ()
    assert step_numbers(None) == ()
    assert step_numbers(()) == ()


def test_counter_leaves_iterations_alone_that_count_through() -> None:
    counter = StepCounter()
    assert [counter.number(step) for step in [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4)]] == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_counter_counts_on_over_epochs_that_begin_anew() -> None:
    counter = StepCounter()
    steps = [(epoch, iteration) for epoch in range(3) for iteration in range(4)]
    assert [counter.number(step) for step in steps] == list(range(12))


def test_counter_goes_back_with_an_epoch() -> None:
    counter = StepCounter()
    for step in [(0, 0), (0, 9), (1, 0), (1, 9), (2, 0)]:
        counter.number(step)
    assert counter.number((1, 3)) == 13


def test_counter_gives_names_and_summaries_the_step_before_them() -> None:
    counter = StepCounter()
    assert counter.number("PARAMETER") == 0
    assert counter.number(5) == 5
    assert counter.number("end") == 5
    assert counter.number(()) == 5
    assert counter.number((0,)) == 5


def test_counter_takes_epochs_when_there_is_nothing_else() -> None:
    counter = StepCounter()
    assert [counter.number((epoch,)) for epoch in (0, 1, 2)] == [0, 1, 2]
