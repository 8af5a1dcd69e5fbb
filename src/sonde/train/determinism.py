"""Threads and modes of torch that decide the last bits of a result: a run records them, a resume tells of changes, and a replay takes them on."""

import contextlib
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from sonde.records.reader import read_records

EVENT: Final = "determinism"
"""The event in which a run tells of them."""

_logger = logging.getLogger("sonde")


def describe_determinism() -> dict[str, Any]:
    """As they are in this process."""
    return {
        "num_threads": torch.get_num_threads(),
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "cudnn_benchmark": torch.backends.cudnn.benchmark,
        "matmul_precision": torch.get_float32_matmul_precision(),
    }


def set_determinism(recorded: Mapping[str, Any]) -> None:
    """Take on what another process recorded; what it did not record stays."""
    now = describe_determinism()
    # Only what differs: asking for what is there already can import torch's whole compiler, a second of CPU.
    wanted = {name: recorded[name] for name in now if name in recorded and recorded[name] != now[name]}
    threads = wanted.get("num_threads")
    if isinstance(threads, int) and threads > 0:
        torch.set_num_threads(threads)
    if isinstance(wanted.get("deterministic_algorithms"), bool):
        torch.use_deterministic_algorithms(wanted["deterministic_algorithms"])
    if isinstance(wanted.get("cudnn_benchmark"), bool):
        torch.backends.cudnn.benchmark = wanted["cudnn_benchmark"]
    if wanted.get("matmul_precision") in ("highest", "high", "medium"):
        torch.set_float32_matmul_precision(wanted["matmul_precision"])


def tell_changes(events: Path) -> None:
    """Warn of what is not as it was at the last start of a run, whose events these are."""
    before: Mapping[str, Any] = {}
    with contextlib.suppress(OSError):
        for record in read_records(events):
            before = record if record.get("event") == EVENT else before
    for name, value in describe_determinism().items():
        if before.get(name, value) != value:
            _logger.warning(
                "%s is %s, and was %s when this run last started: from here on its last bits may differ",
                name.replace("_", " ").replace("num ", "the number of "),
                value,
                before[name],
            )
