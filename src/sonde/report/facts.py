"""Everything a report says about a run, as plain data; html/ and markdown.py turn it into text.

`gather` raises only if the directory is not a run. Anything else that is missing, damaged or still being written is
left out and listed in `problems`. Only the worst few events include the text of their samples: those with a verdict
first, then those with the highest z. Decoding one event takes a few milliseconds; if text cannot be found, the sample's
`problem` says so. A run of 450 updates with four events takes 0.07 s of CPU; a million updates take 2 s, plus 7 s if
the run was never indexed.
"""

import math
import statistics
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sonde.checkpoint.folder import About, CheckpointFolder
from sonde.errors import DamagedFile, SondeError
from sonde.forensics.verdict import Verdict, read_verdict
from sonde.heal.decision import told
from sonde.records.catalog import DAMAGED, run_status
from sonde.records.files import open_regular
from sonde.records.layout import RunLayout
from sonde.records.manifest import Manifest, checkpoint_place, read_manifest
from sonde.records.reader import damage_text
from sonde.report.curve import Curve
from sonde.report.run_curves import CURVES, LOSS, VALIDATION_LOSS, RunCurves
from sonde.spikes.decoding import DecodedSample, SampleDecoder
from sonde.spikes.ledger_log import LOW, WorstSample, read_worst
from sonde.spikes.spike_log import RecordedSpike, SpikeLog, read_spikes

PHASES: Final = {
    "waiting for data": "train.data_time",
    "forward": "train.fp_time",
    "backward": "train.bp_time",
    "optimizer": "train.grad_time",
}
_MAX_SKIP_BYTES: Final = 20_000
_MAX_WORST: Final = 10
_MAX_EVENTS: Final = 5
_MAX_SAMPLES: Final = 8
HOTTEST: Final = 9
"""The highest heat level; 0 means no more than the expected loss."""

_Part = TypeVar("_Part")


@dataclass(frozen=True, kw_only=True, slots=True)
class EventFacts:
    """One event with its decoded samples."""

    spike: RecordedSpike
    """The recorded spike."""
    samples: tuple[DecodedSample, ...] = ()
    """The worst samples, worst first; empty if this event is only listed."""
    num_samples: int = 0
    """Number of samples in its first step."""
    cool: float = 0.0
    """Token loss up to which a token is not colored: the step's expected loss or its median token loss, whichever is
    higher."""
    hot: float = 1.0
    """The highest finite token loss."""
    problem: str = ""
    """What could not be read; empty if nothing."""

    def heat(self, loss: float) -> int:
        """Return the heat level of a token loss, from 0 to `HOTTEST`; a non-finite loss is the hottest."""
        if not math.isfinite(loss):
            return HOTTEST
        if self.hot <= self.cool:
            return 0
        above = min(max((loss - self.cool) / (self.hot - self.cool), 0.0), 1.0)
        # Steeper than linear: losses slightly above expectation are common, and those far above should stand out.
        return math.ceil(math.pow(above, 1.5) * HOTTEST)


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFacts:
    """One checkpoint of the run."""

    path: Path
    """Path of the checkpoint."""
    step: int
    """Number of updates before it was saved."""
    num_bytes: int
    """Size on disk in bytes."""
    about: About
    """What it says about itself."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """Everything a report says about a run."""

    directory: Path
    """Absolute path of the run directory."""
    manifest: Manifest | None
    """The run's manifest; None if it cannot be read."""
    status: str
    """The status that `sonde runs` shows."""
    verdicts: tuple[Verdict, ...]
    """The verdicts of diagnoses, ordered by step."""
    events: tuple[EventFacts, ...]
    """The events that the recorder noticed."""
    worst: tuple[WorstSample, ...]
    """Samples with a far higher loss than others of their length, over all epochs; worst first."""
    curves: dict[str, Curve]
    """The curves that the run has, by their title in `CURVES`."""
    series: RunCurves
    """Every series of the run, from which the curves are."""
    phases: dict[str, float]
    """Mean seconds per update spent in each phase."""
    checkpoints: tuple[CheckpointFacts, ...]
    """The checkpoints, oldest first."""
    skip_list: str
    """The text of the run's skip list; empty if there is none."""
    healing: tuple[tuple[str, ...], ...]
    """What the run did to heal itself: a few sentences per intervention."""
    problems: tuple[str, ...]
    """What could not be read, one sentence each."""

    @property
    def last_step(self) -> int | None:
        """The last known step; None if there is none."""
        curves = [self.curves[title] for title in (LOSS, VALIDATION_LOSS) if title in self.curves]
        return max((int(curve.steps.max()) for curve in curves if len(curve)), default=None)


