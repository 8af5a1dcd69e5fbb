"""A mistake that only follows from another one is not told as a mistake."""

import pytest

from sonde.forensics.checks import connection, one_batch
from sonde.forensics.checks.check_rule import (
    Check,
    CheckResult,
    Status,
    fine,
    result_of,
    without_consequences,
    wrong,
)


def result(check: Check, status: Status) -> CheckResult:
    return result_of(check, wrong("So it is.") if status == "wrong" else fine("So it is."))


@pytest.mark.parametrize(("of_reach", "expected"), [("wrong", "cannot tell"), ("fine", "wrong")])
def test_a_batch_cannot_be_learnt_by_heart_without_gradients(
    of_reach: Status, expected: Status
) -> None:
    checks = (connection.REACH, one_batch.CHECK)
    results = [result(connection.REACH, of_reach), result(one_batch.CHECK, "wrong")]
    reach, by_heart = without_consequences(checks, results)
    assert (reach.status, by_heart.status) == (of_reach, expected)
    assert "So it is." in by_heart.text
    assert bool(by_heart.advice) == (expected == "wrong")


@pytest.mark.parametrize(("has_scaler", "expected"), [(True, "cannot tell"), (False, "wrong")])
def test_a_loss_that_stays_is_no_mistake_where_a_scaler_skips(
    has_scaler: bool, expected: Status
) -> None:
    measured = one_batch.OneBatch(losses=(2.0,) * 9, has_scaler=has_scaler)
    assert result_of(one_batch.CHECK, measured).status == expected
