"""What each check says to what was measured, on both sides of its limits."""

import math
from dataclasses import replace

from sonde.forensics.checks import (
    accumulation,
    batch_weight,
    connection,
    counted_positions,
    data_order,
    determinism,
    end_of_text,
    influence,
    label_shift,
    loss_inputs,
    one_batch,
    overflow,
    precision,
    scaling,
    stale_casts,
    start_loss,
    step_habits,
)
from sonde.forensics.checks.check_rule import (
    Check,
    Status,
)

NEXT = ((0, 0.02), (1, 1.0), (2, 0.01))
SAME = ((0, 1.0), (1, 0.02), (2, 0.01))
TWICE = ((0, 0.02), (1, 0.03), (2, 1.0))
REPEATING = ((0, 0.9), (1, 0.9), (2, 1.0))
MOVED = influence.Influence(
    num_compared=10, num_moved=4, largest=0.2, module="blocks.0", kind="Attention"
)
STILL = influence.Influence(num_compared=10)
STEEP = overflow.HalfRange(is_float16=True, largest=2.0, largest_gradient=40000.0)
ROUNDED = influence.Influence(num_compared=10, num_moved=4, largest=1e-7, module="a", kind="B")
CASES: list[tuple[Check, object, Status]] = [
    (start_loss.CHECK, start_loss.StartLoss(loss=4.2, num_classes=61, label_entropy=4), "fine"),
    (start_loss.CHECK, start_loss.StartLoss(loss=10.2, num_classes=61, label_entropy=4), "fine"),
    (start_loss.CHECK, start_loss.StartLoss(loss=10.3, num_classes=61, label_entropy=4), "wrong"),
    (start_loss.CHECK, start_loss.StartLoss(loss=0.4, num_classes=61, label_entropy=4), "fine"),
    (start_loss.CHECK, start_loss.StartLoss(loss=math.nan, num_classes=61), "wrong"),
    (start_loss.CHECK, start_loss.StartLoss(loss=None), "does not apply"),
    (start_loss.CHECK, start_loss.StartLoss(loss=None, squared_error=9.0, variance=1.0), "fine"),
    (start_loss.CHECK, start_loss.StartLoss(loss=None, squared_error=math.inf), "wrong"),
    (loss_inputs.CHECK, loss_inputs.LossInputs(function="cross_entropy"), "fine"),
    (
        loss_inputs.CHECK,
        loss_inputs.LossInputs(function="cross_entropy", is_normalised=True),
        "wrong",
    ),
    (
        loss_inputs.CHECK,
        loss_inputs.LossInputs(
            function="mse_loss", shape=(8, 1), target_shape=(8,), broadcasts=True
        ),
        "wrong",
    ),
    (loss_inputs.CHECK, loss_inputs.LossInputs(function="nll_loss", lacks_logarithm=True), "wrong"),
    (loss_inputs.CHECK, loss_inputs.LossInputs(function=None), "does not apply"),
    (
        loss_inputs.CHECK,
        loss_inputs.LossInputs(
            function=loss_inputs.DIFFERENCE, shape=(8, 1), target_shape=(8,), broadcasts=True
        ),
        "wrong",
    ),
    (
        counted_positions.COUNTED,
        counted_positions.CountedPositions(
            num_rows=10, num_positions=100, num_counted=15, num_rows_without=5
        ),
        "fine",
    ),
    (
        counted_positions.COUNTED,
        counted_positions.CountedPositions(
            num_rows=10, num_positions=100, num_counted=15, num_rows_without=6
        ),
        "wrong",
    ),
    (
        counted_positions.COUNTED,
        counted_positions.CountedPositions(
            num_rows=20,
            num_positions=200,
            num_counted=90,
            num_rows_without=10,
            num_batches=2,
            num_batches_without=1,
        ),
        "wrong",
    ),
    (
        counted_positions.PADDING,
        counted_positions.PaddingInLoss(num_padding=40, num_counted=1000, num_counted_padding=10),
        "fine",
    ),
    (
        counted_positions.PADDING,
        counted_positions.PaddingInLoss(num_padding=40, num_counted=1000, num_counted_padding=11),
        "wrong",
    ),
    (
        counted_positions.PADDING,
        counted_positions.PaddingInLoss(num_padding=0, num_counted=9, num_counted_padding=0),
        "does not apply",
    ),
    (end_of_text.CHECK, end_of_text.EndOfText(token=None), "does not apply"),
    (end_of_text.CHECK, end_of_text.EndOfText(token=2, num_seen=3), "does not apply"),
    (end_of_text.CHECK, end_of_text.EndOfText(token=2, num_seen=4), "wrong"),
    (end_of_text.CHECK, end_of_text.EndOfText(token=2, num_seen=4, num_counted=1), "fine"),
    (label_shift.CHECK, label_shift.LabelShift(has_tokens=False), "does not apply"),
    (label_shift.CHECK, label_shift.LabelShift(has_tokens=True, shares=NEXT), "fine"),
    (
        label_shift.CHECK,
        label_shift.LabelShift(has_tokens=True, shares=SAME, is_causal=True),
        "wrong",
    ),
    (
        label_shift.CHECK,
        label_shift.LabelShift(has_tokens=True, shares=SAME, is_causal=False),
        "cannot tell",
    ),
    (
        label_shift.CHECK,
        label_shift.LabelShift(has_tokens=True, shares=TWICE, is_causal=True),
        "wrong",
    ),
    (
        label_shift.CHECK,
        label_shift.LabelShift(has_tokens=True, shares=TWICE, is_causal=True, offset=1),
        "fine",
    ),
    (
        label_shift.CHECK,
        label_shift.LabelShift(has_tokens=True, shares=REPEATING, is_causal=True),
        "cannot tell",
    ),
    (
        label_shift.CHECK,
        label_shift.LabelShift(has_tokens=True, shares=((1, 0.1), (0, 0.12)), is_causal=False),
        "does not apply",
    ),
    (influence.CAUSALITY, STILL, "fine"),
    (influence.CAUSALITY, MOVED, "wrong"),
    (influence.CAUSALITY, ROUNDED, "cannot tell"),
    (influence.CAUSALITY, influence.Influence(unfit="no"), "does not apply"),
    (influence.CAUSALITY, influence.Influence(unknown="no"), "cannot tell"),
    (influence.PADDING, STILL, "fine"),
    (influence.PADDING, MOVED, "wrong"),
    (influence.DOCUMENTS, STILL, "fine"),
    (influence.DOCUMENTS, MOVED, "wrong"),
    (influence.ROWS, STILL, "fine"),
    (influence.ROWS, MOVED, "cannot tell"),
    (connection.REACH, connection.GradientReach(num_parameters=4), "fine"),
    (
        connection.REACH,
        connection.GradientReach(num_parameters=4, without=("a",), without_but_used=()),
        "fine",
    ),
    (
        connection.REACH,
        connection.GradientReach(num_parameters=4, without=("a",), without_but_used=("a",)),
        "wrong",
    ),
    (
        connection.REACH,
        connection.GradientReach(num_parameters=4, without=("a",)),
        "cannot tell",
    ),
    (connection.REACH, connection.GradientReach(num_parameters=4, all_zero=True), "wrong"),
    (
        connection.REACH,
        connection.GradientReach(num_parameters=4, always_zero=("a", "b"), share_always_zero=0.5),
        "wrong",
    ),
    (
        connection.REACH,
        connection.GradientReach(num_parameters=4, always_zero=("a", "b"), share_always_zero=0.4),
        "fine",
    ),
    (
        connection.REACH,
        connection.GradientReach(num_parameters=4, always_zero=("a",), share_always_zero=0.9),
        "fine",
    ),
    (
        connection.REACH,
        connection.GradientReach(
            num_parameters=2, always_zero=("a",), share_always_zero=0.5, does_zero_count=False
        ),
        "cannot tell",
    ),
    (
        connection.REACH,
        connection.GradientReach(num_parameters=4, all_zero=True, norm_after_backward=0.0),
        "wrong",
    ),
    (
        connection.REACH,
        connection.GradientReach(num_parameters=4, all_zero=True, norm_after_backward=0.5),
        "wrong",
    ),
    (connection.MEMBERS, connection.OptimizerMembers(num_parameters=9, num_held=9), "fine"),
    (connection.MEMBERS, connection.OptimizerMembers(num_parameters=9, num_held=4), "fine"),
    (connection.MEMBERS, connection.OptimizerMembers(num_parameters=9, num_held=0), "wrong"),
    (
        connection.MEMBERS,
        connection.OptimizerMembers(num_parameters=9, num_held=4, with_gradient_not_held=("a",)),
        "wrong",
    ),
    (connection.MOVE, connection.WeightsMove(num_parameters=3), "fine"),
    (connection.MOVE, connection.WeightsMove(num_parameters=3, unmoved=("a",)), "wrong"),
    (connection.MOVE, connection.WeightsMove(num_parameters=3, frozen_but_moved=("a",)), "wrong"),
    (connection.MOVE, connection.WeightsMove(num_parameters=3, has_rate=False), "cannot tell"),
    (connection.TIED, connection.TiedWeights(), "does not apply"),
    (connection.TIED, connection.TiedWeights(tied=("a and b",)), "fine"),
    (connection.TIED, connection.TiedWeights(only_equal=("a and b",)), "wrong"),
    (connection.UNREGISTERED, connection.Unregistered(), "fine"),
    (connection.UNREGISTERED, connection.Unregistered(hidden=("a",)), "wrong"),
    (step_habits.LEFT_OVER, step_habits.LeftOver(num_updates=7, num_left=0), "fine"),
    (step_habits.LEFT_OVER, step_habits.LeftOver(num_updates=7, num_left=1), "wrong"),
    (step_habits.LEFT_OVER, step_habits.LeftOver(num_updates=0, num_left=0), "cannot tell"),
    (
        step_habits.MODE,
        step_habits.TrainMode(is_training=True, num_dropouts=0, num_norms=1),
        "fine",
    ),
    (
        step_habits.MODE,
        step_habits.TrainMode(is_training=True, num_dropouts=2, num_norms=0),
        "cannot tell",
    ),
    (
        step_habits.MODE,
        step_habits.TrainMode(is_training=False, num_dropouts=0, num_norms=0),
        "fine",
    ),
    (
        step_habits.MODE,
        step_habits.TrainMode(is_training=False, num_dropouts=0, num_norms=1),
        "wrong",
    ),
    (step_habits.RATES, step_habits.Rates(rates=(0.0, 1e-6)), "fine"),
    (step_habits.RATES, step_habits.Rates(rates=(0.0, 0.0)), "wrong"),
    (step_habits.RATES, step_habits.Rates(rates=(0.5,), falls_if_divided_by=30), "wrong"),
    (step_habits.RATES, step_habits.Rates(rates=(0.0, 1e-11, 2e-11), planned=1e-5), "wrong"),
    (step_habits.RATES, step_habits.Rates(rates=(0.0, 1e-8, 2e-8), planned=1e-4), "fine"),
    (step_habits.RATES, step_habits.Rates(rates=(3e-4, 3e-4), planned=3e-4), "fine"),
    (step_habits.RATES, step_habits.Rates(rates=(1e-3, -1e-3)), "wrong"),
    (step_habits.RATES, step_habits.Rates(rates=(math.nan,)), "does not apply"),
    (
        step_habits.DROPOUT,
        step_habits.Dropout(num_called=2, is_training=True, acts=True),
        "fine",
    ),
    (
        step_habits.DROPOUT,
        step_habits.Dropout(num_called=2, is_training=True, acts=False),
        "wrong",
    ),
    (
        step_habits.DROPOUT,
        step_habits.Dropout(num_called=0, is_training=True, acts=None),
        "does not apply",
    ),
    (
        step_habits.DROPOUT,
        step_habits.Dropout(
            num_called=2, is_training=True, acts=True, acts_in_evaluation=("F.dropout",)
        ),
        "wrong",
    ),
    (accumulation.CHECK, accumulation.Accumulation(num_micro=1), "does not apply"),
    (
        accumulation.CHECK,
        accumulation.Accumulation(num_micro=4, weights=(0.25,) * 4, counts=(10,) * 4),
        "fine",
    ),
    (
        accumulation.CHECK,
        accumulation.Accumulation(num_micro=2, weights=(0.2, 0.8), counts=(10, 40)),
        "fine",
    ),
    (
        accumulation.CHECK,
        accumulation.Accumulation(num_micro=4, weights=(1.0,) * 4, counts=(10,) * 4),
        "wrong",
    ),
    (
        accumulation.CHECK,
        accumulation.Accumulation(num_micro=4, weights=(1 / 16,) * 4, counts=(10,) * 4),
        "wrong",
    ),
    (step_habits.BUFFERS, step_habits.EvaluationBuffers(num_buffers=2), "fine"),
    (data_order.ORDER, data_order.RowOrder(lengths=(3, 4, 5, 6, 7, 8)), "wrong"),
    (
        accumulation.CHECK,
        accumulation.Accumulation(num_micro=4, weights=(0.4,) * 4, counts=(10,) * 4),
        "cannot tell",
    ),
    (one_batch.CHECK, one_batch.OneBatch(losses=(3.0, 2.9, 2.8, 2.7, 2.6, 2.5)), "fine"),
    (one_batch.CHECK, one_batch.OneBatch(losses=(3.0, 3.3, 3.4, 3.5, 3.6, 3.7)), "wrong"),
    (one_batch.CHECK, one_batch.OneBatch(losses=(3.0, 3.1, 3.1, 3.1, 3.1, 3.1)), "cannot tell"),
    (
        one_batch.CHECK,
        one_batch.OneBatch(
            losses=(3.0, 4.0, 5.0, 6.0, 7.0, 8.0), losses_at_lower_rate=(3.0, 2.9, 2.8, 2.7, 2.6)
        ),
        "cannot tell",
    ),
    (one_batch.CHECK, one_batch.OneBatch(losses=(3.0,) * 6), "wrong"),
    (one_batch.CHECK, one_batch.OneBatch(losses=(3.0,) * 6, largest_rate=0.0), "cannot tell"),
    (one_batch.CHECK, one_batch.OneBatch(losses=(3.0, 2.0, math.nan, 1, 1, 1)), "wrong"),
    (one_batch.CHECK, one_batch.OneBatch(losses=(), num_optimizers=2), "does not apply"),
    (precision.PRECISION, precision.Precision(dtype=None), "does not apply"),
    (
        precision.PRECISION,
        precision.Precision(dtype="bfloat16", loss=4.01, float32_loss=4.0, cosine=0.99),
        "fine",
    ),
    (
        precision.PRECISION,
        precision.Precision(dtype="bfloat16", loss=4.3, float32_loss=4.0, cosine=0.99),
        "wrong",
    ),
    (
        precision.PRECISION,
        precision.Precision(dtype="float16", loss=4.0, float32_loss=4.0, cosine=0.5),
        "wrong",
    ),
    (overflow.CHECK, overflow.HalfRange(is_float16=False), "does not apply"),
    (overflow.CHECK, overflow.HalfRange(is_float16=True), "cannot tell"),
    (overflow.CHECK, overflow.HalfRange(is_float16=True, largest=16000.0), "fine"),
    (overflow.CHECK, overflow.HalfRange(is_float16=True, largest=17000.0), "wrong"),
    (overflow.CHECK, overflow.HalfRange(is_float16=True, largest=math.inf), "wrong"),
    (overflow.CHECK, replace(STEEP, has_scaler=False), "wrong"),
    (overflow.CHECK, replace(STEEP, has_scaler=True), "fine"),
    (precision.LOST, precision.LostUpdates(dtype=None), "does not apply"),
    (
        precision.LOST,
        precision.LostUpdates(dtype="bfloat16", num_weights=100, num_unchanged=49),
        "fine",
    ),
    (
        precision.LOST,
        precision.LostUpdates(dtype="bfloat16", num_weights=100, num_unchanged=50),
        "wrong",
    ),
    (scaling.CLIPPED, scaling.ClippedScaled(scale=None), "does not apply"),
    (precision.EPSILON, precision.Epsilon(epsilon=None), "does not apply"),
    (precision.EPSILON, precision.Epsilon(epsilon=1e-8), "fine"),
    (precision.EPSILON, precision.Epsilon(epsilon=1e-8, dtype="float16", is_zero=True), "wrong"),
    (
        scaling.CLIPPED,
        scaling.ClippedScaled(scale=65536.0, norm_at_clipping=30.0, norm_at_step=1.0),
        "fine",
    ),
    (
        scaling.CLIPPED,
        scaling.ClippedScaled(scale=65536.0, norm_at_clipping=65536.0, norm_at_step=1e-5),
        "wrong",
    ),
    (scaling.BYPASSED, scaling.ScalerBypassed(scale=None), "does not apply"),
    (stale_casts.CHECK, stale_casts.StaleCasts(num_looks=0), "does not apply"),
    (stale_casts.CHECK, stale_casts.StaleCasts(num_looks=8), "fine"),
    (stale_casts.CHECK, stale_casts.StaleCasts(num_looks=8, num_stale=1), "wrong"),
    (determinism.CHECK, determinism.Determinism(first=1.0, second=1.0), "fine"),
    (determinism.CHECK, determinism.Determinism(first=1.0, second=1.1), "cannot tell"),
    (determinism.CHECK, determinism.Determinism(first=None, second=None), "cannot tell"),
    (
        data_order.REPEATED,
        data_order.RepeatedRows(
            num_batches=8, num_rows=64, row_length=16, num_same_batches=7, is_same_memory=False
        ),
        "wrong",
    ),
    (
        data_order.REPEATED,
        data_order.RepeatedRows(
            num_batches=8, num_rows=64, row_length=16, num_same_batches=7, is_same_memory=True
        ),
        "cannot tell",
    ),
    (data_order.LABELS, data_order.LabelOrder(is_classification=False), "does not apply"),
    (
        data_order.LABELS,
        data_order.LabelOrder(
            is_classification=True,
            num_classes=10,
            classes_of_batches=(1, 1),
            num_rows=64,
            num_seen=1,
            is_sorted=True,
        ),
        "wrong",
    ),
    (
        data_order.LABELS,
        data_order.LabelOrder(
            is_classification=True,
            num_classes=2,
            classes_of_batches=(1, 1),
            num_rows=64,
            num_seen=1,
            is_sorted=True,
        ),
        "cannot tell",
    ),
    (
        data_order.LABELS,
        data_order.LabelOrder(
            is_classification=True,
            num_classes=10,
            classes_of_batches=(1, 1),
            num_rows=32,
            num_seen=2,
        ),
        "wrong",
    ),
    (
        data_order.LABELS,
        data_order.LabelOrder(
            is_classification=True,
            num_classes=10,
            classes_of_batches=(7, 6),
            num_rows=32,
            num_seen=8,
        ),
        "fine",
    ),
    (batch_weight.CHECK, batch_weight.BatchWeight(unfit="because"), "does not apply"),
    (
        batch_weight.CHECK,
        batch_weight.BatchWeight(unfit="because", counted=(0.5, 0.56)),
        "wrong",
    ),
    (
        batch_weight.CHECK,
        batch_weight.BatchWeight(unfit="because", counted=(0.5, 0.54)),
        "does not apply",
    ),
    (batch_weight.CHECK, batch_weight.BatchWeight(unknown="because"), "cannot tell"),
    (
        batch_weight.CHECK,
        batch_weight.BatchWeight(num_rows=(4, 40), loss=2.0, of_halves=(1.8, 2.3)),
        "fine",
    ),
    (
        batch_weight.CHECK,
        batch_weight.BatchWeight(num_rows=(10, 14), loss=4.0, of_halves=(1.8, 2.3)),
        "fine",
    ),
    (
        batch_weight.CHECK,
        batch_weight.BatchWeight(num_rows=(10, 15), loss=4.0, of_halves=(1.8, 2.3)),
        "wrong",
    ),
    (
        batch_weight.CHECK,
        batch_weight.BatchWeight(num_rows=(10, 15), loss=3.0, of_halves=(1.8, 2.3)),
        "cannot tell",
    ),
    (
        influence.PADDING,
        replace(MOVED, padding_known_by=influence.BY_EMBEDDING),
        "wrong",
    ),
    (
        influence.PADDING,
        replace(MOVED, padding_known_by=influence.BY_EMBEDDING, module="pool", kind="Mean"),
        "cannot tell",
    ),
    (
        end_of_text.CHECK,
        end_of_text.EndOfText(token=2, num_answers=16),
        "wrong",
    ),
    (
        end_of_text.CHECK,
        end_of_text.EndOfText(token=2, num_answers=16, is_of_configuration=True),
        "cannot tell",
    ),
    (end_of_text.CHECK, end_of_text.EndOfText(token=2, num_answers=15), "does not apply"),
    (data_order.RANKS, data_order.RankRows(num_ranks=1), "does not apply"),
    (data_order.RANKS, data_order.RankRows(num_ranks=2, num_rows=64, num_shared=6), "fine"),
    (data_order.RANKS, data_order.RankRows(num_ranks=2, num_rows=64, num_shared=7), "wrong"),
    (
        data_order.RANKS,
        data_order.RankRows(num_ranks=2, num_rows=64, num_shared=64, shares_work=False),
        "does not apply",
    ),
]