def gather(run: str | Path, curves: RunCurves | None = None, spikes: SpikeLog | None = None) -> RunFacts:
    """Read the run directory `run`; raise RunNotFound if it is not a run.

    Pass `curves` if the series are already loaded. If `spikes` is given, the events are taken from it without the text
    of their samples, and the worst samples are left out.
    """
    run = Path(run)
    problems: list[str] = []
    manifest, status = None, DAMAGED
    try:
        manifest = read_manifest(run)
        status = run_status(run, manifest)
    except DamagedFile as error:
        problems.append(str(error).replace("\n", "; "))
    attempts = [partial(read_verdict, run, step) for step, _ in RunLayout(run).verdicts()]
    verdicts = [one for read in attempts if (one := _attempt(read, None, problems)) is not None]
    log = spikes if spikes is not None else _attempt(lambda: read_spikes(run), None, problems)
    diagnosed = [verdict.step for verdict in verdicts]
    events = () if log is None else _events(log, None if spikes is not None else diagnosed, problems)
    curves = curves or RunCurves(run)
    for name, num_bad in curves.num_bad.items():
        if num_bad:
            problems.append(f"{damage_text(num_bad)} in {name}")
    found = {title: curve for title, names in CURVES.items() if (curve := curves.first_of(names)) is not None}
    return RunFacts(
        directory=run.absolute(),
        manifest=manifest,
        status=status,
        verdicts=tuple(verdicts),
        events=events,
        worst=() if spikes is not None else _attempt(lambda: _worst(run), (), problems),
        curves=found,
        series=curves,
        phases=_phases(curves),
        checkpoints=_attempt(lambda: _checkpoints(run, problems), (), problems),
        skip_list=_attempt(lambda: _skip_list(run), "", problems),
        healing=_attempt(lambda: tuple(map(tuple, told(run))), (), problems),
        problems=tuple(problems),
    )


def _events(log: SpikeLog, diagnosed: Collection[int] | None, problems: list[str]) -> tuple[EventFacts, ...]:
    """Return a run's events ordered by step. With the steps that have a verdict, the worst ones have their samples."""

    def rank(spike: RecordedSpike) -> tuple[bool, float]:
        event = spike.event
        has_verdict = any(event.first_step <= step <= event.last_step for step in diagnosed or ())
        return not has_verdict, -(math.inf if math.isnan(event.z) else event.z)

    problems += [f"{log.num_bad:,} records of events could not be understood"] * bool(log.num_bad)
    worst = [] if diagnosed is None else sorted(log.spikes, key=rank)[:_MAX_EVENTS]
    shown, decoder = set(map(id, worst)), SampleDecoder(log.datasets)
    events = [event_facts(one, decoder) if id(one) in shown else EventFacts(spike=one) for one in log.spikes]
    problems += [one.problem for one in events if one.problem]
    return tuple(events)


def event_facts(spike: RecordedSpike, decoder: SampleDecoder) -> EventFacts:
    """Return one event with the text of its worst samples."""
    event = spike.event
    try:
        ranked = spike.samples()
        samples = tuple(decoder.decode(ranked[:_MAX_SAMPLES], with_tokens=True))
        losses = [loss for sample in samples for loss in sample.ranked.token_losses or () if math.isfinite(loss)]
    except (SondeError, OSError, KeyError, TypeError, ValueError) as error:
        return EventFacts(spike=spike, problem=f"the samples of step {event.first_step} cannot be read: {error}")
    cool = max(statistics.median(losses or [0.0]), event.baseline if event.metric == "loss" else 0.0)
    hot = max(losses, default=cool)
    return EventFacts(spike=spike, samples=samples, num_samples=len(ranked), cool=cool, hot=hot)


def _phases(curves: RunCurves) -> dict[str, float]:
    """Return the mean seconds per phase over all log records, each of which stands for the same number of updates."""
    series = {phase: curves.first_of((name,)) for phase, name in PHASES.items()}
    finite = {phase: curve.finite().values for phase, curve in series.items() if curve is not None}
    return {phase: max(float(values.mean()), 0.0) for phase, values in finite.items() if len(values)}


def _checkpoints(run: Path, problems: list[str]) -> tuple[CheckpointFacts, ...]:
    place = checkpoint_place(run)
    if isinstance(place, str):  # a report never contacts a server, whatever the run's manifest says
        problems.append(f"its checkpoints are at {place}, which is not asked for a report")
        return ()
    folder = CheckpointFolder(place)
    about = folder.entries()
    found = []
    for step in folder.steps():
        if step not in about:
            problems.append(f"the checkpoint after {step:,} updates cannot be read")
            continue
        path, size = Path(folder.at(step).where), folder.num_bytes(step)
        found.append(CheckpointFacts(path=path, step=step, num_bytes=size, about=about[step]))
    return tuple(found)


def _worst(run: Path) -> tuple[WorstSample, ...]:
    if not RunLayout(run).ledger_ranks():
        return ()
    return tuple(entry for entry in read_worst(run, _MAX_WORST).entries if entry.history.mean >= LOW)


def _skip_list(run: Path) -> str:
    path = RunLayout(run).skip_list
    if not path.exists():
        return ""
    with open_regular(path) as file:
        content = file.read(_MAX_SKIP_BYTES + 1)
    text = content[:_MAX_SKIP_BYTES].decode("utf-8", "replace")
    return f"{text}\n…" if len(content) > _MAX_SKIP_BYTES else text


def _attempt(read: Callable[[], _Part], otherwise: _Part, problems: list[str]) -> _Part:
    """Return one part of the report, or `otherwise` if it cannot be read."""
    try:
        return read()
    except (SondeError, OSError) as error:
        problems.append(str(error).replace("\n", "; "))
        return otherwise
