"""Watch the bits per character of single samples: text that a tokenizer cuts into many cheap pieces
has a normal loss per token.

Base64, another spelling or another language take two or three times as many tokens as ordinary
text. Each token is a little dearer than usual, so the loss per token stays below any limit, while
bits per character are ten deviations out. Counting the characters of every row is too dear for
every step, so they are asked for sparingly:

    rows = watch.rows_wanted(step, z)                    # z: of the losses, from `SampleWatch`
    event = watch.observe(step, rows, losses, lengths, characters, expected)

Every eighth step a row in turn shows what is usual. Rows whose loss is in its upper tail are
judged. Costs 5 µs per step with 32 rows of 64 tokens once it has learned, since most steps want no
row. Pure, and nothing here raises on a bad value.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sonde.spikes.length_model import LengthModel
from sonde.spikes.sample_watch import BITS, RISK, SampleEvent, SampleTail

_HIGH: Final = 2.5
"""The bits of a row are judged if its loss is this many deviations above samples of its length."""
_MAX_JUDGED: Final = 4
"""At most this many rows of a step are judged; more are not single rows."""
_IN_TURN: Final = 4
"""The rows of every step to learn from, until enough is known."""
_LEARN_EVERY: Final = 8
"""Then one row of every so many steps is enough."""
_MIN_Z: Final = 6.0
"""The lowest limit: names and numbers take many tokens too."""
_FIRST_LIMIT: Final = 12.0
_LOOK_EVERY: Final = 1000
"""At most one outlier in this many steps is worth an investigation at the scene."""
_FOLLOWED: Final = 3.0
"""The level rises with a row by at most this many deviations."""


class CharacterCounts:
    """Counts the characters of tokens, each decoded once. A token that is part of a character
    counts as one.
    """

    def __init__(self, decode: Callable[[list[int]], str]) -> None:
        self._decode = decode
        self._lengths: dict[int, int] = {}

    def count(self, tokens: Iterable[int]) -> int:
        """Return about how many characters the text of these tokens has."""
        lengths = self._lengths
        total = 0
        for token in tokens:
            length = lengths.get(token)
            if length is None:
                length = len(self._decode([token]))
                lengths[token] = length
            total += length
        return total


class BitsWatch:
    """Watches the bits per character of the samples of one rank."""

    def __init__(self, risk: float = RISK) -> None:
        """`risk` is the probability per sample that noise alone exceeds the limit."""
        self._risk = risk
        self.model = LengthModel()
        self.limit = _FIRST_LIMIT
        """The current limit for the deviations of bits per character."""
        self._tail = SampleTail()
        self._last_look = -_LOOK_EVERY

    def rows_wanted(self, step: int, z: list[float] | NDArray[np.float64]) -> list[int]:
        """Return the rows of a step whose characters `observe` needs: first those to learn from,
        then those to judge.
        """
        number = len(z)
        if not number:
            return []
        if not self.model.is_ready:
            return sorted({(step * _IN_TURN + turn) % number for turn in range(_IN_TURN)})
        wanted = [step // _LEARN_EVERY % number] if step % _LEARN_EVERY == 0 else []
        highest = max(z) if isinstance(z, list) else z.max()
        if highest > _HIGH:
            high = np.flatnonzero(np.asarray(z) > _HIGH).tolist()
            if len(high) <= _MAX_JUDGED:
                wanted += [row for row in high if row not in wanted]
        return wanted

    def observe(
        self,
        step: int,
        rows: Sequence[int],
        losses: Sequence[float],
        lengths: Sequence[int],
        characters: Sequence[int],
        expected: Sequence[float],
    ) -> SampleEvent | None:
        """Process the rows of a step that `rows_wanted` named. Returns the outliers among them.

        `losses`, `lengths` (in tokens), `characters` and `expected` (losses) are those of `rows`,
        in the same order.
        """
        counts = np.asarray(lengths, np.int64)
        bits = _bits(losses, counts, characters)
        z = self.model.z(counts, bits)
        was_ready = self.model.is_ready
        if not was_ready:
            self._learn(counts, z, len(rows))
        elif step % _LEARN_EVERY == 0:
            self._learn(counts, z, 1)
        far = np.flatnonzero(z > self.limit)
        if not was_ready or not len(far):
            return None
        far = far[np.argsort(-z[far], kind="stable")]
        is_worth_a_look = step - self._last_look >= _LOOK_EVERY
        if is_worth_a_look:
            self._last_look = step
        return SampleEvent(
            step=step,
            rows=tuple(rows[place] for place in far.tolist()),
            z=tuple(z[far].tolist()),
            expected=tuple(expected[place] for place in far.tolist()),
            limit=self.limit,
            is_worth_a_look=is_worth_a_look,
            measure=BITS,
        )

    def _learn(self, counts: NDArray[np.int64], z: NDArray[np.float64], num: int) -> None:
        """Learn from the first `num` rows, which were chosen whatever their loss."""
        finite = np.isfinite(z[:num])
        good = z[:num][finite]
        if not len(good):
            return
        self.model.follow(min(float(good.mean()), _FOLLOWED))
        learnt = self.model.learn(counts[:num][finite], good)
        if learnt is not None and self.model.is_ready:
            self._tail.learn(learnt)
            self.limit = max(self._tail.reach(self._risk), _MIN_Z)

    def state_dict(self) -> dict[str, Any]:
        """Return the complete state as plain data (16 kB)."""
        return {
            "model": self.model.state_dict(),
            "tail": self._tail.pack(),
            "limit": self.limit,
            "last_look": self._last_look,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore from `state_dict`: the next step is judged as if there had been no
        interruption.
        """
        self.model.load_state_dict(state["model"])
        self._tail.unpack(state["tail"])
        self.limit = float(state["limit"])
        self._last_look = int(state["last_look"])


def _bits(
    losses: Sequence[float], counts: NDArray[np.int64], characters: Sequence[int]
) -> NDArray[np.float64]:
    """Return bits per character."""
    sums: NDArray[np.float64] = np.asarray(losses, np.float64) * counts / math.log(2)
    return sums / np.maximum(np.asarray(characters, np.float64), 1.0)
