"""What the judge concludes at the scene of an event."""

import math
from dataclasses import replace

import pytest

from sonde.forensics.broken_numbers import BrokenNumbers
from sonde.forensics.judge import judge_scene
from sonde.forensics.scene_evidence import SceneEvidence, SceneRow
from sonde.forensics.verdict import UNKNOWN, Suspect
from sonde.texts.signs import KINDS, OVER_LONG, Sign


def row(loss: float = 9.0, sign: str = "", *, oddity: str = "", sample: int = 7) -> SceneRow:
    return SceneRow(Suspect(dataset="train", sample=sample, loss=loss), (), Sign(sign, 0.9), oddity)


SPIKE = SceneEvidence(
    step=5,
    own=4.5,
    is_exact=True,
    normal=3.0,
    others=[(3.0, 3.0), (3.1, 3.05), (2.9, 3.0), (3.0, 3.02)],
    rows=[row()],
    row_losses=[9.0, 3.0, 3.1, 3.0],
    row_weights=[10.0] * 4,
    rates=[(4, (0.1,)), (5, (0.1,))],
)
"""One of four rows has a high loss; other batches are normal."""


@pytest.mark.parametrize("kind", [*KINDS, ""])
def test_a_row_is_blamed_for_its_sign_if_that_is_a_cause_and_for_being_hard_otherwise(
    kind: str,
) -> None:
    first, *_ = judge_scene(replace(SPIKE, rows=[row(sign=kind)]))
    assert first.cause == ("hard_sample" if kind in ("", OVER_LONG) else kind)
    assert [suspect.sample for suspect in first.suspects] == [7]


def test_a_hard_sample_is_never_sure_enough_to_be_left_out() -> None:
    first, *_ = judge_scene(SPIKE)
    assert first.cause == "hard_sample"
    assert first.confidence < 0.7
    assert not any("rollback" in advice for advice in first.advice)


def test_no_row_is_blamed_when_other_batches_are_worse_too() -> None:
    worse = replace(SPIKE, others=[(3.0, 4.4)] * 4)
    first, *rest = judge_scene(worse)
    assert first.cause == UNKNOWN
    assert first.bad_checkpoint == 4
    assert not any(cause.suspects for cause in [first, *rest])


def test_no_row_is_blamed_when_the_loss_stays_high_without_it() -> None:
    losses = [9.0, 5.0, 5.1, 5.2]
    high = replace(SPIKE, own=6.1, row_losses=losses)
    assert high.loss_without([0]) == pytest.approx(5.1)
    assert not any(cause.suspects for cause in judge_scene(high))


def test_no_row_is_blamed_when_half_of_the_rows_are_high() -> None:
    high = replace(SPIKE, own=7.0, row_losses=[9.0, 9.1, 9.2, 3.0], rows=[row(9.2)])
    assert not any(cause.suspects for cause in judge_scene(high))


def test_no_row_is_blamed_when_its_loss_was_not_measured() -> None:
    unseen = replace(SPIKE, rows=[], row_losses=(), row_weights=(), row_problem="rows are joined")
    first, *_ = judge_scene(unseen)
    assert first.cause == UNKNOWN
    assert any("rows are joined" in sentence for sentence in first.evidence)


def test_no_row_is_blamed_for_large_gradients_alone() -> None:
    gradients = replace(SPIKE, metric="grad_norm", own=3.0, row_losses=[3.2, 3.0, 3.0, 2.8])
    causes = judge_scene(gradients)
    assert causes[0].cause == UNKNOWN
    assert not any(cause.suspects for cause in causes)


def test_a_rate_that_jumped_explains_a_bad_state_before_anything_else() -> None:
    jumped = replace(
        SPIKE, others=[(3.0, 4.4)] * 4, rates=[(3, (0.1, 0.1)), (4, (0.1, 0.4)), (5, (0.1, 0.4))]
    )
    first, *_ = judge_scene(jumped)
    assert (first.cause, first.setting) == ("learning_rate", "lr")
    unchanged = replace(jumped, rates=[(3, (0.1, 0.1)), (4, (0.1, 0.2)), (5, (0.1, 0.2))])
    assert judge_scene(unchanged)[0].cause == UNKNOWN


def test_odd_values_of_a_row_are_a_cause_of_their_own() -> None:
    odd = replace(SPIKE, rows=[row(oddity="all its values are 0")])
    first, *_ = judge_scene(odd)
    assert first.cause == "odd_values"
    assert any("all its values are 0" in sentence for sentence in first.evidence)


BROKEN = SceneEvidence(step=5, own=math.nan, is_exact=True, broken=BrokenNumbers(num_rows=4))


@pytest.mark.parametrize(
    ("found", "cause"),
    [
        (BrokenNumbers(input_rows=(2,), num_rows=4), "bad_input"),
        (BrokenNumbers(weights=("head.weight",), num_weights=3), "bad_weights"),
        (BrokenNumbers(is_forward=True, module="head", largest=3.0), "bad_operation"),
        (BrokenNumbers(module="head", operation="SqrtBackward0", largest=3.0), "bad_operation"),
        (
            BrokenNumbers(
                is_forward=True, module="head", precision="float16", is_finite_in_float32=True
            ),
            "overflow",
        ),
        (BrokenNumbers(is_forward=True, module="head", largest=1e20), "overflow"),
        (
            BrokenNumbers(
                module="head", precision="float16", is_finite_in_float32=False, largest=9.0
            ),
            "bad_operation",
        ),
    ],
)
def test_numbers_that_break_are_named_by_where_they_break(found: BrokenNumbers, cause: str) -> None:
    first, *_ = judge_scene(replace(BROKEN, broken=found))
    assert first.cause == cause
    assert first.confidence >= 0.7


def test_an_operation_that_fails_for_a_few_rows_names_them() -> None:
    found = BrokenNumbers(is_forward=True, module="head", loss_rows=(1,), num_rows=4, largest=2.0)
    first, *_ = judge_scene(replace(BROKEN, broken=found, rows=[row(math.nan), row(3.0)]))
    assert (first.cause, first.blames) == ("bad_operation", "samples")
    assert [suspect.sample for suspect in first.suspects] == [7]


def test_single_rows_that_stand_out_are_blamed_for_themselves_alone() -> None:
    rows = SceneEvidence(
        step=5, metric="sample", rows=[row(sign="markup")], row_expected=[3.0], row_deviations=[9.0]
    )
    first, *_ = judge_scene(rows)
    assert first.cause == "markup"
    assert any("9.0 deviations" in sentence for sentence in first.evidence)
