"""Does it pass by itself? A callback that judges the loss as the spike recorder does, waits a few updates, and gives the run up when it does not.

An event that is over before its time is nobody's business. A loss that is not finite has no time: its state is worthless, or its batch is. While an
event is open, checkpoints are saved in distrust, so that they push no good one out. The loss is the mean over all ranks, so all ranks decide alike.
Costs 5 µs an update; with several ranks also the small exchanges of any callback that may ask for something.
"""

import math
import statistics
from collections import deque
from typing import Any, Final, final

from typing_extensions import override

from sonde.callbacks.base import Callback, Context
from sonde.heal.decision import Call, Heal
from sonde.spikes.detectors import NONFINITE, Event, EventDetector
from sonde.spikes.robust_rule import RobustRule

_LOOK: Final = 6
_FAR: Final = 2.5
"""A loss has not come back while the median of this many updates is this many deviations above what was usual."""


@final
class HealWatch(Callback):
    """Calls when an event stays."""

    def __init__(self, heal: Heal) -> None:
        self.calls: list[Call] = []
        """What it called for: at most one, unless it only watches."""
        self._heal = heal
        self._detector = EventDetector(RobustRule())
        self._recent: deque[float] = deque(maxlen=_LOOK)
        self._told = -1
        self._distrusts = False

    def judge(self, step: int, loss: float) -> Call | None:
        """Take in the loss of an update; the call, when it is time."""
        before = self._detector.open
        self._detector.update(step, loss)
        event = self._detector.open
        if event is not None and not math.isfinite(loss):
            goes_on = before is not None and before.last_step == step - 1
            return _call(event, step, NONFINITE, event.first_step if goes_on else step, loss)
        self._recent.append(loss)
        if event is None or step - event.first_step < self._heal.patience:
            return None
        # Single updates are judged by the detector; several together show what is far less above the usual.
        deviation = (event.value - event.baseline) / event.z if event.z else 0.0
        usual = event.baseline + _FAR * deviation
        stays = statistics.median(self._recent) > usual
        return _call(event, step, event.kind, event.first_step, event.value) if stays else None

    @override
    def on_step_end(self, context: Context) -> None:
        """Judge it; an update without target tokens has no loss."""
        if not context.weight:
            return
        call = self.judge(context.step, float(context.tensors["loss"]))
        event = self._detector.open
        if event is not None:
            context.distrust(f"the loss is unusual since step {event.first_step}")
        elif self._distrusts:
            context.distrust(None)
        self._distrusts = event is not None
        if call is None or (event is not None and event.first_step == self._told):
            return
        self._told = event.first_step if event is not None else call.first_step
        self.calls.append(call)
        if not self._heal.dry_run:
            context.ask_to_give_up(f"to heal: {call.kind} since step {call.first_step}")

    @override
    def state_dict(self) -> dict[str, Any]:
        """What the detector knows, and the last few updates."""
        return {"detector": self._detector.state_dict(), "recent": list(self._recent), "told": self._told}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Back from it."""
        self._detector.load_state_dict(state["detector"])
        self._recent = deque(state["recent"], maxlen=_LOOK)
        self._told = state["told"]


def _call(event: Event, step: int, kind: str, first_step: int, value: float) -> Call:
    return Call(kind=kind, step=step, first_step=first_step, value=value, baseline=event.baseline)
