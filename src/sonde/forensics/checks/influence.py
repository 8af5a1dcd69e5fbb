"""What must not influence a prediction: later tokens, padding, other rows, other documents.

Each is decided the same way: change it, run the same forward pass again with the same random
numbers, and see whether scores moved that may not.
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

ROUNDING: Final = 1e-5
"""Differences below this share of the largest value may be rounding."""
_BATCH_STATISTICS: Final = ("BatchNorm", "SyncBatchNorm")
BY_EMBEDDING: Final = "the embedding has this token as its padding_idx"
BY_LOSS: Final = "the loss leaves padding out"
_READS_ALL: Final = ("attention", "attn", "lstm", "gru", "rnn")
"""Layers that read whole rows. Convolutions and means over a row read its padding too, and often
that is put up with.
"""
_ROUTING: Final = ("moe", "expert", "router", "gate")


@dataclass(frozen=True, kw_only=True, slots=True)
class Influence:
    """What was measured: something was changed, and other things were compared to the bit."""

    unfit: str = ""
    """Why the question does not apply; empty if it does."""
    unknown: str = ""
    """Why it could not be measured; empty if it was."""
    num_compared: int = 0
    """How many positions or rows were compared."""
    num_moved: int = 0
    """How many of them moved."""
    largest: float = 0.0
    """The largest difference, as a share of the largest value."""
    module: str = ""
    """The first module whose output moved."""
    kind: str = ""
    """The class of that module."""
    is_next_token: bool = False
    """Whether the model predicts the next token."""
    has_boundaries: bool = True
    """Whether the batch says where documents begin within a row."""
    ignores_positions: bool = False
    """Whether the batch has positions that begin again, and the model looks up others."""
    positions_go_on: bool = False
    """Whether the positions that the model looks up go on from one document to the next."""
    padding_known_by: str = ""
    """What says what padding is, if it is no mask of the batch: `BY_EMBEDDING` or `BY_LOSS`."""
    are_rows_known: bool = True
    """Whether the loss shows which dimension of the batch its rows are in."""


def _undecided(measured: Influence) -> Outcome | None:
    if measured.unfit:
        return does_not_apply(measured.unfit)
    if measured.unknown:
        return cannot_tell(measured.unknown)
    if not measured.num_compared:
        return cannot_tell("No position could be compared.")
    if measured.num_moved and measured.largest < ROUNDING:
        return cannot_tell(
            f"{measured.num_moved} of {measured.num_compared} moved, by {measured.largest:.1e} of"
            " the largest value: that may be rounding."
        )
    return None


def _first(measured: Influence) -> str:
    if not measured.module:
        return ""
    return f" The first module that moves is {measured.module} ({measured.kind})."


def judge_causality(measured: Influence) -> Outcome:
    """Judge whether positions see later tokens."""
    undecided = _undecided(measured)
    if undecided is not None:
        return undecided
    if not measured.num_moved:
        return fine(f"Changing later tokens moved none of {measured.num_compared} positions.")
    share = percent(measured.num_moved / measured.num_compared)
    if measured.kind.startswith(_BATCH_STATISTICS):
        return cannot_tell(
            f"Changing later tokens moved {share} of the positions before them through the batch"
            f" statistics of {measured.module}, which hide what else may do so."
        )
    return wrong(
        f"Changing later tokens moved {share} of the {measured.num_compared} positions before"
        f" them: the model sees the tokens that it is asked for.{_first(measured)}"
    )


CAUSALITY: Final = Check(
    name="causality",
    title="later tokens",
    question="Do later tokens leave the predictions before them alone?",
    meaning="The model copies the answer: the loss falls far too low, and generation is garbage.",
    advice=(
        "Look at the mask of that module: is_causal, the diagonal, or a sum over the wrong"
        " dimension."
    ),
    applies_to="next-token training",
    judge=judge_causality,
)


def judge_padding(measured: Influence) -> Outcome:
    """Judge whether the content of padding matters."""
    undecided = _undecided(measured)
    if undecided is not None:
        return undecided
    if not measured.num_moved:
        return fine(f"Other padding moved none of {measured.num_compared} positions.")
    share = percent(measured.num_moved / measured.num_compared)
    known = measured.padding_known_by or "the batch has a mask"
    text = (
        f"Other tokens in the padding moved {share} of {measured.num_compared} predictions, though"
        f" {known}.{_first(measured)}"
    )
    where = f"{measured.module} {measured.kind}".lower()
    if measured.padding_known_by == BY_EMBEDDING and not any(word in where for word in _READS_ALL):
        return cannot_tell(f"{text} A mean or a convolution over the row may be meant.")
    return wrong(text)


PADDING: Final = Check(
    name="padding_apart",
    title="padding",
    question="Does the content of padding leave predictions alone?",
    meaning="A row's prediction depends on how far its batch is padded.",
    advice="Give attention and pooling a mask of the padding, and look at its polarity.",
    applies_to="batches of tokens with a mask of the padding, an embedding with padding_idx, or a"
    " loss that leaves padding out",
    judge=judge_padding,
)


def judge_rows(measured: Influence) -> Outcome:
    """Judge whether rows of a batch influence one another."""
    undecided = _undecided(measured)
    if undecided is not None:
        return undecided
    if not measured.num_moved:
        return fine(f"Changing one row moved none of the {measured.num_compared} others.")
    moved = f"Changing one row moved {measured.num_moved} of the {measured.num_compared} others"
    if measured.kind.startswith(_BATCH_STATISTICS):
        return fine(f"{moved}, through the batch statistics of {measured.module}, as it is meant.")
    is_routing = any(word in f"{measured.module} {measured.kind}".lower() for word in _ROUTING)
    is_sequence = measured.kind in ("MultiheadAttention", "LSTM", "GRU", "RNN")
    is_meant = is_routing or not measured.are_rows_known
    if (is_sequence or measured.is_next_token) and not is_meant:
        return wrong(f"{moved}.{_first(measured)}")
    return cannot_tell(
        f"{moved}.{_first(measured)} That is right for losses and layers over a whole batch, and"
        " wrong otherwise."
    )


ROWS: Final = Check(
    name="rows_apart",
    title="other rows",
    question="Do the rows of a batch leave one another alone?",
    meaning="A layer takes the batch for the sequence, or mixes rows in a reshape.",
    advice="Look at the order of dimensions there: batch_first=True, view and transpose.",
    applies_to="batches with several rows",
    judge=judge_rows,
)


def judge_documents(measured: Influence) -> Outcome:
    """Judge whether documents packed into one row influence one another."""
    undecided = _undecided(measured)
    if undecided is not None:
        return undecided
    if measured.ignores_positions:
        return wrong(
            "The batch has position ids that begin again with each document, and the positions that"
            " the model looks up go on over the whole row."
        )
    if not measured.num_moved:
        text = f"Changing one document moved none of {measured.num_compared} later positions."
        if measured.positions_go_on:
            text = f"{text} Positions go on from one document to the next."
        return fine(text)
    share = percent(measured.num_moved / measured.num_compared)
    if not measured.has_boundaries:
        return fine(
            f"Rows hold several documents, and the batch does not say where they begin: changing"
            f" one moved {share} of {measured.num_compared} positions after it. Attention crosses"
            " documents."
        )
    return wrong(
        f"The batch says where documents begin, and changing one moved {share} of"
        f" {measured.num_compared} positions of the next.{_first(measured)}"
    )


DOCUMENTS: Final = Check(
    name="documents_apart",
    title="packed documents",
    question="Do documents packed into one row leave one another alone?",
    meaning="Attention crosses the boundaries that the script passes.",
    advice="Make the attention mask block-diagonal, or use a kernel that takes the boundaries; and"
    " pass the position ids on to the model.",
    applies_to="packed rows whose batch has position ids, document ids, lengths or a block mask, or"
    " whose tokenizer has an end-of-text token",
    judge=judge_documents,
)
