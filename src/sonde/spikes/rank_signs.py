"""Ranks that part: weights that are no longer the same on all of them, and a rank that lags. Pure.

    RankSigns            asked every few hundred steps with what each rank found

Weights are compared by the digests of a few tensors. Ranks may be independent on purpose, so a
tensor counts only if it must be the same (a DistributedDataParallel over all ranks), or was the
same after updates had been made.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from sonde.spikes.quiet_rules import QuietFinding

RANKS_DRIFT: Final = "ranks_drift"
RANK_LAGS: Final = "rank_lags"

_LAGGING: Final = 2.0
"""A rank lags if it takes this many times as long as the others."""
_LEAST_SECONDS: Final = 0.005
"""A rank that loses less time than this does not lag."""
_NUM_LOOKS: Final = 3
"""So many looks in a row it must lag."""


class RankLook(NamedTuple):
    """What one rank tells the others."""

    digests: Mapping[str, str]
    """The digests of some tensors, by name; empty if they cannot be read."""
    seconds: float | None
    """How long it usually takes until its loss is known, with the wait for data; None if that is
    not known.
    """


class RankSigns:
    """Compares the ranks of one training."""

    def __init__(self) -> None:
        self._were_equal = set[str]()
        self._lagging: int | None = None
        self._num_lagging = 0

    def observe(
        self, step: int, looks: Sequence[RankLook], *, are_replicas: bool
    ) -> list[QuietFinding]:
        """Return what the looks of all ranks show. `are_replicas`: the weights must be the same."""
        found = [self._drift(step, looks, are_replicas=are_replicas), self._lag(step, looks)]
        return [finding for finding in found if finding is not None]

    def _drift(
        self, step: int, looks: Sequence[RankLook], *, are_replicas: bool
    ) -> QuietFinding | None:
        different = []
        for name in looks[0].digests:
            digests = [look.digests.get(name, "") for look in looks]
            if not all(digests):
                continue
            if len(set(digests)) == 1:
                self._were_equal.add(name)
            elif are_replicas or name in self._were_equal:
                different.append((name, digests))
        if not different:
            return None
        name, digests = different[0]
        usual = Counter(digests).most_common(1)[0][0]
        others = [str(rank) for rank, digest in enumerate(digests) if digest != usual]
        which = "rank" if len(others) == 1 else "ranks"
        return QuietFinding(
            kind=RANKS_DRIFT,
            step=step,
            sentence=(
                f"the weights are not the same on all ranks: {name} is another on {which}"
                f" {', '.join(others)} than on rank {digests.index(usual)}"
            ),
            look_at=(
                "updates that only some ranks make, gradients that are not averaged, and weights"
                " that one rank loads or changes by itself"
            ),
        )

    def _lag(self, step: int, looks: Sequence[RankLook]) -> QuietFinding | None:
        seconds = [look.seconds for look in looks]
        known = [value for value in seconds if value is not None]
        if len(known) < max(len(seconds), 2):
            return None
        slowest = known.index(max(known))
        own = known[slowest]
        of_others = median([value for rank, value in enumerate(known) if rank != slowest])
        is_behind = own > _LAGGING * of_others and own - of_others > _LEAST_SECONDS
        if not is_behind or slowest != self._lagging:
            self._num_lagging = 0
        self._lagging = slowest
        self._num_lagging += is_behind
        if self._num_lagging < _NUM_LOOKS:
            return None
        return QuietFinding(
            kind=RANK_LAGS,
            step=step,
            sentence=(
                f"rank {slowest} takes {own:.3g} s to its loss, with the wait for data, and the"
                f" other ranks {of_others:.3g} s, so they wait for it"
            ),
            look_at=f"the data, the processor and the memory of rank {slowest}",
        )
