"""What a flight recorder watches for and keeps."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal, final

from sonde.errors import SettingError
from sonde.heal.decision import Heal
from sonde.spikes.recorder import RecorderSettings


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class FlightSettings:
    """Settings of a `FlightRecorder`; the defaults suit a run of hours on one machine."""

    on_event: Literal["record", "skip", "stop", "heal"] = "record"
    """When the loss jumps: note it; or drop this update's gradients too; or end the run by `TrainingStopped`; or go back where it does not pass (healing.py)."""
    heal: Heal = field(default_factory=lambda: Heal(max_times=5))
    """How far `"heal"` may go."""
    max_skipped: int = 8
    """So many updates in a row are skipped at most: what goes on for longer is no bad batch."""
    ring_steps: int = 16
    """Updates whose batches are held in memory, for the scene of an event."""
    scene_seconds: float = 10.0
    """How long the scene of an event may take; the step's own forward is run again in any case. 0: no scene at all."""
    scene_batches: int = 6
    """Other batches that are run at the scene, to tell data from state."""
    state_every: int = 200
    """Keep the training state every this many updates; 0: never, and nothing can be replayed later."""
    keep_states: int = 3
    """Kept states, beside those from just before events."""
    keep_event_states: int = 2
    """States from just before an event that are kept."""
    keep_batches: bool = True
    """Keep the batches since the oldest kept state."""
    max_bytes: int = 20 << 30
    """What kept states and batches of all ranks may take of the disk."""
    log_every: int = 10
    """Write a log record every this many updates; 0: none. What every update did is recorded in any case."""
    grad_norm: bool = False
    """Compute the gradient norm where the loop itself does not clip; it costs a pass over all gradients."""
    sample_losses: bool = True
    """Watch single samples too, not only the mean: the loss of every row comes from the graph of the loss, in eager mode. It costs about as much as all
    the rest (benchmarks/integrations.py)."""
    token_losses: Callable[[Any], Any] | None = None
    """The losses of a batch's tokens, rows by tokens, NaN where one does not count; asked at a scene and in a replay. For models whose loss is a fused kernel:
    that of `F.cross_entropy` is seen without."""
    spikes: RecorderSettings = field(default_factory=RecorderSettings)
    """How losses and gradient norms are judged."""

    def __post_init__(self) -> None:
        if self.on_event not in ("record", "skip", "stop", "heal"):
            raise SettingError(f'on_event must be "record", "skip", "stop" or "heal", not {self.on_event!r}')
        if self.on_event == "heal" and (not self.state_every or self.heal.halve_rate or self.heal.dry_run):
            raise SettingError(
                'on_event="heal" needs kept states (state_every), and neither halves rates nor runs dry',
                hint="the learning rate of a loop of one's own is its own: a verdict that blames it ends the run with the advice",
            )
        least = {"ring_steps": 1, "keep_states": 1, "max_bytes": 1}
        for name in ("max_skipped", "ring_steps", "scene_seconds", "scene_batches", "state_every", "keep_states",
                     "keep_event_states", "max_bytes", "log_every"):  # fmt: skip
            value = getattr(self, name)
            if value < least.get(name, 0):
                raise SettingError(f"{name} must be {least.get(name, 0)} or more, not {value!r}")
