"""The judges of micro-batches, packed documents, scaling, order and evaluation, on both sides of
their thresholds.
"""

import math
from dataclasses import replace

import pytest

from sonde.forensics.checks import (
    accumulation,
    data_order,
    influence,
    label_shift,
    scaling,
    step_habits,
)
from sonde.forensics.checks.check_rule import Check, Status, result_of

MOVED = influence.Influence(
    num_compared=10, num_moved=4, largest=0.2, module="blocks.0", kind="Attention"
)
STILL = influence.Influence(num_compared=10)
NOT_NEXT = label_shift.LabelShift(has_tokens=True, shares=((1, 0.02),), num_targets=900)
AGAIN = data_order.RepeatedRows(num_batches=8, num_rows=64, row_length=9, has_classes=True)
CASES: list[tuple[Check, object, Status]] = [
    (
        accumulation.CHECK,
        accumulation.Accumulation(
            num_micro=2, weights=(0.5, 0.5), counts=(10, 15), ignores_labels=True
        ),
        "wrong",
    ),
    (
        accumulation.CHECK,
        accumulation.Accumulation(
            num_micro=2, weights=(0.5, 0.5), counts=(10, 14), ignores_labels=True
        ),
        "fine",
    ),
    (
        accumulation.CHECK,
        accumulation.Accumulation(num_micro=2, weights=(0.5, 0.5), counts=(10, 40)),
        "fine",
    ),
    (
        accumulation.CHECK,
        accumulation.Accumulation(num_micro=2, weights=(0.5, 0.5), is_cleared=True),
        "wrong",
    ),
    (
        accumulation.CHECK,
        accumulation.Accumulation(num_micro=2, weights=(1.0, 1.0), are_alike=False),
        "does not apply",
    ),
    (
        data_order.LABELS,
        data_order.LabelOrder(is_classification=False, num_rows=64, num_values=60, is_sorted=True),
        "wrong",
    ),
    (
        data_order.LABELS,
        data_order.LabelOrder(is_classification=False, num_rows=64, num_values=8, is_sorted=True),
        "fine",
    ),
    (
        data_order.LABELS,
        data_order.LabelOrder(is_classification=False, num_rows=64, num_values=60, is_sorted=False),
        "fine",
    ),
    (
        accumulation.CHECK,
        accumulation.Accumulation(num_micro=4, norms_between=(1.0, 0.05)),
        "wrong",
    ),
    (
        accumulation.CHECK,
        accumulation.Accumulation(num_micro=4, norms_between=(1.0, 0.05), are_alike=False),
        "cannot tell",
    ),
    (
        accumulation.CHECK,
        accumulation.Accumulation(num_micro=2, weights=(0.75 / 2, 0.25 / 2), counts=(30, 10)),
        "wrong",
    ),
    (
        label_shift.CHECK,
        label_shift.LabelShift(has_tokens=True, shares=((1, 1.0),), is_in_other_order=True),
        "wrong",
    ),
    (
        scaling.BYPASSED,
        scaling.ScalerBypassed(scale=4096.0, is_loss_scaled=False),
        "does not apply",
    ),
    (scaling.BYPASSED, scaling.ScalerBypassed(scale=4096.0, divides_itself=True), "does not apply"),
    (
        scaling.BYPASSED,
        scaling.ScalerBypassed(scale=4096.0, norm_after_backward=math.inf, norm_at_step=0.0),
        "cannot tell",
    ),
    (
        scaling.BYPASSED,
        scaling.ScalerBypassed(scale=4096.0, norm_after_backward=8192.0, norm_at_step=2.0),
        "fine",
    ),
    (
        scaling.BYPASSED,
        scaling.ScalerBypassed(scale=4096.0, norm_after_backward=8192.0, norm_at_step=8192.0),
        "wrong",
    ),
    (
        scaling.BYPASSED,
        scaling.ScalerBypassed(scale=2.0, norm_after_backward=8.0, norm_at_step=8.0),
        "cannot tell",
    ),
    (
        data_order.REPEATED,
        data_order.RepeatedRows(num_batches=8, num_rows=64, row_length=16, num_twice_in_batch=6),
        "fine",
    ),
    (
        data_order.REPEATED,
        data_order.RepeatedRows(num_batches=8, num_rows=64, row_length=16, num_twice_in_batch=7),
        "wrong",
    ),
    (
        data_order.REPEATED,
        data_order.RepeatedRows(num_batches=8, num_rows=64, row_length=2, num_twice_in_batch=40),
        "fine",
    ),
    (
        data_order.ORDER,
        data_order.RowOrder(lengths=(3, 3, 4, 5, 6, 7, 8)),
        "wrong",
    ),
    (data_order.ORDER, data_order.RowOrder(lengths=(8, 7, 6, 5, 4, 3)), "cannot tell"),
    (data_order.ORDER, data_order.RowOrder(lengths=(3, 8, 4, 5, 6, 7)), "fine"),
    (data_order.ORDER, data_order.RowOrder(lengths=(3, 4, 5)), "does not apply"),
    (data_order.ORDER, data_order.RowOrder(num_before_again=3), "cannot tell"),
    (data_order.ORDER, data_order.RowOrder(sorted_ids=(*range(16),)), "wrong"),
    (data_order.ORDER, data_order.RowOrder(sorted_ids=(1,) * 30 + (2,)), "fine"),
    (data_order.ORDER, data_order.RowOrder(sorted_ids=(1, 2, 3)), "fine"),
    (data_order.ORDER, data_order.RowOrder(numbers=tuple(range(8, 24))), "cannot tell"),
    (data_order.ORDER, data_order.RowOrder(numbers=tuple(range(15))), "does not apply"),
    (data_order.ORDER, data_order.RowOrder(numbers=(3, *range(16))), "does not apply"),
    (
        data_order.REPEATED,
        data_order.RepeatedRows(
            num_batches=2,
            num_rows=16,
            row_length=9,
            num_twice_in_batch=8,
            is_contrastive=True,
        ),
        "cannot tell",
    ),
    (data_order.REPEATED, replace(AGAIN, num_again_before_new=2), "wrong"),
    (data_order.REPEATED, replace(AGAIN, num_again_before_new=1), "fine"),
    (data_order.REPEATED, replace(AGAIN, num_again_before_new=2, has_classes=False), "cannot tell"),
    (influence.DOCUMENTS, replace(MOVED, has_boundaries=False), "fine"),
    (influence.DOCUMENTS, replace(STILL, ignores_positions=True), "wrong"),
    (influence.DOCUMENTS, replace(STILL, positions_go_on=True), "fine"),
    (
        label_shift.CHECK,
        replace(NOT_NEXT, of_other_rows=0.8),
        "wrong",
    ),
    (
        label_shift.CHECK,
        replace(NOT_NEXT, of_other_rows=0.7),
        "does not apply",
    ),
    (label_shift.CHECK, replace(NOT_NEXT, in_own_row=0.36, in_next_row=0.3), "cannot tell"),
    (label_shift.CHECK, replace(NOT_NEXT, in_own_row=0.37, in_next_row=0.3), "does not apply"),
    (step_habits.BUFFERS, step_habits.EvaluationBuffers(num_buffers=0), "does not apply"),
    (step_habits.BUFFERS, step_habits.EvaluationBuffers(num_buffers=2), "fine"),
    (step_habits.BUFFERS, step_habits.EvaluationBuffers(num_buffers=2, changed=("a",)), "wrong"),
    (
        step_habits.BUFFERS,
        step_habits.EvaluationBuffers(num_buffers=2, changed=None),
        "cannot tell",
    ),
]


@pytest.mark.parametrize(("check", "measured", "status"), CASES)
def test_a_judge_decides(check: Check, measured: object, status: Status) -> None:
    result = result_of(check, measured)

    assert result.status == status
    assert bool(result.advice) == (status == "wrong")
