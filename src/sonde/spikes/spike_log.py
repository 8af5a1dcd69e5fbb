"""Read the spikes of a run: merged over ranks, each once no matter how often the run was restarted.

A step that was repeated after a restart may have spiked again: the last record of each rank for a
step counts, and `num_seen` says how many there were. Samples of all ranks are ranked together by
their share of the step's loss.

From a spike to a skip list (data/skip_list.py): absolute sample numbers, which the sampler leaves
out from then on. The list is in the run directory unless another path is given; entries are only
added, never removed. What was added is recorded as an event of the run (`skip`) and in its manifest
under `skip_lists` with the file's digest, so that a run always documents what it was not trained
on. While the run is active, its process owns the manifest: then only the event is written, and the
field is updated when the run ends or is restarted.

Needs no torch.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias, get_type_hints

import numpy as np

from sonde.data.skip_list import SkipList, append_entries, read_skip_list
from sonde.errors import SettingError
from sonde.records.catalog import run_status
from sonde.records.checksums import file_digest
from sonde.records.journal import append_event, read_events
from sonde.records.layout import SPIKES, RunLayout
from sonde.records.manifest import RUNNING, Manifest, read_manifest, write_manifest
from sonde.records.reader import Record, read_records
from sonde.spikes.detectors import Event, merge_events
from sonde.spikes.sample_watch import LOSS
from sonde.spikes.spike_records import SAMPLE, SPIKE, SPIKE_DATA, SPIKE_END

MANIFEST_FIELD: Final = "skip_lists"
"""The manifest field that lists the skip lists."""
SKIP: Final = "skip"
"""The event that records additions to a skip list."""
_NOTED: Final = ("time", "path", "sha256", "step")

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
    """The step, if the sample was recorded because its own loss stood out. Its share of the step is
    then not known.
    """
    time: float | None = None
    """When that was, in seconds since the epoch."""
    expected: float | None = None
    """The expected loss for its length at that time."""
    z: float | None = None
    """How far it was above samples of its length, in deviations."""
    measure: str = LOSS
    """What it stood out by: its loss, or its bits per character."""


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
    """Every recorded step before and during the event: what each rank recorded, in order of ranks.

    The entries of the first step have the losses of single tokens, by row, as `tokens`.
    """

    def spans(self, step: int) -> bool:
        """Return whether the step is one of the event's."""
        return self.event.first_step <= step <= self.event.last_step

    def holds(self, step: int) -> bool:
        """Return whether the event spans this step or has its samples."""
        return self.spans(step) or step in self.steps

    def samples(self, step: int | None = None) -> list[RankedSample]:
        """Return the samples of a step, worst first; by default those of the first bad one, if they
        were recorded.
        """
        if step is not None and step not in self.steps:
            known = ", ".join(map(str, sorted(self.steps)))
            raise SettingError(
                f"step {step} was not kept with this event", hint=f"it has the steps {known}"
            )
        return rank_samples(self.steps.get(self.event.first_step if step is None else step, ()))


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
        """Return the event that a step belongs to: it began there, spans it, or at least has its
        samples.
        """
        found = [spike for spike in self.spikes if spike.holds(step)]
        if found:
            return min(
                found, key=lambda spike: (spike.event.first_step != step, not spike.spans(step))
            )
        steps = {spike.event.first_step for spike in self.spikes} | {
            sample.step or 0 for sample in self.samples
        }
        known = ", ".join(map(str, sorted(steps)[:20]))
        hint = f"spikes were recorded at step {known}" if known else "no spike was recorded at all"
        raise SettingError(f"no spike was recorded at step {step}", hint=hint)

    def samples_at(self, step: int) -> list[RankedSample]:
        """Return the outlying samples of a step."""
        return [sample for sample in self.samples if sample.step == step]


def read_spikes(run: str | Path) -> SpikeLog:
    """Read the spikes of the run directory `run`.

    ```python
    from sonde import Run
    from sonde.spikes import read_spikes

    with Run("runs/mine") as run:
        spikes = run.spikes()
        for step in range(1, 301):
            losses = [3.0 + 0.1 * ((7 * step + row) % 5) for row in range(8)]
            losses[0] += 6.0 * (step == 250)
            rows = [("train", 8 * step + row) for row in range(8)]
            spikes.observe(step, sum(losses) / 8, sample_ids=rows, sample_losses=losses)
    (spike,) = read_spikes("runs/mine").spikes
    assert (spike.event.first_step, spike.samples()[0].sample) == (250, 2000)
    ```
    """
    files = RunLayout(Path(run)).record_files(SPIKES)
    if not files:
        # raises if this is not a run; a recorder used alone leaves records but no manifest
        read_manifest(run)
    collected = _Collected()
    num_bad = 0
    for file in files:
        reading = read_records(file.path)
        for record in reading:
            try:
                collected.add(record, file.rank)
            except (KeyError, TypeError, ValueError, OverflowError):
                num_bad += 1
        num_bad += reading.num_bad
    return SpikeLog(
        spikes=tuple(collected.spikes()),
        samples=tuple(collected.outlying_samples()),
        datasets=collected.datasets,
        num_bad=num_bad,
    )


