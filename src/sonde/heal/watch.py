"""A callback that judges the loss like the spike recorder, waits a few updates, and interrupts the run if an anomaly does not pass.

Anomalies that end in time are ignored. A loss that is not finite gets no time, because either its state or its batch is
useless. While an anomaly is open, checkpoints are marked as untrusted so that they do not displace good ones. The loss
is the mean over all ranks, so all ranks decide alike. Costs 5 µs per update; with several ranks also the small
exchanges of any callback that may request something.
"""

import math
import statistics
from collections import deque
from typing import Any, Final

from typing_extensions import override

from sonde.callbacks.base import Callback, Context
from sonde.heal.decision import Call, Heal
from sonde.spikes.detectors import NONFINITE, Event, EventDetector
from sonde.spikes.robust_rule import RobustRule

_LOOK: Final = 6
_FAR: Final = 2.5
"""The loss has not recovered while the median of `_LOOK` updates is more than `_FAR` deviations above the baseline."""


class HealWatch(Callback):
    """Interrupts training when an anomaly persists."""

    def __init__(self, heal: Heal) -> None:
        self.calls: list[Call] = []
        """The anomalies reported so far: at most one, unless it only watches."""
        self._heal = heal
        self._detector = EventDetector(RobustRule())
        self._recent: deque[float] = deque(maxlen=_LOOK)
        self._told = -1
        self._distrusts = False

    def judge(self, step: int, loss: float) -> Call | None:
        """Process the loss of an update. Returns a `Call` if the run needs healing."""
        before = self._detector.open
        self._detector.update(step, loss)
        event = self._detector.open
        if event is not None and not math.isfinite(loss):
            goes_on = before is not None and before.last_step == step - 1
            return _call(event, step, NONFINITE, event.first_step if goes_on else step, loss)
        self._recent.append(loss)
        if event is None or step - event.first_step < self._heal.patience:
            return None
        # The detector judges single updates; the median of several reveals a much smaller deviation.
        deviation = (event.value - event.baseline) / event.z if event.z else 0.0
        usual = event.baseline + _FAR * deviation
        stays = statistics.median(self._recent) > usual
        return _call(event, step, event.kind, event.first_step, event.value) if stays else None

    @override
    def on_step_end(self, context: Context) -> None:
        """Judge the loss of the update. An update without target tokens has no loss and is skipped."""
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
        """The state of the detector and the most recent losses."""
        return {"detector": self._detector.state_dict(), "recent": list(self._recent), "told": self._told}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`."""
        self._detector.load_state_dict(state["detector"])
        self._recent = deque(state["recent"], maxlen=_LOOK)
        self._told = state["told"]


def _call(event: Event, step: int, kind: str, first_step: int, value: float) -> Call:
    return Call(kind=kind, step=step, first_step=first_step, value=value, baseline=event.baseline)
