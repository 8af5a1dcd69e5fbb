"""Rows of a batch, read as text: the part around their worst tokens, its sign compared with earlier
batches, and what is odd about their values. Nothing is run again.
"""

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import numpy as np

from sonde import ranks
from sonde.forensics.scene_evidence import SceneRow, finite
from sonde.forensics.verdict import Suspect
from sonde.recorder.batch_tree import named_rows, token_rows
from sonde.recorder.guard import is_from_a_signal
from sonde.recorder.losses import RowLosses
from sonde.recorder.row_values import odd_rows
from sonde.recorder.training import Training
from sonde.recorder.update import Update
from sonde.texts.profile import profile_of
from sonde.texts.signs import Sign, find_signs_of_all

NUM_ROWS: Final = 4
"""The number of rows per rank that are read as text."""
_NUM_TOKENS: Final = 8
WINDOW: Final = 96
"""The number of tokens around the worst ones that are read as text."""
_MAX_TEXT: Final = 400
_NUM_TEXTS: Final = 96
"""The number of rows from other batches that define what is usual."""
_MIN_TEXTS: Final = 8
_TEXT_SHARE: Final = 0.5
"""If fewer targets than this are tokens of their row, one for each token, they are classes."""

Found: TypeAlias = tuple[tuple[str, int], float, list[int], tuple[tuple[str, float], ...]]
"""A row: its name, its loss, the tokens to read, and its worst tokens with their losses."""


class RowReader:
    """Reads the rows of one training."""

    def __init__(self, training: Training) -> None:
        self._training = training

    def read_rows(
        self, update: Update, recent: Sequence[Update], rows: Sequence[int]
    ) -> list[SceneRow]:
        """Read outlying rows of an update as text. Nothing is run again, and no other rank is
        involved.
        """
        names = update.names()
        losses: list[float] = []
        tokens: list[list[int]] = []
        for micro in update.micro:
            losses += micro.rows.losses.tolist() if micro.rows else []
            tokens += token_rows(micro.batch)
        if not names or len(tokens) != len(losses) or len(names) != len(losses):
            return []
        chosen = rows[:NUM_ROWS]
        found: list[Found] = [(names[row], losses[row], tokens[row][:WINDOW], ()) for row in chosen]
        return self.suspects(recent, update, found, self.oddities(recent, update))

    def worst_tokens(self, row: RowLosses) -> tuple[tuple[str, float], ...]:
        """Return the tokens of a row with the highest losses, as text."""
        losses, targets = row
        ranked = sorted(range(len(losses)), key=lambda at: -finite(losses[at]))
        return tuple(
            (self._text([targets[at]]) or str(targets[at]), losses[at])
            for at in ranked[:_NUM_TOKENS]
        )

    def suspects(
        self,
        recent: Sequence[Update],
        update: Update,
        found: Sequence[Found],
        oddities: Mapping[tuple[str, int], str],
    ) -> list[SceneRow]:
        """Return rows with their text and its clearest sign, compared with the rows of earlier
        batches, and with what is odd about their values.
        """
        rows_before: list[list[int]] = []
        for other in recent:
            if other.step < update.step:
                for micro in other.micro:
                    if micro.is_unchanged():
                        rows_before += [row[:WINDOW] for row in token_rows(micro.batch)]
        usual = [self._text(row) for row in rows_before[-_NUM_TEXTS:]]
        parts = [part for _, _, part, _ in found]
        texts = [self._text(part) for part in parts]
        signs: list[list[Sign]] = [[] for _ in found]
        if sum(map(bool, usual)) >= _MIN_TEXTS:
            signs = find_signs_of_all(texts, profile_of(usual), tokens=parts)
        rows = []
        for (name, loss, _, tokens), text, of_row in zip(found, texts, signs, strict=True):
            suspect = Suspect(
                dataset=name[0],
                sample=name[1],
                rank=ranks.rank(),
                loss=loss,
                text=text[:_MAX_TEXT],
            )
            sign = of_row[0] if of_row else Sign("", 0.0)
            rows.append(SceneRow(suspect, tokens, sign, oddities.get(name, "")))
        return rows

    def oddities(self, recent: Sequence[Update], update: Update) -> dict[tuple[str, int], str]:
        """Return what is odd about the values of rows, by the name of the row."""
        before = [
            micro.batch
            for other in recent
            if other.step < update.step
            for micro in other.micro
            if micro.is_unchanged()
        ]
        found: dict[tuple[str, int], str] = {}
        for micro in update.micro:
            names = named_rows(micro.names, micro.batch)
            for row, oddity in odd_rows(micro.batch, before).items():
                if row < len(names):
                    found[names[row]] = oddity
        return found

    def _text(self, tokens: list[int]) -> str:
        if self._training.decode is None:
            return ""
        try:
            return str(self._training.decode(tokens))
        except (Exception, SystemExit) as error:
            if is_from_a_signal(error):
                raise
            return ""  # a user's decoder may raise anything: then there is no text


def around_worst(row: RowLosses) -> list[int]:
    """Return the tokens of a row around its highest losses."""
    if len(row.targets) <= WINDOW:
        return row.targets
    losses = [finite(loss) for loss in row.losses]
    start = int(np.convolve(losses, np.ones(WINDOW), "valid").argmax())
    return row.targets[start : start + WINDOW]


def are_targets_tokens(rows: Sequence[RowLosses], inputs: Sequence[Sequence[int]]) -> bool:
    """Return whether the targets of rows are text, and not the class of a row or of each of its
    tokens. `inputs` are the tokens of the same rows, if there are any.
    """
    if len(inputs) != len(rows):
        return True
    pairs = [(row.targets, tokens) for row, tokens in zip(rows, inputs, strict=True)]
    if all(len(targets) <= 1 < len(tokens) for targets, tokens in pairs):
        return False
    if any(len(targets) != len(tokens) for targets, tokens in pairs):
        return True
    num_known = sum(len(set(targets) & set(tokens)) for targets, tokens in pairs)
    return num_known >= _TEXT_SHARE * sum(len(set(targets)) for targets, _ in pairs)
