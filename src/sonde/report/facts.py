"""Everything that a report tells about a run, as plain data: gathered here, put into words by html/ and markdown.py.

`gather` refuses only what is no run. Whatever else is missing, damaged or still being written is left out and said in `problems`.
Only the worst few events get the text of their samples: those that a verdict is about, then those with the highest z. Decoding one event takes
some milliseconds; text that cannot be found is said in the sample's `problem`.
A run of 450 updates with four events takes 0.07 s of CPU, one of a million updates 2 s, and 7 s more when it was never indexed.
"""

import math
import statistics
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar, final

import numpy as np

from sonde.checkpoint.folder import CheckpointFolder
from sonde.errors import DamagedFile, SondeError
from sonde.forensics.verdict import Verdict, read_verdict
from sonde.heal.history import told
from sonde.records.catalog import DAMAGED, run_status
from sonde.records.files import open_regular
from sonde.records.layout import RunLayout
from sonde.records.manifest import Manifest, checkpoint_place, read_manifest
from sonde.records.reader import damage_text
from sonde.report.curve import Curve
from sonde.report.run_curves import RunCurves
from sonde.spikes.decoding import DecodedSample, SampleDecoder
from sonde.spikes.ledger_log import LOW, WorstSample, read_worst
from sonde.spikes.spike_log import RecordedSpike, SpikeLog, read_spikes
from sonde.version import __version__

LOSS: Final = ("loss", "train.loss", "train_loss")
VALIDATION_LOSS: Final = ("val.loss", "valid.loss", "eval.loss", "val_loss", "eval_loss")
GRAD_NORM: Final = ("grad_norm", "train.grad_norm")
LEARNING_RATE: Final = ("lr", "train.lr", "learning_rate")
SPEED: Final = ("train.ips", "ips", "tokens_per_second")
PHASES: Final = {
    "waiting for data": "train.data_time",
    "forward": "train.fp_time",
    "backward": "train.bp_time",
    "optimizer": "train.grad_time",
}
HEALING: Final = "How the run was mended"
"""What reports call the story."""
_MAX_SKIP_BYTES: Final = 20_000
_MAX_WORST: Final = 10
MAX_EVENTS: Final = 5
MAX_SAMPLES: Final = 8
HOTTEST: Final = 9
"""Heat goes from 0, no more than was expected, to this."""

