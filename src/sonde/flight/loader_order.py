"""The order in which a data loader draws its batches: noted as it is drawn, and taken up again in the middle of an epoch.

    order = follow(loader, skip)          # before anybody iterates it
    order.taken()                         # the sample numbers of the batch that a step takes, in the order of drawing
    order.state_dict()                    # where the epoch is; load_state_dict before the next iteration goes on from there

For hosts that hand batches of any kind to the user's own code, so that nothing can be put into them, and that begin an epoch anew after a resume.
With data workers batches are drawn ahead; they come in the order of drawing. Samples on the skip list are left out of their batches.
"""

from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch.utils.data import DataLoader

from sonde.data.skip_list import SkipList
from sonde.flight.batch_tree import TRAIN


def follow(loader: Any, skip: SkipList) -> "BatchOrder | None":
    """Follow the batches of a loader; None when it draws none by numbers, or keeps its own place."""
    is_plain = isinstance(loader, DataLoader) and loader.batch_sampler is not None
    if not is_plain or hasattr(loader, "state_dict"):
        return None
    order = BatchOrder(loader.batch_sampler, skip)
    # Torch refuses another sampler once a loader is made. This one draws the same batches, and so the loader is the same.
    loader.__dict__["batch_sampler"] = order
    return order


@final
class BatchOrder:
    """A batch sampler that draws what another one draws, and keeps the numbers."""

    def __init__(self, batches: Any, skip: SkipList) -> None:
        self._batches = batches
        self._left_out = frozenset(skip.samples(TRAIN).tolist())
        self._drawn: deque[Any] = deque()
        self._begun_at: torch.Tensor | None = None
        self._num_taken = 0
        self._goes_on: tuple[torch.Tensor, int] | None = None

    def __len__(self) -> int:
        return len(self._batches)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_batches"], name)

    def __iter__(self) -> Iterator[Any]:
        self._drawn.clear()
        goes_on, self._goes_on = self._goes_on, None
        self._num_taken = 0 if goes_on is None else goes_on[1]
        self._begun_at = torch.get_rng_state() if goes_on is None else goes_on[0]
        torch.set_rng_state(self._begun_at)
        for place, batch in enumerate(self._batches):
            if goes_on is not None and place < goes_on[1]:
                continue
            kept = [one for one in batch if one not in self._left_out] or [self._stand_in(batch[-1])]
            self._drawn.append(kept)
            yield kept

    def taken(self) -> list[int] | None:
        """The samples of the batch that is taken now; None when they are not known by number."""
        self._num_taken += 1
        numbers = self._drawn.popleft() if self._drawn else None
        return numbers if numbers and all(type(one) is int for one in numbers) else None

    def state_dict(self) -> dict[str, Any]:
        """Where the epoch is."""
        return {"begun_at": self._begun_at, "num_taken": self._num_taken}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Have the next iteration go on from there; an epoch that was over is not gone on with."""
        begun_at, num_taken = state["begun_at"], int(state["num_taken"])
        if begun_at is not None and 0 < num_taken < len(self):
            self._goes_on = (begun_at, num_taken)

    def _stand_in(self, number: Any) -> Any:
        """Another sample, for a batch of which nothing is left."""
        while number in self._left_out:
            number = (
                number + 1
                if number < max(self._left_out)
                else min(set(range(len(self._left_out) + 1)) - self._left_out)
            )
        return number