class _Collected:
    """The records of all ranks, by what they belong to. A later record replaces an earlier one."""

    def __init__(self) -> None:
        self.datasets: dict[str, Mapping[str, Any]] = {}
        self._begun: dict[int, dict[int, list[Record]]] = {}
        """The beginnings of events by step and rank: several if the run was restarted."""
        self._ended: dict[tuple[int, int], Record] = {}
        """The end of an event by rank and step of its beginning."""
        self._outlying: dict[tuple[int, int], list[RankedSample]] = {}
        """Outlying samples by step and rank."""

    def add(self, record: Record, rank: int) -> None:
        """Add a record of a rank. One that lacks something raises, and is not added."""
        kind = record.get("type")
        if kind == SPIKE:
            _check(record)
            step = int(record["step"])
            self._begun.setdefault(step, {}).setdefault(rank, []).append(record)
            self._ended.pop((rank, step), None)
        elif kind == SPIKE_END:
            _check(record)
            self._ended[rank, int(record["step"])] = record
        elif kind == SAMPLE:
            self._outlying[int(record["step"]), rank] = _outlying(record, rank)
        elif kind == SPIKE_DATA:
            self.datasets.update(record["datasets"])

    def spikes(self) -> Iterator[RecordedSpike]:
        """Yield the events in order of steps."""
        for step, records_of_rank in sorted(self._begun.items()):
            yield _merge(step, records_of_rank, self._ended)

    def outlying_samples(self) -> Iterator[RankedSample]:
        """Yield the outlying samples in order of steps, then of ranks."""
        for place in sorted(self._outlying):
            yield from self._outlying[place]


def rank_samples(entries: Iterable[Record]) -> list[RankedSample]:
    """Rank the samples of one step over all ranks, worst first.

    The worst has the greatest share of the step's loss: the mean loss per token times the number of
    tokens, if known.
    """
    found = [sample for entry in entries for sample in samples_of(entry)]
    weights = np.array([_weight(sample) for sample in found])
    if not np.isfinite(weights).all():  # non-finite losses make up all of a sum
        weights = 1.0 - np.isfinite(weights)
    total = weights.sum()
    shares = weights / total if total > 0 else np.zeros(len(found))
    shared = [
        replace(sample, share=share) for sample, share in zip(found, shares.tolist(), strict=True)
    ]
    return sorted(shared, key=lambda sample: (-sample.share, -(sample.loss or 0.0)))


def _weight(sample: RankedSample) -> float:
    """Return a sample's part of the sum of losses, scaled down (exactly) so that no sum of the
    largest losses overflows.
    """
    if sample.loss is None:
        return 0.0
    return sample.loss * 2.0**-100 * (1 if sample.num_tokens is None else sample.num_tokens)


def samples_of(entry: Record) -> Iterator[RankedSample]:
    """Yield the samples that one rank recorded of a step."""
    rank = int(entry["rank"])
    ids = entry.get("sample_ids") or []
    losses = entry.get("sample_losses") or []
    counts = entry.get("token_counts") or []
    tokens: Mapping[int, Any] = entry.get("tokens", {})
    for row, (name, loss, count) in enumerate(islice(zip_longest(ids, losses, counts), len(ids))):
        yield _sample(rank, name, loss, count, tokens.get(row))


def _sample(rank: int, name: Any, loss: Any, count: Any, tokens: Any, **more: Any) -> RankedSample:
    """Create a sample from the name that a loop gave it: a pair of dataset and number, or anything
    else.
    """
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
    step = int(record["step"])
    time = float(record["time"])
    return [
        _sample(
            rank,
            row["sample"],
            float(row["loss"]),
            row.get("num_tokens"),
            row.get("token_losses"),
            step=step,
            time=time,
            expected=float(row["expected"]),
            z=float(row["z"]),
            measure=str(record.get("measure", LOSS)),
            share=math.nan,
        )
        for row in record["samples"]
    ]


def _event_of(record: Record) -> Event:
    return Event(
        **{name: kind(record["event"][name]) for name, kind in get_type_hints(Event).items()}
    )


def _check(record: Record) -> None:
    """Raise KeyError, TypeError, ValueError or OverflowError if a record lacks what `_merge`
    needs.
    """
    _event_of(record)
    float(record.get("time", math.nan))
    for entry in record.get("steps", ()):
        int(entry["step"]), dict(entry)
    for row in record.get("tokens", ()):
        int(row["row"]), [float(loss) for loss in row["losses"]]


