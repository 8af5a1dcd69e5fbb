"""Read the spikes of a run: merged over ranks, each once no matter how often the run was restarted.

A step that was repeated after a restart may have spiked again: the last record of each rank for a step counts, and
`num_seen` says how many there were. Samples of all ranks are ranked together by their share of the step's loss. Needs
no torch.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, TypeAlias, get_type_hints

import numpy as np

from sonde.errors import SettingError
from sonde.records.layout import SPIKES, RunLayout
from sonde.records.manifest import read_manifest
from sonde.records.reader import Record, read_records
from sonde.spikes.detectors import Event, merge_events
from sonde.spikes.spike_records import SAMPLE, SPIKE, SPIKE_DATA, SPIKE_END

SampleId: TypeAlias = int | str


@dataclass(frozen=True, kw_only=True, slots=True)
class RankedSample:
    """One sample of a step."""

    rank: int = 0
    """The rank that had the sample."""
    dataset: str
    """The name of the dataset; empty if ids were plain."""
    sample: SampleId
    """The number in the dataset, or the name that the training loop gave it."""
    loss: float | None = None
    """The mean loss per token; None if it was not recorded."""
    num_tokens: int | None = None
    """The number of target tokens, if known."""
    share: float = 0.0
    """Its share of the loss of the step over all ranks, from 0 to 1."""
    token_losses: tuple[float, ...] | None = None
    """The loss of each of its tokens; recorded for the worst samples."""
    step: int | None = None
    """The step, if the sample was recorded because its own loss stood out. Its share of the step is then not known."""
    time: float | None = None
    """When that was, in seconds since the epoch."""
    expected: float | None = None
    """The expected loss for its length at that time."""
    z: float | None = None
    """How far above that its loss was, in deviations."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RecordedSpike:
    """One event of a run, from the records of all ranks."""

    event: Event
    """The event."""
    ranks: tuple[int, ...]
    """The ranks that recorded it."""
    num_seen: int
    """How often it happened: once, plus once for every restart that repeated it."""
    time: float
    """When it happened, in seconds since the epoch."""
    is_over: bool | None
    """Whether it ended; None if nothing was recorded after its beginning."""
    steps: Mapping[int, tuple[Record, ...]] = field(repr=False)
    """Every recorded step before and during the event: what each rank recorded, in order of ranks."""
    tokens: Mapping[tuple[int, int], tuple[float, ...]] = field(repr=False)
    """The token losses of the first step, by rank and row."""

    def holds(self, step: int) -> bool:
        """Return whether the event spans this step or has its samples."""
        return self.event.first_step <= step <= self.event.last_step or step in self.steps

    def samples(self, step: int | None = None) -> list[RankedSample]:
        """Return the samples of a step, worst first; by default those of the first bad one, if they were recorded."""
        if step is not None and step not in self.steps:
            known = ", ".join(map(str, sorted(self.steps)))
            raise SettingError(f"step {step} was not kept with this event", hint=f"it has the steps {known}")
        wanted = self.event.first_step if step is None else step
        return rank_samples(self.steps.get(wanted, ()), self.tokens if wanted == self.event.first_step else {})


@dataclass(frozen=True, kw_only=True, slots=True)
class SpikeLog:
    """All spikes of a run."""

    spikes: tuple[RecordedSpike, ...]
    """The events, in order of steps."""
    samples: tuple[RankedSample, ...] = ()
    """Outlying single samples in order of steps, worst first in each."""
    datasets: Mapping[str, Mapping[str, Any]]
    """The run's description of its datasets (decoding.py)."""
    num_bad: int
    """The number of lines and records that could not be decoded."""

    def at(self, step: int) -> RecordedSpike:
        """Return the event that a step belongs to: it began there, spans it, or at least has its samples."""
        found = [spike for spike in self.spikes if spike.holds(step)]
        began = [spike for spike in found if spike.event.first_step == step]
        spans = [spike for spike in found if spike.event.first_step <= step <= spike.event.last_step]
        if found:
            return (began or spans or found)[0]
        steps = {spike.event.first_step for spike in self.spikes} | {sample.step or 0 for sample in self.samples}
        known = ", ".join(map(str, sorted(steps)[:20]))
        hint = f"there are {known}" if known else "there are none"
        raise SettingError(f"no spike was recorded at step {step}", hint=hint)

    def samples_at(self, step: int) -> list[RankedSample]:
        """Return the outlying samples of a step."""
        return [sample for sample in self.samples if sample.step == step]


def read_spikes(run: str | Path) -> SpikeLog:
    """Read the spikes of the run directory `run`."""
    files = RunLayout(Path(run)).record_files(SPIKES)
    if not files:
        read_manifest(run)  # raises if this is not a run; a recorder used alone leaves records but no manifest
    groups: dict[int, dict[int, list[Record]]] = {}
    ends: dict[tuple[int, int], Record] = {}
    datasets: dict[str, Mapping[str, Any]] = {}
    outlying: dict[tuple[int, int], list[RankedSample]] = {}
    num_bad = 0
    for file in files:
        reading = read_records(file.path)
        for record in reading:
            try:
                if record.get("type") == SPIKE:
                    _check(record)
                    groups.setdefault(int(record["step"]), {}).setdefault(file.rank, []).append(record)
                    ends.pop((file.rank, int(record["step"])), None)
                elif record.get("type") == SPIKE_END:
                    _check(record)
                    ends[file.rank, int(record["step"])] = record
                elif record.get("type") == SAMPLE:
                    outlying[int(record["step"]), file.rank] = _outlying(record, file.rank)
                elif record.get("type") == SPIKE_DATA:
                    datasets.update(record["datasets"])
            except (KeyError, TypeError, ValueError, OverflowError):
                num_bad += 1
        num_bad += reading.num_bad
    spikes = tuple(_merge(step, by_rank, ends) for step, by_rank in sorted(groups.items()))
    samples = tuple(sample for _, found in sorted(outlying.items(), key=lambda item: item[0]) for sample in found)
    return SpikeLog(spikes=spikes, samples=samples, datasets=datasets, num_bad=num_bad)


