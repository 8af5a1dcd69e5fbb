"""What a run called for, decided and did about itself: records in its events, and what of it is still to be done. No torch.

    {"event":"heal","phase":"called", …}      something did not pass by itself
    {"event":"heal","phase":"act", …}         what is done about it: written before it is done
    {"event":"heal","phase":"done"}           it was
    {"event":"heal","phase":"would", …}       what would have been done, in a dry run

Whoever was killed between two of them goes on with the next. A call or an act that a training passed over is of no force any more: somebody
trained on without it.
"""

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
