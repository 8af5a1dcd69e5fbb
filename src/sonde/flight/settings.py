"""Settings of the flight recorder: what it watches for and what it keeps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from sonde.errors import SettingError
from sonde.fields import Amount, Count, Positive, check_fields
from sonde.heal.decision import Heal
from sonde.spikes.recorder import RecorderSettings


@dataclass(frozen=True, kw_only=True, slots=True)
class FlightSettings:
    """Settings of a `FlightRecorder`. The defaults suit a run of hours on one machine."""

    on_event: Literal["record", "skip", "stop", "heal"] = "record"
    """What to do when the loss jumps.

    `record` only records it. `skip` also drops this update's gradients. `stop` ends the run with `TrainingStopped`.
    `heal` goes back if the loss does not recover (judgement.py).
    """
    heal: Heal = field(default_factory=lambda: Heal(max_times=5))
    """The limits for `on_event="heal"`."""
    max_skipped: Count = 8
    """Skip at most this many updates in a row. A longer series is not caused by a bad batch."""
    ring_steps: Positive = 16
    """The number of updates whose batches are held in memory for the investigation of an event."""
    scene_seconds: Amount = 10.0
    """How long the investigation of an event may take, in seconds. The step's own forward is always repeated. 0 disables investigations."""
    scene_batches: Count = 6
    """The number of other batches to run at the scene, to tell data from state."""
    state_every: Count = 200
    """Keep the training state every this many updates, and the batches since. 0 means never; then nothing can be replayed later."""
    keep_states: Positive = 3
    """The number of regular states to keep, besides those from just before events."""
    keep_event_states: Count = 2
    """The number of states from just before an event to keep."""
    max_bytes: Positive = 20 << 30
    """The disk budget in bytes for kept states and batches of all ranks."""
    log_every: Count = 10
    """Write a log record every this many updates; 0 disables it. Every update is recorded in any case."""
    grad_norm: bool = False
    """Compute the gradient norm if the loop does not clip; this costs a pass over all gradients."""
    sample_losses: bool = True
    """Watch single samples too, not only the mean.

    The loss of every row comes from the graph of the loss, in eager mode. It costs about as much as all the rest
    (benchmarks/integrations.py).
    """
    token_losses: Callable[[Any], Any] | None = None
    """A function that returns the token losses of a batch (rows by tokens, NaN where a token does not count).

    It is called at a scene and in a replay, and is needed only for models whose loss is a fused kernel:
    `F.cross_entropy` is observed without it.
    """
    spikes: RecorderSettings = field(default_factory=RecorderSettings)
    """How losses and gradient norms are judged."""

    def __post_init__(self) -> None:
        check_fields(self)
        if self.on_event == "heal" and (not self.state_every or self.heal.halve_rate or self.heal.dry_run):
            raise SettingError(
                'on_event="heal" needs kept states (state_every), and neither halves rates nor runs dry',
                hint="the learning rate of a loop of one's own is its own: a verdict that blames it ends the run with the advice",
            )
