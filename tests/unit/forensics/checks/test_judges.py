"""Every judge, on both sides of its thresholds."""

import pytest
from judge_cases import CASES

from sonde.forensics.checks import (
    CHECKS,
    influence,
    start_loss,
)
from sonde.forensics.checks.check_rule import (
    Check,
    Status,
    cannot_tell,
    result_of,
)


@pytest.mark.parametrize(("check", "measured", "status"), CASES)
def test_a_judge_comes_to_what_its_numbers_say(
    check: Check, measured: object, status: Status
) -> None:
    result = result_of(check, measured)

    assert result.status == status, result.text
    assert result.text
    assert bool(result.advice) == (status == "wrong")


def test_every_check_is_judged_here_and_has_its_own_name() -> None:
    names = [check.name for check in CHECKS]

    assert {check.name for check, _, _ in CASES} == set(names)
    assert len(set(names)) == len(names)


def test_what_could_not_be_measured_is_told_in_place_of_a_judgement() -> None:
    result = result_of(start_loss.CHECK, cannot_tell("because"))

    assert (result.status, result.text) == ("cannot tell", "because")


@pytest.mark.parametrize(
    ("kind", "is_next_token", "are_rows_known", "status"),
    [
        ("BatchNorm1d", False, True, "fine"),
        ("MultiheadAttention", False, True, "wrong"),
        ("LSTM", False, False, "cannot tell"),
        ("Block", True, True, "wrong"),
        ("SparseMoeBlock", True, True, "cannot tell"),
    ],
)
def test_rows_that_move_one_another_are_wrong_only_where_nothing_is_meant_to(
    kind: str, is_next_token: bool, are_rows_known: bool, status: Status
) -> None:
    measured = influence.Influence(
        num_compared=7,
        num_moved=7,
        largest=0.5,
        module="layer",
        kind=kind,
        is_next_token=is_next_token,
        are_rows_known=are_rows_known,
    )

    assert result_of(influence.ROWS, measured).status == status
