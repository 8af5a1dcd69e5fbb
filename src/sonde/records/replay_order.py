"""What a replay asks of a script that it starts: a small file that an environment variable names, and the file that the answer goes to.

    SONDE_REPLAY=/tmp/…/order.json python train.py

`sonde replay`, `diagnose` and `rollback` write it; the script's `Run` is then a shadow, and its first `flight.step` does what the order says.
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
    """What is to be done at the first step."""

    run: str
    """The run directory."""
    verb: str
    """`replay` or `diagnose`."""
    answer: str
    """The file that the answer goes to."""
    step: int | None = None
    """The step in question."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """How to replay: forensics/replay.py."""
    dump: bool = False
    """Dump the tensors of the step?"""


def order_of_process() -> ReplayOrder | None:
    """The order that this process was started with; None: it trains."""
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
