"""The records of a spike, made and understood (docs/formats/spikes.md).

SPIKE        an event has begun: what, where, how far; the steps up to it, with their samples; tokens of the worst ones
SPIKE_END    it is over: its span and peak, and the bad steps that followed the first
SAMPLE       single samples of a step stand out: which, how far, and the losses of their tokens
SPIKE_DATA   which files the datasets are, so that samples can be found again
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any, Final

from sonde.spikes.events import Event
from sonde.spikes.randomness import digests_now
from sonde.spikes.sample_watch import SampleEvent
from sonde.spikes.step_entry import StepEntry

SPIKE: Final = "SPIKE"
SPIKE_END: Final = "SPIKE_END"
SPIKE_DATA: Final = "SPIKE_DATA"
SAMPLE: Final = "SAMPLE"
VERSION: Final = 1


def spike_record(event: Event, entries: Sequence[StepEntry], *, rank: int, time: float, worst: int) -> dict[str, Any]:
    """The record of an event that begins with the last of `entries`."""
    steps = [entry.as_record() for entry in entries]
    return {
        "type": SPIKE,
        "version": VERSION,
        "step": event.first_step,
        "time": time,
        "rank": rank,
        "event": asdict(event),
        "generators": digests_now(),
        "steps": steps,
        "tokens": entries[-1].worst_tokens(steps[-1], worst) if entries else [],
    }


def end_record(event: Event, entries: Sequence[StepEntry], *, rank: int, time: float, over: bool) -> dict[str, Any]:
    """The record of an event that is over, or that was cut off by the end of the run."""
    return {
        "type": SPIKE_END,
        "version": VERSION,
        "step": event.first_step,
        "time": time,
        "rank": rank,
        "over": over,
        "event": asdict(event),
        "steps": [entry.as_record() for entry in entries],
    }


def sample_record(
    event: SampleEvent, entry: StepEntry, tokens: Mapping[int, list[float] | None], *, rank: int, time: float
) -> dict[str, Any]:
    """The record of samples that stand out in a step."""
    told = entry.as_record()
    ids, losses, counts = told["sample_ids"] or [], told["sample_losses"], told["token_counts"]
    return {
        "type": SAMPLE,
        "version": VERSION,
        "step": event.step,
        "time": time,
        "rank": rank,
        "num_samples": len(losses),
        "limit": event.limit,
        "samples": [
            {
                "row": row,
                "sample": ids[row] if row < len(ids) else None,
                "loss": losses[row],
                "expected": expected,
                "z": z,
                "num_tokens": None if counts is None else counts[row],
                "token_losses": tokens.get(row),
            }
            for row, z, expected in zip(event.rows, event.z, event.expected, strict=True)
        ],
    }


def event_of(record: Mapping[str, Any]) -> Event:
    """The event of a record. Raises KeyError, TypeError or ValueError when the record is not one of ours."""
    found = record["event"]
    return Event(
        kind=str(found["kind"]),
        metric=str(found["metric"]),
        first_step=int(found["first_step"]),
        last_step=int(found["last_step"]),
        num_bad=int(found["num_bad"]),
        value=float(found["value"]),
        baseline=float(found["baseline"]),
        z=float(found["z"]),
        peak=float(found["peak"]),
        peak_step=int(found["peak_step"]),
    )
