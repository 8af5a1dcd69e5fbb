"""Options of the recorder: what it watches, what it keeps, and what an event may cost."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from sonde.alerts.targets import Target, TargetLike, target_of
from sonde.checkpoint.resume_report import PARTS
from sonde.errors import SettingError, check_choice
from sonde.fields import Amount, Count, Positive, check_fields
from sonde.heal.decision import Heal
from sonde.spikes.recorder import SpikeSettings

Reaction: TypeAlias = Literal["record", "skip", "stop", "heal"]
"""What to do when the loss jumps or a gradient is not finite.

`record` only records it. `skip` also drops this update's gradients. `stop` ends the run with
`TrainingStopped`. `heal` goes back if the loss does not recover (healing.py).
"""
OnEvent: TypeAlias = Reaction | TargetLike | Sequence[Reaction | TargetLike]
"""A reaction; or a function, a command or the URL of a webhook that is told of every event
(alerts/); or several of these. Without a reaction, events are recorded.
"""
REACTIONS: Final = ("record", "skip", "stop", "heal")
OnResume: TypeAlias = Literal["tell", "stop"]
"""What to do when a resume did not restore everything: tell it, or end the run with
`TrainingStopped` before the first update.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecorderOptions:
    """Options of a `Recorder`. The defaults suit a run of hours on one machine.

    ```python
    from sonde import RecorderOptions

    options = RecorderOptions(state_every=500, max_bytes=5 << 30, vitals=True)
    ```

    Pass them on: `sonde.Recorder("runs/mine", model, optimizer, options=options)`.
    """

    # What is watched.
    spikes: SpikeSettings = field(default_factory=SpikeSettings)
    """How losses and gradient norms are judged. `SpikeSettings(sample_risk=None)` does not watch
    single rows, which costs about as much as all the rest.
    """
    token_losses: Callable[[Any], Any] | None = None
    """A function that returns the token losses of a batch (rows by tokens, NaN where a token does
    not count).

    It is called at a scene and in a replay, and is needed only for models whose loss is a fused
    kernel: `F.cross_entropy` is observed without it.
    """
    rows: Callable[[Any, Sequence[int]], Any] | None = None
    """A function that returns a batch with some of its rows: (batch, rows to keep).

    It says what a row is where the tensors do not, such as pairs that stand in two halves of a
    batch. It is called at a scene and in a replay, if the loss does not show its rows.
    """
    checks: bool = True
    """Look at the first updates for the most common mistakes, and tell what is wrong in one line
    each: mode, gradients that are left over, parameters that no optimizer holds, rates, rows.
    """
    vitals: bool = False
    """Every 50 steps, measure what grows before a spike: the size of the update, the output
    layer's weights, the share of clipped steps, the gradient norm of every parameter group.
    """
    log_every: Count = 10
    """Write a log record every this many steps; 0 disables it. Every step is recorded in any
    case.
    """

    # What is kept.
    state_every: Count | None = None
    """Keep the training state every this many steps. By default every 200, or as seldom as it
    takes to spend at most 1 % of the time on it, and as often as `max_bytes` needs.

    0 means never: then the script's own checkpoints are the states that steps are replayed from.
    """
    keep_states: Positive = 3
    """The number of regular states to keep, besides those from just before events."""
    max_bytes: Count = 20 << 30
    """The disk budget in bytes for kept states and the batches since, of all ranks. 0 keeps
    nothing, so that no step can be replayed.
    """

    # What a resume must restore.
    on_resume: OnResume = "tell"
    """What to do if a resume did not restore everything. `stop` ends the run before the first
    update.
    """
    expect: Sequence[str] = ()
    """Parts of the state that were changed on purpose, such as "rate"; docs/resume.md names them
    all.
    """

    # What an event may cost.
    recent_steps: Positive = 16
    """The number of steps that are held in memory for a look at the scene, with the batches of the
    latest: at most 256 MB beside those of the last step.
    """
    scene_seconds: Amount = 10.0
    """How long a look at the scene of an event may take, in seconds. No forward pass is begun that
    would take longer, as the time of the steps before tells. 0 disables looks.
    """
    max_skipped: Count = 8
    """With `on_event="skip"`, skip at most this many updates in a row. A longer series is not
    caused by a bad batch.
    """
    heal: Heal = field(default_factory=lambda: Heal(max_times=5))
    """The limits for `on_event="heal"`."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_choice(("tell", "stop"), on_resume=self.on_resume)
        for part in self.expect:
            check_choice(PARTS, expect=part)


def split_on_event(on_event: OnEvent) -> tuple[str, list[TargetLike]]:
    """Return the reaction to events, and who is told of them. Raises if that is not clear."""
    parts: list[Any] = [on_event]
    if isinstance(on_event, (list, tuple)) and not isinstance(on_event, Target):
        parts = list(on_event)
    reactions = []
    targets: list[TargetLike] = []
    for part in parts:
        is_word = isinstance(part, str) and part.isidentifier()
        if is_word:
            check_choice(REACTIONS, on_event=part)
            reactions.append(part)
        else:
            targets.append(target_of(part))
    if len(reactions) > 1:
        raise SettingError(f"on_event has several reactions: {', '.join(reactions)}")
    return reactions[0] if reactions else "record", targets


def check_on_event(on_event: str, options: RecorderOptions) -> None:
    """Raise if the reaction to an event cannot work with the options."""
    if on_event != "heal":
        return
    if options.state_every == 0 or options.heal.halve_rate or options.heal.dry_run:
        raise SettingError(
            'on_event="heal" needs kept states (state_every), and neither halves rates nor runs'
            " dry",
            hint=(
                "the learning rate of a loop of one's own is its own: a verdict that blames it"
                " ends the run with the advice"
            ),
        )
