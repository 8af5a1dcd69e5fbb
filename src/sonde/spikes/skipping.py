"""From a spike to a skip list: absolute sample numbers, which the sampler leaves out from then on.

The list (data/skip_list.py) is in the run directory unless another path is given; entries are only added, never
removed. What was added is recorded as an event of the run (`skip`) and in its manifest under `skip_lists` with the
file's digest, so that a run always documents what it was not trained on. While the run is active, its process owns the
manifest: then only the event is written, and the field is updated when the run ends or is restarted.
"""

from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from sonde.data.skip_list import SkipList, append_entries, read_skip_list
from sonde.errors import SettingError
from sonde.records.catalog import run_status
from sonde.records.checksums import file_digest
from sonde.records.journal import append_event, read_events
from sonde.records.layout import RunLayout
from sonde.records.manifest import RUNNING, Manifest, read_manifest, write_manifest
from sonde.spikes.spike_log import RankedSample, read_spikes

MANIFEST_FIELD: Final = "skip_lists"
"""The manifest field that lists the skip lists."""
SKIP: Final = "skip"
"""The event that records additions to a skip list."""
_NOTED: Final = ("time", "path", "sha256", "step")


class Skipped(NamedTuple):
    """What was added to a skip list."""

    path: Path
    """The path of the skip list."""
    added: SkipList
    """The samples that were not on the list before."""
    num_known: int
    """The number of samples that were already on the list."""


def skip_step(run: Path, step: int, *, worst: int | None = None, path: Path | None = None) -> Skipped:
    """Add the samples of a recorded step, all of them or the `worst` few, to the run's skip list."""
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
    wanted = as_skip_list(found[:worst])
    chosen = "all samples" if worst is None else f"the worst {worst} samples"
    return wanted, f"{chosen} of step {step} of {read_manifest(run).run_id}"


def skip_samples(run: Path, wanted: SkipList, *, step: int, remark: str, path: Path | None = None) -> Skipped:
    """Add samples to the run's skip list because of a step, with a remark, and record the addition in the run."""
    path = path or RunLayout(run).skip_list
    before = read_skip_list(path) if path.exists() else SkipList()
    added = SkipList(
        {name: [one for one in wanted.samples(name).tolist() if (name, one) not in before] for name in wanted.datasets}
    )
    if len(added):
        append_entries(path, added, remark)
        _record(run, path, step, added)
    return Skipped(path, added, len(wanted) - len(added))


def as_skip_list(samples: list[RankedSample]) -> SkipList:
    """Convert samples to a skip list. Raises SettingError if one has no dataset and number."""
    numbers: dict[str, list[int]] = {}
    for sample in samples:
        if not sample.dataset or not isinstance(sample.sample, int):
            raise SettingError(
                f"sample {sample.sample!r} cannot stand in a skip list",
                cause="a skip list names a dataset and a number",
                hint="give the recorder pairs: sample_ids=[('train', 20117), …]",
            )
        if sample.sample >= 0:  # -1 is the placeholder of a rank without data
            numbers.setdefault(sample.dataset, []).append(sample.sample)
    if not numbers:
        raise SettingError("this step recorded no samples", hint="give the recorder sample_ids")
    return SkipList(numbers)


def _record(run: Path, path: Path, step: int, added: SkipList) -> None:
    """Record in the run what was added to the skip list."""
    samples = {name: added.samples(name).tolist() for name in added.datasets}
    append_event(run, SKIP, path=str(path.absolute()), sha256=file_digest(path), step=step, samples=samples)
    manifest = read_manifest(run)
    if run_status(run, manifest) != RUNNING:
        write_manifest(run, with_recorded_skips(run, manifest))


def with_recorded_skips(run: Path, manifest: Manifest) -> Manifest:
    """Return the manifest with all skips in the run's events; those added to an active run are recorded only there."""
    notes = [
        {**{name: record[name] for name in _NOTED}, "num_samples": sum(map(len, record["samples"].values()))}
        for record in read_events(run, SKIP)
        if record.keys() >= {*_NOTED} and isinstance(record.get("samples"), dict)
    ]
    return replace(manifest, other={**manifest.other, MANIFEST_FIELD: notes}) if notes else manifest