_Part = TypeVar("_Part")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class EventFacts:
    """One event."""

    spike: RecordedSpike
    """What was recorded."""
    samples: tuple[DecodedSample, ...] = ()
    """The worst of its samples, worst first; empty when this event is only listed."""
    num_samples: int = 0
    """How many samples its first step had."""
    cool: float = 0.0
    """A token's loss up to which it is not coloured: what was expected of the step, or the median of its tokens if that is more."""
    hot: float = 1.0
    """The greatest finite loss of a token."""
    problem: str = ""
    """What could not be read, if anything."""

    def heat(self, loss: float) -> int:
        """From 0 to `HOTTEST`; a loss that is not finite is the hottest."""
        if not math.isfinite(loss):
            return HOTTEST
        if self.hot <= self.cool:
            return 0
        above = min(max((loss - self.cool) / (self.hot - self.cool), 0.0), 1.0)
        # Steeper than a straight line: what is a little above is common, and the eye should go to what is far above.
        return math.ceil(math.pow(above, 1.5) * HOTTEST)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointFacts:
    """One checkpoint."""

    path: Path
    """Where it lies."""
    step: int
    """After so many updates."""
    num_bytes: int
    """Its size on the disk."""
    metrics: dict[str, Any]
    """Results of the last evaluation before it."""
    distrusted: str | None
    """Why its weights are suspect."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RunFacts:
    """What is known of a run."""

    directory: Path
    """Where it lies, in full."""
    manifest: Manifest | None
    """None when it cannot be read."""
    status: str
    """As `sonde runs` says it."""
    verdicts: tuple[Verdict, ...]
    """What diagnoses found, in the order of steps."""
    events: tuple[EventFacts, ...]
    """What the recorder noticed."""
    worst: tuple[WorstSample, ...]
    """Samples far above others of their length, over all epochs; worst first."""
    loss: Curve | None
    """The training loss."""
    superseded: dict[str, list[Curve]]
    """By the name of a curve: stretches of it that were made again after a restart."""
    validation_loss: Curve | None
    """The loss of evaluations."""
    grad_norm: Curve | None
    """The gradient norm."""
    learning_rate: Curve | None
    """The learning rate."""
    speed: Curve | None
    """Target tokens per second."""
    phases: dict[str, float]
    """Seconds of an update by what they went into."""
    num_skipped: int
    """Updates that left the weights as they were."""
    checkpoints: tuple[CheckpointFacts, ...]
    """Oldest first."""
    skip_list: str
    """The text of the run's skip list; empty when there is none."""
    healing: tuple[tuple[str, ...], ...]
    """What the run did about itself: a few sentences for each time."""
    problems: tuple[str, ...]
    """What could not be read, a sentence each."""
    made: float
    """When this was gathered, in seconds since the epoch."""
    version: str = __version__
    """The sonde that did it."""

    @property
    def name(self) -> str:
        """What to call the run."""
        return self.directory.name

    @property
    def last_step(self) -> int | None:
        """The last step that is known of."""
        curves = [curve for curve in (self.loss, self.validation_loss) if curve is not None and len(curve)]
        return max((int(curve.steps.max()) for curve in curves), default=None)

    def manifest_groups(self) -> dict[str, Any]:
        """What the run ran with, by what it is about."""
        manifest = self.manifest
        if manifest is None:
            return {}
        return {
            "Settings": manifest.settings,
            "Versions": manifest.versions,
            "Machine": manifest.host,
            "Seeds": manifest.seeds,
            "Code": manifest.git,
            "Data": manifest.data,
            "Also in the manifest": manifest.other,
        }


def gather(run: str | Path, curves: RunCurves | None = None, spikes: SpikeLog | None = None) -> RunFacts:
    """Read the run directory `run`; raises RunNotFound when it is none.

    `curves` are its series, if they are read already. With `spikes`, its events are those, without the text of
    their samples, and the worst samples are left out.
    """
    run = Path(run)
    problems: list[str] = []
    manifest, status = _manifest(run, problems)
    verdicts = _verdicts(run, problems)
    if spikes is not None:
        events = tuple(EventFacts(spike=one) for one in spikes.spikes)
        problems += [f"{spikes.num_bad:,} records of events could not be understood"] * bool(spikes.num_bad)
    else:
        events, event_problems = read_events(run, [verdict.step for verdict in verdicts])
        problems += event_problems
    curves = curves or RunCurves(run)
    for name, num_bad in curves.num_bad.items():
        if num_bad:
            problems.append(f"{damage_text(num_bad)} in {name}")
    loss, grad_norm = curves.first_of(LOSS), curves.first_of(GRAD_NORM)
    return RunFacts(
        directory=run.absolute(),
        manifest=manifest,
        status=status,
        verdicts=verdicts,
        events=events,
        worst=() if spikes is not None else _attempt(lambda: _worst(run), (), problems),
        loss=loss,
        superseded={curve.name: curves.superseded(curve.name) for curve in (loss, grad_norm) if curve is not None},
        validation_loss=curves.first_of(VALIDATION_LOSS),
        grad_norm=grad_norm,
        learning_rate=curves.first_of(LEARNING_RATE),
        speed=curves.first_of(SPEED),
        phases=_phases(curves),
        num_skipped=curves.updates.num_skipped,
        checkpoints=_attempt(lambda: _checkpoints(run, problems), (), problems),
        skip_list=_attempt(lambda: _skip_list(run), "", problems),
        healing=_attempt(lambda: tuple(map(tuple, told(run))), (), problems),
        problems=tuple(problems),
        made=time.time(),
    )


