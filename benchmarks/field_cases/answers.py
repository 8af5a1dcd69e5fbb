"""Which of sonde's names an answer of a case stands for: the one table to change when names do.

The cases were declared before some of these causes and checks existed, so their answers have names
of their own. A name that is not in the table stands for itself, as every cause of docs/diagnosis.md
does.
"""

from collections.abc import Iterable
from typing import Final

STANDS_FOR: Final[dict[str, frozenset[str]]] = {
    # Rows without text.
    "odd_row": frozenset({"hard_sample", "odd_values"}),
    # Numbers.
    "bad_weights": frozenset({"bad_weights", "corrupted_weights"}),
    # Resume: the state that was not restored, by the report or by an older cause.
    "resume_optimizer": frozenset({"resume_optimizer", "optimizer_state"}),
    "resume_weights": frozenset({"resume_weights", "stale_weights"}),
    "no_targets": frozenset({"no_targets", "counted_positions"}),
    # Checks.
    "initial_loss": frozenset({"start_loss"}),
    "bad_init": frozenset({"start_loss"}),
    "labels_not_shifted": frozenset({"label_shift"}),
    "labels_shifted_twice": frozenset({"label_shift"}),
    "labels_misaligned": frozenset({"label_shift"}),
    "labels_unrelated": frozenset({"label_shift"}),
    "future_leak": frozenset({"causality"}),
    "document_leak": frozenset({"documents_apart"}),
    "padding_leak": frozenset({"padding_apart"}),
    "row_leak": frozenset({"rows_apart"}),
    "padding_in_loss": frozenset({"padding_in_loss"}),
    "prompt_in_loss": frozenset({"counted_positions"}),
    "softmax_twice": frozenset({"loss_inputs"}),
    "not_in_optimizer": frozenset({"optimizer_members"}),
    "no_gradient": frozenset({"gradient_reach", "no_gradient"}),
    "does_not_move": frozenset({"weights_move"}),
    "unregistered_module": frozenset({"unregistered"}),
    "gradients_left_over": frozenset({"left_over_gradients"}),
    "gradients_lost": frozenset({"accumulation"}),
    "accumulation_weight": frozenset({"accumulation", "batch_weight"}),
    "eval_mode": frozenset({"train_mode"}),
    "dropout_off": frozenset({"dropout", "train_mode"}),
    "half_precision_updates": frozenset({"lost_updates"}),
    "clipped_scaled_gradient": frozenset({"clipped_scaled"}),
    "end_never_a_label": frozenset({"end_of_text"}),
    "not_shuffled": frozenset({"label_order", "row_order"}),
    # Quiet failures.
    "plateau": frozenset({"no_progress", "same_loss", "stuck"}),
    "rate_zero": frozenset({"no_rate", "learning_rate"}),
    "repeated_batch": frozenset({"same_batch", "repeated_rows", "rows_again"}),
    # Answers of the second set, mapped before its sealed parts were run.
    "data_changed": frozenset({"changed_data", "odd_values"}),
    "inputs_changed": frozenset({"changed_data", "odd_values"}),
    "tokenizer_changed": frozenset({"changed_tokenizer"}),
    "reversed_text": frozenset({"garbled_text", "foreign_language"}),
    "underflow": frozenset({"precision", "epsilon"}),
    "clipped_each_micro_batch": frozenset({"accumulation"}),
    # Answers of the third set, mapped before its sealed parts were run. `target_leak`,
    # `constant_targets`, `blank_is_a_label`, `wrong_sign`, `coarse_positions`, `weight_decay`,
    # `loss_sum`, `batch_size`, `resume_loss_weight` and `resume_gradients` stand for themselves.
    "update_not_finite": frozenset({"bad_weights", "corrupted_weights"}),
    "stale_cast": frozenset({"stale_casts"}),
    "dead_units": frozenset({"gradient_reach", "no_gradient"}),
    "negative_rate": frozenset({"rate_off_course", "learning_rate"}),
    "resume_average": frozenset({"resume_weights", "stale_weights"}),
    "resume_normaliser": frozenset({"resume_weights"}),
    # Mapped after the fourth set was measured, and before the fifth was: a rate that is wrong has
    # three names.
    "loss_sum": frozenset({"batch_weight"}),
    "learning_rate": frozenset({"learning_rate", "rate_off_course", "no_rate"}),
    # These had no name when they were written: each stands for itself.
    "broadcast": frozenset({"loss_inputs"}),
    "same_order": frozenset({"same_order"}),
    "targets_changed": frozenset({"odd_values"}),
}

NOTHING: Final = frozenset({"nothing_wrong"})
"""What a verdict says when it finds nothing."""

UNKNOWN: Final = frozenset({"not_known", "cannot_tell"})
"""What a verdict says when it cannot tell."""

RESUME_LINES: Final = {
    "weights": "resume_weights",
    "buffers": "resume_weights",
    "moments": "resume_optimizer",
    "optimizer": "resume_optimizer",
    "rate": "resume_schedule",
    "schedule": "resume_schedule",
    "scheduler": "resume_schedule",
    "data": "resume_data",
    "generators": "resume_generators",
    "scaler": "resume_scaler",
    "step count": "resume_optimizer",
    "mode": "train_mode",
}
"""The first word of a line of the resume report, and the cause that it names."""

RESTORED: Final = ("as it was", "as they were", "cannot tell", "on purpose", "(expected)")
"""What a line of the resume report says when it is no complaint."""

EVENTS: Final[dict[str, str]] = {}
"""What an event names by its kind or its metric; a kind that is not here stands for itself."""

SAMPLE_CAUSES: Final = frozenset(
    {
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
        "hard_sample",
        "odd_values",
    }
)
"""The causes that blame samples."""

BLAMES_SAMPLES: Final = ("a few samples", "this batch has a high loss")
"""Sentences that are wrong on the screen where no sample is to blame."""

INFORMATION: Final = (
    "recording ",
    "rows ",
    "everything as it was",
    "starts from the beginning",
    "the recorder follows it",
)
"""What sonde tells that is no problem of the training."""


def names_of(answers: Iterable[str]) -> frozenset[str]:
    """Return the names of sonde's that these answers stand for."""
    found: set[str] = set()
    for answer in answers:
        found |= STANDS_FOR.get(answer, frozenset({answer}))
    return frozenset(found)
