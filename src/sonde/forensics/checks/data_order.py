"""What the first batches hold: rows again and again, one class at a time, or the rows of another
rank.
"""

from dataclasses import dataclass
from typing import Final

from sonde.forensics.checks.check_rule import (
    Check,
    Outcome,
    cannot_tell,
    does_not_apply,
    fine,
    percent,
    wrong,
)

_MANY_TWICE: Final = 0.1
_LONG: Final = 8
"""Rows shorter than this may be equal by chance."""
_MIN_ROWS: Final = 16
_MIN_CLASSES: Final = 5
_MIN_ALIKE: Final = 64
_MIN_VALUES: Final = 16
"""Fewer different numbers than this may be in order by chance."""
_MIN_IDS: Final = 3
"""Fewer different IDs may be in order by chance."""
_MIN_LENGTHS: Final = 6
"""Fewer different lengths than this may be in order by chance."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RepeatedRows:
    """What was measured over the first batches."""

    num_batches: int
    num_rows: int
    row_length: int = 0
    """How many numbers a row has."""
    num_same_batches: int = 0
    """How many batches have exactly the rows of the batch before."""
    num_again_before_new: int = 0
    """How many batches have exactly the rows of an earlier one, and come before others that are
    new.
    """
    has_classes: bool = False
    """Whether the loss has classes as targets. A policy is trained on one batch several times."""
    is_same_memory: bool = False
    """Whether those are the very same tensors, as in training on all data at once."""
    num_twice_in_batch: int = 0
    """How many rows are in their batch a second time."""
    is_contrastive: bool = False
    """Whether a loss compares rows of a batch, so that rows may be meant to be there twice."""


def judge_repeated(measured: RepeatedRows) -> Outcome:
    """Judge whether rows come again."""
    if measured.num_batches < 2 or not measured.num_rows:
        return cannot_tell("There were fewer than two batches to compare.")
    if measured.num_same_batches == measured.num_batches - 1:
        if measured.is_same_memory:
            return cannot_tell(
                "Every step gets the same tensors. That is right if they are all of the data."
            )
        if measured.row_length < _LONG:
            return cannot_tell("Every batch has the same rows, but they are very short.")
        return wrong(
            f"All of the first {measured.num_batches} batches hold the same"
            f" {measured.num_rows // measured.num_batches} rows."
        )
    if measured.num_again_before_new > 1 and measured.row_length >= _LONG:
        again = (
            f"{measured.num_again_before_new} of the first {measured.num_batches} batches hold"
            " exactly the rows of an earlier one, and others are new after them"
        )
        if measured.has_classes:
            return wrong(f"{again}: the same data are read several times.")
        return cannot_tell(f"{again}. That is right if each batch is to be used several times.")
    share = measured.num_twice_in_batch / measured.num_rows
    if share >= _MANY_TWICE and measured.row_length >= _LONG:
        twice = (
            f"{percent(share)} of the rows in the first {measured.num_batches} batches are in their"
            " batch a second time"
        )
        if measured.is_contrastive:
            return cannot_tell(f"{twice}. That is right for a contrastive loss.")
        return wrong(f"{twice}.")
    return fine(f"{measured.num_rows} rows in {measured.num_batches} batches.")


REPEATED: Final = Check(
    name="repeated_rows",
    title="rows that repeat",
    question="Do the first batches hold different rows?",
    meaning="The training sees a small part of the data again and again.",
    advice="Make the iterator once, not in every step; give each worker its own part of a stream"
    " (torch.utils.data.get_worker_info); look for duplicates in the data.",
    applies_to="every training",
    judge=judge_repeated,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class LabelOrder:
    """What was measured over the first batches, if each row has one class or number as target."""

    is_classification: bool
    """Whether each row has one class as its target."""
    num_classes: int = 0
    """How many classes the model tells apart."""
    classes_of_batches: tuple[int, ...] = ()
    """How many different classes each batch has."""
    num_rows: int = 0
    num_seen: int = 0
    """How many different classes there are in all of these batches."""
    is_sorted: bool = False
    """Whether the targets never fall, or never rise, from row to row over all batches."""
    num_values: int = 0
    """How many different numbers there are among the targets, if they are numbers and no
    classes.
    """


def judge_labels(measured: LabelOrder) -> Outcome:
    """Judge whether classes are mixed."""
    if measured.is_sorted and measured.num_values >= _MIN_VALUES:
        return wrong(
            f"The targets of the first {measured.num_rows} rows are in order, from the lowest to"
            " the highest or the other way round: the data are sorted and not shuffled."
        )
    if measured.num_values:
        return fine(f"The targets of the first {measured.num_rows} rows are in no order.")
    if not measured.is_classification:
        return does_not_apply("The targets are not one class or number for each row.")
    if measured.num_rows < _MIN_ROWS or len(measured.classes_of_batches) < 2:
        return cannot_tell("There were too few rows.")
    if measured.num_seen == 1:
        if measured.num_classes >= _MIN_CLASSES and measured.num_rows >= _MIN_ALIKE:
            return wrong(
                f"All of the first {measured.num_rows} rows have one class, of"
                f" {measured.num_classes}: the data seem to be sorted by class."
            )
        return cannot_tell(f"All of the first {measured.num_rows} rows have the same class.")
    if measured.is_sorted:
        return wrong(
            f"The classes of the first {measured.num_rows} rows are in order: the data are sorted"
            " by class and not shuffled."
        )
    if max(measured.classes_of_batches) == 1:
        return wrong("Each of the first batches holds only one class, and not always the same.")
    return fine(f"{measured.num_seen} classes are mixed over {measured.num_rows} rows.")


LABELS: Final = Check(
    name="label_order",
    title="order of the targets",
    question="Are the classes, or the numbers to predict, mixed?",
    meaning="Each update unlearns what the one before has learnt.",
    advice="Shuffle the data: shuffle=True, or a buffer to shuffle a stream in.",
    applies_to="classification and regression",
    judge=judge_labels,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowOrder:
    """What was measured over the first batches."""

    lengths: tuple[int, ...] = ()
    """How many tokens each row has, in the order in which rows come."""
    num_before_again: int = 0
    """After how many batches the same ones come again in the same order; 0 if they do not."""
    numbers: tuple[int, ...] = ()
    """The numbers of the rows in their dataset, in the order in which rows come; none if they are
    not known.
    """
    sorted_ids: tuple[int, ...] = ()
    """The IDs that an embedding looks up, one for each row, if they only rise or only fall."""


def judge_order(measured: RowOrder) -> Outcome:
    """Judge whether rows come in an order of their own."""
    lengths = list(measured.lengths)
    if len(set(lengths)) >= _MIN_LENGTHS:
        if lengths == sorted(lengths):
            return wrong(
                f"The first {len(lengths)} rows come in the order of their length, from"
                f" {lengths[0]} to {lengths[-1]} tokens: the data are sorted and not shuffled."
            )
        if lengths == sorted(lengths, reverse=True):
            return cannot_tell(
                f"The first {len(lengths)} rows come in the order of their length, the longest"
                " first, as a sampler that groups rows by length gives them."
            )
    ids = measured.sorted_ids
    if len(ids) >= _MIN_ROWS and len(set(ids)) >= _MIN_IDS:
        return wrong(
            f"The first {len(ids)} rows are sorted by an ID that the model looks up, from {ids[0]}"
            f" to {ids[-1]}: a batch holds only a few of these IDs, and they do not come again."
        )
    if measured.num_before_again:
        return cannot_tell(
            f"The first {measured.num_before_again} batches come again in the same order. That is"
            " wrong if they are epochs, which are to be shuffled."
        )
    if len(measured.numbers) >= _MIN_ROWS and _follow_one_another(measured.numbers):
        return cannot_tell(
            f"Rows come in the order of the dataset, from number {measured.numbers[0]} to"
            f" {measured.numbers[-1]}. That is right only if the data were shuffled before."
        )
    if len(set(lengths)) < _MIN_LENGTHS and not ids:
        return does_not_apply("Rows do not differ in their length.")
    return fine(f"The lengths of {len(lengths)} rows are mixed.")


def _follow_one_another(numbers: tuple[int, ...]) -> bool:
    return numbers == tuple(range(numbers[0], numbers[0] + len(numbers)))


ORDER: Final = Check(
    name="row_order",
    title="order of the rows",
    question="Are the rows shuffled, or in the order of their length or of the dataset?",
    meaning="Early updates see only short rows, and late ones only long ones.",
    advice="Shuffle the data: shuffle=True, or a buffer to shuffle a stream in. To save padding,"
    " group rows of a similar length and shuffle the groups.",
    applies_to="rows of tokens of different lengths, rows with numbers, and rows with IDs",
    judge=judge_order,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class RankRows:
    """What was measured over the first batches of all ranks."""

    num_ranks: int
    num_rows: int = 0
    """The rows of rank 0."""
    num_shared: int = 0
    """How many of them another rank had in the same update."""
    shares_work: bool = True
    """Whether ranks are meant to have rows of their own, as they are not under tensor
    parallelism.
    """


def judge_ranks(measured: RankRows) -> Outcome:
    """Judge whether ranks read different rows."""
    if measured.num_ranks < 2:
        return does_not_apply("There is one rank.")
    if not measured.shares_work:
        return does_not_apply("The weights are sharded, and ranks may be meant to share rows.")
    if not measured.num_rows:
        return cannot_tell("The rows could not be told apart.")
    share = measured.num_shared / measured.num_rows
    if share >= _MANY_TWICE:
        return wrong(
            f"{percent(share)} of the rows of rank 0 are read by another rank in the same update."
        )
    return fine(f"{measured.num_ranks} ranks read different rows.")


RANKS: Final = Check(
    name="rank_rows",
    title="rows of the ranks",
    question="Do ranks read different rows?",
    meaning="Several machines do the work of one.",
    advice="Use a DistributedSampler, or give each rank its own seed or part of the data.",
    applies_to="several ranks",
    judge=judge_ranks,
)
