"""Was one rank fed the batch of another place in the data? The usual mistakes are tried, one rank at a time, until one gives the recorded loss.

    another rank's batch            a sampler that was told the wrong rank
    a batch of a nearby step        a sampler that lags, runs ahead, or stands still
    the order of another epoch      a sampler that was not told the epoch
    the order of the corpus         a sampler that does not shuffle

A match is to the fifth digit of the loss and to the token: no accident among a few dozen tries.
"""

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from sonde.forensics.replay import Replay

_NEARBY: Final = 8
_CLOSE: Final = 1e-5


class OrderMatch(NamedTuple):
    """What a rank must have been fed."""

    rank: int
    """The rank."""
    what: str
    """Where that batch belongs, in words."""
    loss: float
    """The loss of the step with it."""


def find_order(
    replay: Replay, step: int, recorded_loss: float, recorded_weight: float, world: int
) -> OrderMatch | None:
    """The rank and the batch that give the recorded loss, if one of the usual mistakes does. The replay stands before the step."""
    if replay.seams.batches.corpus is None or not math.isfinite(recorded_loss):
        return None
    own = replay.batches(step)
    for rank in range(min(world, len(own))):
        for what, batch in _candidates(replay, step, rank, world, own):
            tried = [batch if number == rank else one for number, one in enumerate(own)]
            if sum(_num_tokens(replay, one) for one in tried) != recorded_weight:
                continue
            loss = replay.loss(batches=tried).loss
            if abs(loss - recorded_loss) <= _CLOSE * abs(recorded_loss):
                return OrderMatch(rank, what, loss)
    return None


def _candidates(replay: Replay, step: int, rank: int, world: int, own: list[Any]) -> Iterator[tuple[str, Any]]:
    """Batches that a rank may have been fed by mistake, with words for each."""
    for other, batch in enumerate(own):
        if other != rank:
            yield f"the batch of rank {other % world}", batch
    for distance in range(1, _NEARBY + 1):
        for nearby in (step - distance, step + distance):
            if nearby >= 1:
                batches = replay.batches(nearby)
                if rank < len(batches):
                    yield f"its batch of step {nearby}", batches[rank]
    if replay.seams.batches.corpus is not None:
        yield from replay.seams.batches.corpus.mistakes(step, rank)


def _num_tokens(replay: Replay, batch: Any) -> int:
    return sum(len(row.target) for row in replay.seams.batches.rows(batch) if row.name[1] >= 0)
