"""The healing history of a run: its event records, what is still to be done, and a readable account. Needs no torch.

    {"event":"heal","phase":"called", …}      an anomaly did not pass by itself
    {"event":"heal","phase":"act", …}         what will be done about it, written before it is done
    {"event":"heal","phase":"done"}           it has been done
    {"event":"heal","phase":"would", …}       what would have been done, in a dry run

A process that was killed between two records continues with the next one. A pending call or act is void once a later
training went on without it. `sonde show`, the report and the dashboard show the same account: what happened, what was
done, and what it cost.
"""

import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from sonde.errors import RunError
from sonde.heal.decision import Act, Call
from sonde.records.journal import append_event, read_events

EVENT: Final = "heal"
_TRAINS: Final = "determinism"
"""The event that every training writes when it begins (train/determinism.py)."""


class History(NamedTuple):
    """The complete healing history of a run."""

    acts: tuple[Act, ...] = ()
    """The actions, in order."""
    would: tuple[Act, ...] = ()
    """The actions that dry runs would have taken."""
    call: Call | None = None
    """An anomaly that was reported but not decided yet."""
    act: Act | None = None
    """An action that was decided but not carried out yet."""


def read_history(run: str | os.PathLike[str]) -> History:
    """Read the healing history of a run; records that cannot be read are skipped."""
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
    """Append a record to the history, synced to disk before this returns."""
    told: Mapping[str, Any] = {name: asdict(one) for name, one in details.items()}
    if not append_event(run, EVENT, phase=phase, **told):
        raise RunError(f"{run} cannot be mended: its events cannot be written", hint="free the disk, and start again")


def told(run: str | os.PathLike[str]) -> list[list[str]]:
    """Describe each time that the run was healed, or would have been, in a few sentences; empty if there were none."""
    history = read_history(run)
    chapters = [told_of_act(one) for one in history.acts] + [told_of_act(one, would=True) for one in history.would]
    if history.acts:
        chapters.append([_in_all(history.acts)])
    return chapters


def told_of_act(act: Act, *, would: bool = False) -> list[str]:
    """Describe an action in four sentences: what happened, what was found, what was done, and what it cost."""
    found = f"The verdict, {act.confidence:.0%} sure: {act.title} So:" if act.title else "No verdict:"
    done = f"Would have been done: {_done(act)}" if would else _done(act)
    cost = f"Cost: {counted(act.num_repeated, 'update')} again, {act.seconds:.0f} s to find out."
    return [_happened(act.call), f"{found} {act.why}.", done, cost]


def _happened(call: Call) -> str:
    if not math.isfinite(call.value):
        return f"Update {call.first_step}: the loss was not finite."
    expected = "" if math.isnan(call.baseline) else f" where {call.baseline:.4g} was expected"
    waited = call.step - call.first_step
    return (
        f"Update {call.first_step}: the loss was {call.value:.4g}{expected}, and did not come back in {waited} updates."
    )


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
    return f"Back to {place}, and on without {whose}{counted(act.num_skipped, 'sample')} ({which})."


def _in_all(acts: tuple[Act, ...]) -> str:
    back = [one for one in acts if one.kind != "stop"]
    samples = counted(sum(one.num_skipped for one in back), "sample")
    updates = counted(sum(one.num_repeated for one in back), "update")
    return f"In all: mended {counted(len(back), 'time')}, {samples} left out, {updates} made again."


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