def read_events(run: Path, diagnosed: Collection[int]) -> tuple[tuple[EventFacts, ...], list[str]]:
    """The events of a run in the order of their steps, and what could not be read. `diagnosed` are steps with a verdict."""
    try:
        log = read_spikes(run)
    except (SondeError, OSError) as error:
        return (), [f"the events cannot be read: {getattr(error, 'message', None) or error}"]
    problems = [f"{log.num_bad:,} records of events could not be understood"] if log.num_bad else []
    decoder = SampleDecoder(log.datasets)
    shown = {id(spike) for spike in _worst_events(log, diagnosed)}
    events = [event_facts(one, decoder) if id(one) in shown else EventFacts(spike=one) for one in log.spikes]
    return tuple(events), problems + [one.problem for one in events if one.problem]


def event_facts(spike: RecordedSpike, decoder: SampleDecoder, max_samples: int = MAX_SAMPLES) -> EventFacts:
    """One event with the text of its worst samples."""
    event = spike.event
    try:
        ranked = spike.samples() if event.first_step in spike.steps else []
        samples = tuple(decoder.decode(ranked[:max_samples], with_tokens=True))
        losses = [loss for sample in samples for loss in sample.ranked.token_losses or () if math.isfinite(loss)]
    except (SondeError, OSError, KeyError, TypeError, ValueError) as error:
        return EventFacts(spike=spike, problem=f"the samples of step {event.first_step} cannot be read: {error}")
    cool = max(statistics.median(losses or [0.0]), event.baseline if event.metric == "loss" else 0.0)
    hot = max(losses, default=cool)
    return EventFacts(spike=spike, samples=samples, num_samples=len(ranked), cool=cool, hot=hot)


def _worst_events(log: SpikeLog, diagnosed: Collection[int]) -> list[RecordedSpike]:
    def rank(spike: RecordedSpike) -> tuple[bool, float]:
        event = spike.event
        has_verdict = any(event.first_step <= step <= event.last_step for step in diagnosed)
        return not has_verdict, -(math.inf if math.isnan(event.z) else event.z)

    return sorted(log.spikes, key=rank)[:MAX_EVENTS]


def _manifest(run: Path, problems: list[str]) -> tuple[Manifest | None, str]:
    try:
        manifest = read_manifest(run)
    except DamagedFile as error:
        problems.append(_said(error))
        return None, DAMAGED
    return manifest, run_status(run, manifest)


def _verdicts(run: Path, problems: list[str]) -> tuple[Verdict, ...]:
    found: list[Verdict] = []
    for step, _ in RunLayout(run).verdicts():
        verdict: Verdict | None = _attempt(partial(read_verdict, run, step), None, problems)
        found += [] if verdict is None else [verdict]
    return tuple(found)


def _phases(curves: RunCurves) -> dict[str, float]:
    """The mean over the log: every record stands for as many updates as the next."""
    phases = {}
    for phase, name in PHASES.items():
        curve = curves.first_of((name,))
        finite = curve.finite().values if curve is not None else np.empty(0)
        if len(finite):
            phases[phase] = max(float(finite.mean()), 0.0)
    return phases


def _checkpoints(run: Path, problems: list[str]) -> tuple[CheckpointFacts, ...]:
    place = checkpoint_place(run)
    if isinstance(place, str):  # a report asks no server, whatever the manifest of a run says
        problems.append(f"its checkpoints are at {place}, which is not asked for a report")
        return ()
    folder = CheckpointFolder(place)
    about = {entry.step: entry.about for entry in folder.entries()}
    found = []
    for step in folder.steps():
        if step not in about:
            problems.append(f"the checkpoint after {step:,} updates cannot be read")
            continue
        size, metrics = folder.num_bytes(step), dict(about[step].metrics)
        place, distrusted = folder.path(step), about[step].distrusted
        found.append(CheckpointFacts(path=place, step=step, num_bytes=size, metrics=metrics, distrusted=distrusted))
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
    """One part of the report, or what stands in its place when it cannot be read."""
    try:
        return read()
    except (SondeError, OSError) as error:
        problems.append(_said(error))
        return otherwise


def _said(error: Exception) -> str:
    if not isinstance(error, SondeError):
        return str(error)
    return f"{error.message}: {error.cause}" if error.cause else error.message
