"""The causes that a verdict can name, in the order of the documentation. Among equals, the earlier
comes first.

Most causes have a file each. The others are lines of four tables, which are files here too: kinds
of text (text_kind.py), failures without a jump (quiet_failure.py), mistakes that the first updates
showed (failed_check.py), and what a resume lost (resume_part.py).
"""

from functools import lru_cache
from importlib import import_module
from typing import Final

from sonde.forensics.causes import failed_check, quiet_failure, resume_part, text_kind
from sonde.forensics.causes.cause_rule import CauseRule

CAUSES: Final = (
    # Numbers that are not finite.
    "bad_input",
    "no_targets",
    "bad_weights",
    "bad_operation",
    "overflow",
    # What a resume did not restore.
    "resume_weights",
    "resume_optimizer",
    "resume_schedule",
    "resume_data",
    "resume_generators",
    "resume_scaler",
    # Mistakes that the first updates showed.
    "left_over_gradients",
    "train_mode",
    "optimizer_members",
    "counted_positions",
    "repeated_rows",
    "epsilon",
    "stale_casts",
    # Failures without a jump.
    "scaler_skips",
    "no_optimizer_step",
    "ranks_drift",
    "same_batch",
    "rows_again",
    "label_order",
    "no_rate",
    "rate_off_course",
    "update_size",
    "no_gradient",
    "same_loss",
    "loss_collapse",
    "fading_gradient",
    "no_progress",
    # What changed.
    "learning_rate",
    "stuck",
    "changed_settings",
    "batch_size",
    "changed_tokenizer",
    "changed_data",
    "changed_code",
    # The state, and the machine.
    "corrupted_weights",
    "stale_weights",
    "optimizer_state",
    "not_reproduced",
    "data_order",
    # The rows: their text, their pairs, their values, or only their losses.
    "garbled_text",
    "mis_decoded",
    "other_script",
    "foreign_language",
    "markup",
    "code",
    "table",
    "log",
    "shouting",
    "control_characters",
    "empty",
    "repetition",
    "duplicated_text",
    "copied_target",
    "swapped_pair",
    "truncated_target",
    "mismatched_pair",
    "odd_values",
    "hard_sample",
    # Neither.
    "not_known",
    "nothing_wrong",
)
"""The names of the causes. Those that no table has are modules of this package."""


@lru_cache(maxsize=1)
def rules() -> dict[str, CauseRule]:
    """Return the rule of every cause, by name."""
    tables = text_kind.RULES | quiet_failure.RULES | failed_check.RULES | resume_part.RULES
    found = {}
    for name in CAUSES:
        found[name] = tables.get(name) or import_module(f"{__name__}.{name}").RULE
    return found