def _merge(
    step: int, by_rank: Mapping[int, list[Record]], ends: Mapping[tuple[int, int], Record]
) -> RecordedSpike:
    steps: dict[int, list[Record]] = {}
    events = []
    over = []
    for rank, records in sorted(by_rank.items()):
        last = records[-1]
        end = ends.get((rank, step))
        tokens = {int(row["row"]): row["losses"] for row in last.get("tokens", ())}
        for entry in [*last.get("steps", ()), *(end or {}).get("steps", ())]:
            number = int(entry["step"])
            values = {**entry, "rank": rank, "tokens": tokens if number == step else {}}
            steps.setdefault(number, []).append(values)
        events.append(_event_of(end or last))
        if end is not None:
            over.append(bool(end.get("over")))
    return RecordedSpike(
        event=merge_events(events),
        ranks=tuple(sorted(by_rank)),
        num_seen=max(len(records) for records in by_rank.values()),
        time=max(float(records[-1].get("time", math.nan)) for records in by_rank.values()),
        is_over=all(over) if over else None,
        steps={number: tuple(entries) for number, entries in steps.items()},
    )


class Skipped(NamedTuple):
    """What was added to a skip list."""

    path: Path
    """The path of the skip list."""
    added: SkipList
    """The samples that were not on the list before."""
    num_known: int
    """The number of samples that were already on the list."""


def skip_step(
    run: Path, step: int, *, worst: int | None = None, path: Path | None = None
) -> Skipped:
    """Add the samples of a recorded step, all of them or the `worst` few, to the run's skip
    list.
    """
    wanted, remark = samples_of_step(run, step, worst=worst)
    return skip_samples(run, wanted, step=step, remark=remark, path=path)


def samples_of_step(run: Path, step: int, *, worst: int | None = None) -> tuple[SkipList, str]:
    """Return the samples of a recorded step, all of them or the `worst` few, and a description."""
    if worst is not None and worst < 1:
        raise SettingError(f"worst is the number of samples to skip, 1 or more, not {worst}")
    log = read_spikes(run)
    if any(spike.holds(step) for spike in log.spikes) or not log.samples_at(step):
        # Exactly this step: another step of the event had other samples.
        found = log.at(step).samples(step)
    else:
        found = log.samples_at(step)
    wanted = as_skip_list((sample.dataset, sample.sample) for sample in found[:worst])
    chosen = "all samples" if worst is None else f"the worst {worst} samples"
    return wanted, f"{chosen} of step {step} of {read_manifest(run).run_id}"


def skip_samples(
    run: Path, wanted: SkipList, *, step: int, remark: str, path: Path | None = None
) -> Skipped:
    """Add samples to the run's skip list because of a step, with a remark, and record the addition
    in the run.
    """
    path = path or RunLayout(run).skip_list
    before = read_skip_list(path) if path.exists() else SkipList()
    added = SkipList(
        {name: np.setdiff1d(wanted.samples(name), before.samples(name)) for name in wanted.entries}
    )
    if len(added):
        append_entries(path, added, remark)
        _record(run, path, step, added)
    return Skipped(path, added, len(wanted) - len(added))


def as_skip_list(samples: Iterable[tuple[str, SampleId]]) -> SkipList:
    """Convert samples, each a dataset and a number, to a skip list. Raises SettingError if one has
    neither.
    """
    numbers: dict[str, list[int]] = {}
    for dataset, sample in samples:
        if not dataset or not isinstance(sample, int):
            raise SettingError(
                f"sample {sample!r} cannot stand in a skip list",
                cause="a skip list names a dataset and a number",
                hint="give the recorder pairs: sample_ids=[('train', 20117), …]",
            )
        if sample >= 0:  # -1 is the placeholder of a rank without data
            numbers.setdefault(dataset, []).append(sample)
    if not numbers:
        raise SettingError("this step recorded no samples", hint="give the recorder sample_ids")
    return SkipList(numbers)


def _record(run: Path, path: Path, step: int, added: SkipList) -> None:
    """Record in the run what was added to the skip list."""
    samples = {name: added.samples(name).tolist() for name in added.entries}
    append_event(
        run, SKIP, path=str(path.absolute()), sha256=file_digest(path), step=step, samples=samples
    )
    manifest = read_manifest(run)
    if run_status(run, manifest) != RUNNING:
        write_manifest(run, with_recorded_skips(run, manifest))


def with_recorded_skips(run: Path, manifest: Manifest) -> Manifest:
    """Return the manifest with all skips in the run's events; those added to an active run are
    recorded only there.
    """
    notes = []
    for record in read_events(run, SKIP):
        if record.keys() >= {*_NOTED} and isinstance(record.get("samples"), dict):
            note = {name: record[name] for name in _NOTED}
            note["num_samples"] = sum(map(len, record["samples"].values()))
            notes.append(note)
    if not notes:
        return manifest
    return replace(manifest, other={**manifest.other, MANIFEST_FIELD: notes})
