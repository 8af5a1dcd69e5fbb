"""The story in words: what happened, what was found, what was done, what it cost."""

import math

from sonde.heal.decision import Act, Call, told_of_act

CALL = Call(kind="spike", step=132, first_step=120, value=9.0, baseline=3.0)


def test_a_chapter_says_what_happened_was_found_done_and_spent() -> None:
    act = Act(kind="skip samples", call=CALL, why="so it is", checkpoint=110, skip={"train": [7, 9]}, title="Bad.", confidence=0.9, seconds=3.2)  # fmt: skip
    assert told_of_act(act) == [
        "Update 120: the loss was 9 where 3 was expected, and did not come back in 12 updates.",
        "The verdict, 90% sure: Bad. So: so it is.",
        "Back to the state after update 110, and on without 2 samples (train 7 9).",
        "Cost: 22 updates again, 3 s to find out.",
    ]
    assert told_of_act(act, would=True)[2].startswith("Would have been done: Back to")


def test_every_kind_has_its_words() -> None:
    words = {
        "go back": "Back to the beginning, and on as it was.",
        "lower rate": "Back to the beginning; the learning rate is at most 0.005 until update 160.",
        "stop": "The run ended. Do it.",
    }
    for kind, expected in words.items():
        act = Act(kind=kind, call=CALL, why="so", rate=0.005, rate_until=160, advice=("Do it.",))  # type: ignore[arg-type]  # a literal, from a parameter
        assert told_of_act(act)[1:3] == ["No verdict: so.", expected]
    batch = Act(kind="skip batch", call=CALL, why="so", checkpoint=5, skip={"a": list(range(20))})
    assert (
        told_of_act(batch)[2]
        == "Back to the state after update 5, and on without the batch, 20 samples (a 0 1 2 3 4 5 6 7 …)."
    )


def test_a_loss_that_is_not_finite_is_told_as_that() -> None:
    call = Call(kind="nonfinite", step=7, first_step=7, value=math.nan, baseline=math.nan)
    assert told_of_act(Act(kind="stop", call=call, why="so"))[0] == "Update 7: the loss was not finite."