def rank_samples(
    entries: Iterable[Record], tokens: Mapping[tuple[int, int], tuple[float, ...]] | None = None
) -> list[RankedSample]:
    """Rank the samples of one step over all ranks, worst first.

    The worst has the greatest share of the step's loss: the mean loss per token times the number of tokens, if known.
    """
    found = [sample for entry in entries for sample in samples_of(entry, tokens or {})]
    weights = np.array([_weight(sample) for sample in found])
    if not np.isfinite(weights).all():  # non-finite losses make up all of a sum
        weights = 1.0 - np.isfinite(weights)
    total = weights.sum()
    shares = weights / total if total > 0 else np.zeros(len(found))
    shared = [replace(sample, share=share) for sample, share in zip(found, shares.tolist(), strict=True)]
    return sorted(shared, key=lambda sample: (-sample.share, -(sample.loss or 0.0)))


def _weight(sample: RankedSample) -> float:
    """Return a sample's part of the sum of losses, scaled down (exactly) so that no sum of the largest losses overflows."""
    if sample.loss is None:
        return 0.0
    return sample.loss * 2.0**-100 * (1 if sample.num_tokens is None else sample.num_tokens)


def samples_of(entry: Record, tokens: Mapping[tuple[int, int], tuple[float, ...]]) -> Iterator[RankedSample]:
    """Yield the samples that one rank recorded of a step. `tokens` are the token losses by rank and row."""
    rank, ids = int(entry["rank"]), entry.get("sample_ids") or []
    losses, counts = entry.get("sample_losses") or [], entry.get("token_counts") or []
    for row, (name, loss, count) in enumerate(islice(zip_longest(ids, losses, counts), len(ids))):
        yield _sample(rank, name, loss, count, tokens.get((rank, row)))


def _sample(rank: int, name: Any, loss: Any, count: Any, tokens: Any, **more: Any) -> RankedSample:
    """Create a sample from the name that a loop gave it: a pair of dataset and number, or anything else."""
    is_pair = isinstance(name, Sequence) and not isinstance(name, str) and len(name) == 2
    dataset, sample = name if is_pair else ("", name)
    return RankedSample(
        rank=rank,
        dataset=str(dataset),
        sample=sample if isinstance(sample, int) else str(sample),
        loss=None if loss is None else float(loss),
        num_tokens=None if count is None else int(count),
        token_losses=None if tokens is None else tuple(map(float, tokens)),
        **more,
    )


def _outlying(record: Record, rank: int) -> list[RankedSample]:
    step, time = int(record["step"]), float(record["time"])
    found = []
    for row in record["samples"]:
        told = {"expected": float(row["expected"]), "z": float(row["z"]), "share": math.nan}
        values = row["sample"], float(row["loss"]), row.get("num_tokens"), row.get("token_losses")
        found.append(_sample(rank, *values, step=step, time=time, **told))
    return found


def _event_of(record: Record) -> Event:
    return Event(**{name: kind(record["event"][name]) for name, kind in get_type_hints(Event).items()})


def _check(record: Record) -> None:
    """Raise KeyError, TypeError, ValueError or OverflowError if a record lacks what `_merge` needs."""
    _event_of(record)
    float(record.get("time", math.nan))
    for entry in record.get("steps", ()):
        int(entry["step"]), dict(entry)
    for row in record.get("tokens", ()):
        int(row["row"]), [float(loss) for loss in row["losses"]]


def _merge(step: int, by_rank: Mapping[int, list[Record]], ends: Mapping[tuple[int, int], Record]) -> RecordedSpike:
    steps: dict[int, list[Record]] = {}
    tokens: dict[tuple[int, int], tuple[float, ...]] = {}
    events, over = [], []
    for rank, records in sorted(by_rank.items()):
        last, end = records[-1], ends.get((rank, step))
        for entry in [*last.get("steps", ()), *(end or {}).get("steps", ())]:
            steps.setdefault(int(entry["step"]), []).append({**entry, "rank": rank})
        for row in last.get("tokens", ()):
            tokens[rank, int(row["row"])] = tuple(row["losses"])
        events.append(_event_of(end or last))
        over += [] if end is None else [bool(end.get("over"))]
    return RecordedSpike(
        event=merge_events(events),
        ranks=tuple(sorted(by_rank)),
        num_seen=max(len(records) for records in by_rank.values()),
        time=max(float(records[-1].get("time", math.nan)) for records in by_rank.values()),
        is_over=all(over) if over else None,
        steps={number: tuple(entries) for number, entries in steps.items()},
        tokens=tokens,
    )
