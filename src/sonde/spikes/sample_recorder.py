"""The samples of each step on their way: from what the loop hands over to the watch, the ledger and the records.

Losses on the CPU are judged at once, as views of the tensors' own memory. Those on a device are copied in the background and judged when they have
arrived, a step or two later: nothing waits.
"""

from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

from sonde.log.device import Copy, begin_copy
from sonde.spikes.events import Event
from sonde.spikes.ledger import Ledger
from sonde.spikes.length_model import Counts, Numbers
from sonde.spikes.sample_watch import SampleEvent, SampleSettings, SampleWatch
from sonde.spikes.step_entry import HeldTensor, StepDetails, StepEntry, as_array, is_tensor

_MAX_PENDING: Final = 64
"""Steps whose losses may still be on their way from a device; then the oldest is waited for."""


@final
class SampleRecorder:
    """Shows a watch the samples of every step, and has those that stand out written."""

    def __init__(
        self, settings: SampleSettings, write: Callable[[SampleEvent, StepEntry], None], ledger: Ledger | None
    ) -> None:
        """`write` is called for samples that stand out, as often as the settings allow."""
        self.watch = SampleWatch(settings)
        self.event: SampleEvent | None = None
        """What stood out in the steps that were judged in the last call."""
        self.num_events = 0
        """Steps in which a sample stood out."""
        self._write = write
        self.ledger = ledger
        """Where every sample is entered; None where there is no run."""
        self._pending: deque[tuple[StepEntry, list[Copy]]] = deque()

    def observe(self, entry: StepEntry, details: StepDetails) -> Event | None:
        """Take in the samples of a step, if their losses are there. Returns the event of the matched mean that begins."""
        self.event = None
        losses, counts = details.get("sample_losses"), details.get("token_counts")
        if losses is None:
            return None
        if is_tensor(losses) and not losses.is_cpu:
            self._pending.append((entry, [begin_copy(one) for one in (losses, counts) if one is not None]))
            return self.drain(wait=len(self._pending) > _MAX_PENDING)
        counts = None if counts is None else _held_array(entry.token_counts, counts)
        return self._judge(entry, _held_array(entry.sample_losses, losses), counts)

    def drain(self, *, wait: bool) -> Event | None:
        """Judge what has arrived."""
        begun = None
        while self._pending and (wait or all(copy.is_ready() for copy in self._pending[0][1])):
            entry, copies = self._pending.popleft()
            losses, *counts = (np.asarray(copy.value()) for copy in copies)
            begun = self._judge(entry, losses, counts[0] if counts else None) or begun
        return begun

    def _judge(self, entry: StepEntry, losses: Numbers, counts: Counts | None) -> Event | None:
        if len(losses) == 1 and _is_filler(entry.sample_ids):
            if self.ledger is not None:
                self.ledger.add(
                    entry.step, [], np.zeros(0)
                )  # nothing to enter, but it says that this step is made anew
            return None
        z, found, begun = self.watch.observe(entry.step, losses, counts)
        if self.ledger is not None:
            self.ledger.add(entry.step, entry.sample_ids, z)
        if found is not None:
            self.event = found
            self.num_events += 1
            if self.num_events <= self.watch.settings.max_records:
                self._write(found, entry)
        return begun

    def state_dict(self) -> dict[str, Any]:
        """What the watch knows, as plain data. What the ledger has of it is on the disk by then."""
        if self.ledger is not None:
            self.ledger.mark()
        return {"watch": self.watch.state_dict(), "num_events": self.num_events}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Back from `state_dict`."""
        self.watch.load_state_dict(state["watch"])
        self.num_events = int(state["num_events"])


def _held_array(held: Any, given: Any) -> NDArray[Any]:
    """What the entry holds as an array, which nobody else writes to."""
    if type(held) is np.ndarray:
        return held
    return as_array(given).copy() if isinstance(held, HeldTensor) else np.asarray(held)


def _is_filler(sample_ids: Any) -> bool:
    """Is this the row that keeps a rank without data in step?"""
    first = sample_ids[0] if isinstance(sample_ids, list) and sample_ids else None
    return isinstance(first, tuple) and first[-1] == -1
