"""The checks of `sonde check`: one question each, judged by what an experiment measured.

    measured (recorder/checking)  ->  judge (here)  ->  fine, wrong, does not apply, cannot tell

One file for each check, or for a few that share an experiment. `CHECKS` lists them in the order in
which they are shown; check_report.py shows them. Nothing here needs torch.
"""

from typing import Final

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
from sonde.forensics.checks.check_rule import Check

CHECKS: Final[tuple[Check, ...]] = (
    start_loss.CHECK,
    loss_inputs.CHECK,
    counted_positions.COUNTED,
    counted_positions.PADDING,
    end_of_text.CHECK,
    label_shift.CHECK,
    influence.CAUSALITY,
    influence.PADDING,
    influence.ROWS,
    influence.DOCUMENTS,
    connection.REACH,
    connection.MEMBERS,
    connection.MOVE,
    connection.TIED,
    connection.UNREGISTERED,
    step_habits.LEFT_OVER,
    step_habits.MODE,
    step_habits.DROPOUT,
    step_habits.BUFFERS,
    step_habits.RATES,
    accumulation.CHECK,
    batch_weight.CHECK,
    one_batch.CHECK,
    precision.PRECISION,
    stale_casts.CHECK,
    overflow.CHECK,
    precision.LOST,
    precision.EPSILON,
    scaling.CLIPPED,
    scaling.BYPASSED,
    determinism.CHECK,
    data_order.REPEATED,
    data_order.LABELS,
    data_order.ORDER,
    data_order.RANKS,
)
"""Every check."""
