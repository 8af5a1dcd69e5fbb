"""The story in words: what happened, what was found, what was done, what it cost."""

import math

from sonde.heal.decision import Act, Call, describe_action

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
    assert describe_action(act) == [
        "Step 120: the loss was 9 where 3 was expected, and did not come back in 12 steps.",
        "The verdict, 90% sure: Bad. So: so it is.",
        "Back to the state after step 110, and on without 2 samples (train 7 9).",
        "Cost: 22 steps again, 3 s to find out.",
    ]
    assert describe_action(act, would=True)[2].startswith("Would have been done: Back to")


def test_every_kind_has_its_words() -> None:
    words = {
        "go back": "Back to the beginning, and on as it was.",
        "lower rate": "Back to the beginning; the learning rate is at most 0.005 until step 160.",
        "stop": "The run ended. Do it.",
    }
    for kind, expected in words.items():
        # a literal, from a parameter
        act = Act(kind=kind, call=CALL, why="so", rate=0.005, rate_until=160, advice=("Do it.",))  # type: ignore[arg-type]
        assert describe_action(act)[1:3] == ["No verdict: so.", expected]
    batch = Act(kind="skip batch", call=CALL, why="so", checkpoint=5, skip={"a": list(range(20))})
    assert (
        describe_action(batch)[2]
        == "Back to the state after step 5, and on without the batch, 20 samples (a 0 1 2 3 4 5 6"
        " 7 …)."
    )


def test_a_loss_that_is_not_finite_is_told_as_that() -> None:
    call = Call(kind="nonfinite", step=7, first_step=7, value=math.nan, baseline=math.nan)
    assert (
        describe_action(Act(kind="stop", call=call, why="so"))[0]
        == "Step 7: the loss was not finite."
    )
