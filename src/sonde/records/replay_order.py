"""What a replay asks of a script that it starts: an order file named by an environment variable, and an answer file.

    SONDE_REPLAY=/tmp/…/order.json python train.py

`sonde replay`, `diagnose` and `rollback` write it; the script's `Run` then writes nothing into the run, and its first
`flight.step` carries out the order.
"""

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, final

import msgspec

from sonde.errors import DamagedFile
from sonde.records.atomic import write_file
from sonde.records.files import read_small
from sonde.records.values import decode, encode

VARIABLE: Final = "SONDE_REPLAY"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayOrder:
    """What to do at the first step."""

    run: str
    """The run directory."""
    verb: str
    """`replay` or `diagnose`."""
    answer: str
    """The file for the answer."""
    step: int | None = None
    """The step in question."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Replay options (see forensics/replay.py)."""
    dump: bool = False
    """Whether to dump the tensors of the step."""


def order_of_process() -> ReplayOrder | None:
    """Return the order that this process was started with, or None if it should train."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    try:
        return msgspec.convert(decode(read_small(path, follow=True)), ReplayOrder)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise DamagedFile(
            f"the order of a replay cannot be read: {path}",
            cause=str(error),
            hint=f"unset {VARIABLE} to train",
        ) from None


def write_order(path: Path, order: ReplayOrder) -> None:
    """Write an order."""
    write_file(path, encode(asdict(order)))


def write_answer(order: ReplayOrder, answer: Mapping[str, Any]) -> None:
    """Write the answer to an order."""
    write_file(Path(order.answer), encode(dict(answer), max_bytes=1 << 30))
