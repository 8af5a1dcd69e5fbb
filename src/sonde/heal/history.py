"""What a run called for, decided and did about itself: records in its events, what of it is still to be done, and all of it as a story. No torch.

    {"event":"heal","phase":"called", …}      something did not pass by itself
    {"event":"heal","phase":"act", …}         what is done about it: written before it is done
    {"event":"heal","phase":"done"}           it was
    {"event":"heal","phase":"would", …}       what would have been done, in a dry run

Whoever was killed between two of them goes on with the next. A call or an act that a training passed over is of no force any more: somebody
trained on without it. The story is the same lines for `sonde show`, report and dashboard: what happened, what was done, what it cost.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final, Literal, final

import msgspec

from sonde.errors import RunError
from sonde.heal.decision import Act, Call
from sonde.records.events import append_event, read_events

EVENT: Final = "heal"
_TRAINS: Final = "determinism"
"""What every training writes when it begins (train/determinism.py)."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class History:
    """All that a run did about itself."""

    acts: tuple[Act, ...] = ()
    """In order."""
    would: tuple[Act, ...] = ()
    """What dry runs would have done."""
    call: Call | None = None
    """What was called for and not decided yet."""
    act: Act | None = None
    """What was decided and not done yet."""


def read_history(run: str | os.PathLike[str]) -> History:
    """The history of a run; what cannot be read in it is passed over."""
    acts: list[Act] = []
    would: list[Act] = []
    call: Call | None = None
    act: Act | None = None
    for record in read_events(Path(run), EVENT, _TRAINS):
        phase = record.get("phase") if record["event"] == EVENT else None
        if record["event"] == _TRAINS or phase == "done":
            call = act = None
        try:
            if phase == "called":
                call = msgspec.convert(record.get("call"), Call)
            elif phase == "act":
                call, act = None, msgspec.convert(record.get("act"), Act)
                acts.append(act)
            elif phase == "would":
                would.append(msgspec.convert(record.get("act"), Act))
        except (msgspec.ValidationError, ValueError):
            continue
    return History(acts=tuple(acts), would=tuple(would), call=call, act=act)


def write_event(run: Path, phase: Literal["called", "act", "done", "would"], **details: Call | Act) -> None:
    """Add to it, on the disk itself before this returns."""
    told: Mapping[str, Any] = {name: asdict(one) for name, one in details.items()}
    if not append_event(run, EVENT, phase=phase, **told):
        raise RunError(f"{run} cannot be mended: its events cannot be written", hint="free the disk, and start again")


def told(run: str | os.PathLike[str]) -> list[list[str]]:
    """The story of a run: a few sentences for each time that it was mended, or would have been; empty when it never was."""
    history = read_history(run)
    chapters = [told_of_act(one) for one in history.acts] + [told_of_act(one, would=True) for one in history.would]
    if history.acts:
        chapters.append([_in_all(history.acts)])
    return chapters


def told_of_act(act: Act, *, would: bool = False) -> list[str]:
    """What happened, what was found, what was done, what it cost: a sentence each."""
    return [_happened(act), _found(act), f"Would have been done: {_done(act)}" if would else _done(act), _cost(act)]


def _happened(act: Act) -> str:
    call = act.call
    if not math.isfinite(call.value):
        return f"Update {call.first_step}: the loss was not finite."
    expected = "" if math.isnan(call.baseline) else f" where {call.baseline:.4g} was expected"
    waited = call.step - call.first_step
    return (
        f"Update {call.first_step}: the loss was {call.value:.4g}{expected}, and did not come back in {waited} updates."
    )


def _found(act: Act) -> str:
    if not act.title:
        return f"No verdict: {act.why}."
    return f"The verdict, {act.confidence:.0%} sure: {act.title} So: {act.why}."


def _done(act: Act) -> str:
    place = f"the state after update {act.checkpoint}" if act.checkpoint else "the beginning"
    if act.kind == "stop":
        return " ".join(["The run ended.", *act.advice])
    if act.kind == "lower rate":
        return f"Back to {place}; the learning rate is at most {act.rate:.3g} until update {act.rate_until}."
    if act.kind == "go back":
        return f"Back to {place}, and on as it was."
    which = ", ".join(
        f"{name} {' '.join(map(str, numbers[:8]))}{' …' * (len(numbers) > 8)}" for name, numbers in act.skip.items()
    )
    whose = "the batch, " if act.kind == "skip batch" else ""
    return f"Back to {place}, and on without {whose}{_counted(act.num_skipped, 'sample')} ({which})."


def _cost(act: Act) -> str:
    return f"Cost: {_counted(act.num_repeated, 'update')} again, {act.seconds:.0f} s to find out."


def _in_all(acts: tuple[Act, ...]) -> str:
    back = [one for one in acts if one.kind != "stop"]
    samples = _counted(sum(one.num_skipped for one in back), "sample")
    updates = _counted(sum(one.num_repeated for one in back), "update")
    return f"In all: mended {_counted(len(back), 'time')}, {samples} left out, {updates} made again."


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
