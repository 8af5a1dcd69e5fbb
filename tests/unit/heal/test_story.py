"""The story in words: what happened, what was found, what was done, what it cost."""

import math

import pytest

from sonde.heal.decision import Act, Call, Kind, describe_action

CALL = Call(kind="spike", step=132, first_step=120, value=9.0, baseline=3.0)


def test_a_chapter_says_what_happened_was_found_done_and_spent() -> None:
    act = Act(
        kind="skip samples",
        call=CALL,
        why="so it is",
        checkpoint=110,
        skip={"train": [7, 9]},
        title="Bad.",
        confidence=0.9,
        seconds=3.2,
    )
    happened, found, done, cost = describe_action(act)
    assert_says(happened, "Step 120", "9", "3", "12 steps")
    assert_says(found, "90%", "Bad.", "So it is.")
    assert_says(done, "after step 110", "2 samples", "train 7 9")
    assert_says(cost, "22 steps repeated", "3 s")
    assert describe_action(act, would=True)[2] == f"Would have r{done[1:]}"


def assert_says(sentence: str, *facts: str) -> None:
    assert [fact for fact in facts if fact not in sentence] == [], sentence


@pytest.mark.parametrize(
    ("kind", "facts"),
    [
        ("go back", ["the beginning"]),
        ("lower rate", ["the beginning", "0.005", "step 160"]),
        ("stop", ["Ended", "Do it."]),
    ],
)
def test_every_kind_has_its_words(kind: Kind, facts: list[str]) -> None:
    act = Act(kind=kind, call=CALL, why="so", rate=0.005, rate_until=160, advice=("Do it.",))
    _, found, done, *_ = describe_action(act)
    assert_says(found, "No verdict", "So.")
    assert_says(done, *facts)


@pytest.mark.parametrize(("num", "shown"), [(8, "a 0 1 2 3 4 5 6 7)"), (9, "a 0 1 2 3 4 5 6 7 …)")])
def test_of_a_batch_only_the_first_samples_are_named(num: int, shown: str) -> None:
    skip = {"a": list(range(num))}
    act = Act(kind="skip batch", call=CALL, why="so", checkpoint=5, skip=skip)
    assert_says(describe_action(act)[2], "the batch", f"{num} samples", shown)


def test_a_loss_that_is_not_finite_is_told_as_that() -> None:
    call = Call(kind="nonfinite", step=7, first_step=7, value=math.nan, baseline=math.nan)
    happened = describe_action(Act(kind="stop", call=call, why="so"))[0]
    assert_says(happened, "Step 7", "not finite")
    assert "nan" not in happened.lower()
