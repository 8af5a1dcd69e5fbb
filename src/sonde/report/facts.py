"""Everything a report says about a run, as plain data; html/ and markdown.py turn it into text.

`gather` raises only if the directory is not a run. Anything else that is missing, damaged or still
being written is left out and listed in `problems`. Only the worst few events include the text of
their samples: those with a verdict first, then those with the highest z. Decoding one event takes a
few milliseconds; if text cannot be found, the sample's `problem` says so. A run of 450 updates with
four events takes 0.07 s of CPU; a million updates take 2 s, plus 7 s if the run was never indexed.
"""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from sonde.checkpoint.folder import About, CheckpointFolder
from sonde.errors import DamagedFile, SondeError
from sonde.forensics.verdict import Verdict, known_texts, read_verdict
from sonde.heal.decision import describe
from sonde.records.catalog import DAMAGED, run_status
from sonde.records.files import check_folder, open_regular
from sonde.records.layout import SPIKES, RunLayout
from sonde.records.manifest import Manifest, checkpoint_place, read_manifest
from sonde.records.reader import damage_text
from sonde.report.curve import Curve
from sonde.report.marks import Mark, read_marks
from sonde.report.run_curves import CURVES, LOSS, VALIDATION_LOSS, RunCurves
from sonde.spikes.decoding import DecodedSample, SampleDecoder
from sonde.spikes.ledger_log import LOW, WorstSample, read_worst
from sonde.spikes.spike_log import SpikeLog, read_spikes

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
_MAX_ATTEMPTS: Final = 20
HOTTEST: Final = 9
"""The highest heat level; 0 means no more than the expected loss."""

_Part = TypeVar("_Part")


@dataclass(frozen=True, kw_only=True, slots=True)
class EventFacts:
    """One event with its decoded samples."""

    mark: Mark
    """What happened."""
    samples: tuple[DecodedSample, ...] = ()
    """The worst samples, worst first; empty if this event is only listed."""
    num_samples: int = 0
    """Number of samples in its first step, or of those that stood out."""
    cool: float = 0.0
    """Token loss up to which a token is not colored: the step's expected loss or its median token
    loss, whichever is higher.
    """
    hot: float = 1.0
    """The highest finite token loss."""
    problem: str = ""
    """What could not be read; empty if nothing."""

    def heat(self, loss: float) -> int:
        """Return the heat level of a token loss, from 0 to `HOTTEST`; a non-finite loss is the
        hottest.
        """
        if not math.isfinite(loss):
            return HOTTEST
        if self.hot <= self.cool:
            return 0
        above = min(max((loss - self.cool) / (self.hot - self.cool), 0.0), 1.0)
        # Steeper than linear: losses slightly above expectation are common, and those far above
        # should stand out.
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
    """What went wrong: every event that was noticed, with a verdict or without."""
    marks: tuple[Mark, ...]
    """Everything that happened, with restarts and rollbacks; ordered by step."""
    earlier: tuple[Mark, ...]
    """What happened in earlier attempts, which were started over."""
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
        if not curves:
            curves = [self.series.read(name) for name in self.series.names[:1]]
        return max((int(curve.steps.max()) for curve in curves if len(curve)), default=None)


def gather(
    run: str | Path, curves: RunCurves | None = None, spikes: SpikeLog | None = None
) -> RunFacts:
    """Read the run directory `run`; raise RunNotFound if it is not a run.

    Pass `curves` if the series are already loaded. If `spikes` is given, the events are taken from
    it without the text of their samples, and the worst samples are left out.

    ```python
    from sonde import Run
    from sonde.report import gather

    with Run("runs/mine") as run:
        for step in range(1, 101):
            run.logger.log(step, {"loss": 5 / step})
    facts = gather("runs/mine")
    assert facts.curves["loss"].values[-1] == 0.05
    ```
    """
    run = Path(run)
    problems: list[str] = []
    manifest = None
    status = DAMAGED
    try:
        manifest = read_manifest(run)
        status = run_status(run, manifest)
    except DamagedFile as error:
        problems.append(str(error).replace("\n", "; "))
    verdicts = read_verdicts(run, problems)
    log = spikes if spikes is not None else _attempt(lambda: read_spikes(run), None, problems)
    if log is None:
        log = SpikeLog(spikes=(), datasets={}, num_bad=0)
    if log.num_bad:
        problems.append(f"{log.num_bad:,} records of events could not be understood")
    nothing: list[Mark] = []
    curves = curves or RunCurves(run)
    repeated = curves.repeated
    marks = _attempt(lambda: read_marks(run, log, verdicts, repeated), nothing, problems)
    events = _events(run, log, marks, problems, with_samples=spikes is None)
    for name, num_bad in curves.num_bad.items():
        if num_bad:
            problems.append(f"{damage_text(num_bad)} in {name}")
    usual = {title: curves.read_usual(title) for title in CURVES}
    found = {title: curve for title, curve in usual.items() if curve is not None}
    return RunFacts(
        directory=run.absolute(),
        manifest=manifest,
        status=status,
        verdicts=tuple(verdicts),
        events=events,
        marks=tuple(marks),
        earlier=_attempt(lambda: earlier_marks(run), (), problems),
        worst=() if spikes is not None else _attempt(lambda: _worst(run), (), problems),
        curves=found,
        series=curves,
        phases=_phases(curves),
        checkpoints=_attempt(lambda: _checkpoints(run, problems), (), problems),
        skip_list=_attempt(lambda: _skip_list(run), "", problems),
        healing=_attempt(lambda: tuple(map(tuple, describe(run))), (), problems),
        problems=tuple(problems),
    )


def read_verdicts(run: Path, problems: list[str]) -> list[Verdict]:
    """Return the verdicts of a run, ordered by step; what cannot be read is added to `problems`."""
    found = []
    for step, _ in RunLayout(run).verdicts():
        verdict = _attempt(partial(read_verdict, run, step), None, problems)
        if verdict is not None:
            found.append(verdict)
    return found


def earlier_marks(run: Path) -> tuple[Mark, ...]:
    """Return what went wrong in earlier attempts of a run, the newest attempt first."""
    found: list[Mark] = []
    for number in attempts(run):
        aside = attempt_place(run, number)
        has_spikes = bool(RunLayout(aside).record_files(SPIKES))
        log = read_spikes(aside) if has_spikes else SpikeLog(spikes=(), datasets={}, num_bad=0)
        for mark in read_marks(aside, log, read_verdicts(aside, [])):
            note = f"in attempt {number}, which was started over"
            found.append(replace(mark, attempt=number, note=note))
    return tuple(found)


def attempts(run: Path) -> list[int]:
    """Return the numbers of a run's earlier attempts, the newest first."""
    folder = RunLayout(run).attempts
    check_folder(folder)
    if not folder.is_dir():
        return []
    names = [path.name for path in folder.iterdir() if path.is_dir()]
    return sorted((int(name) for name in names if name.isdecimal()), reverse=True)[:_MAX_ATTEMPTS]


def attempt_place(run: Path, number: int) -> Path:
    """Return the folder of an earlier attempt."""
    return RunLayout(run).attempts / str(number)


def _events(
    run: Path,
    log: SpikeLog,
    marks: Sequence[Mark],
    problems: list[str],
    *,
    with_samples: bool,
) -> tuple[EventFacts, ...]:
    """Return what went wrong, ordered by step. With `with_samples`, the worst have their samples:
    those with a verdict first.
    """

    def rank(mark: Mark) -> tuple[bool, float]:
        return not mark.cause, -(math.inf if math.isnan(mark.z) else mark.z)

    wrong = [mark for mark in marks if mark.is_wrong]
    worst = sorted(wrong, key=rank)[:_MAX_EVENTS] if with_samples else []
    shown = set(map(id, worst))
    decoder = open_decoder(run, log)
    events = []
    for mark in wrong:
        if id(mark) in shown:
            events.append(event_facts(mark, log, decoder))
        else:
            events.append(EventFacts(mark=mark))
    problems += [event.problem for event in events if event.problem]
    return tuple(events)


def open_decoder(run: Path, log: SpikeLog) -> SampleDecoder:
    """Return what finds the text of a run's samples: in its data, or else in its verdicts."""
    return SampleDecoder(log.datasets, known=known_texts(run))


def event_facts(mark: Mark, log: SpikeLog, decoder: SampleDecoder) -> EventFacts:
    """Return one event with the text of its worst samples."""
    spike = next((spike for spike in log.spikes if spike.event.first_step == mark.step), None)
    try:
        ranked = log.samples_at(mark.step) if spike is None else spike.samples()
        samples = tuple(decoder.decode(ranked[:_MAX_SAMPLES], with_tokens=True))
        losses: list[float] = []
        for sample in samples:
            losses += [loss for loss in sample.ranked.token_losses or () if math.isfinite(loss)]
    except (SondeError, OSError, KeyError, TypeError, ValueError) as error:
        return EventFacts(
            mark=mark, problem=f"the samples of step {mark.step} cannot be read: {error}"
        )
    is_loss = mark.metric in ("loss", "sample loss") and not math.isnan(mark.expected)
    cool = max(statistics.median(losses or [0.0]), mark.expected if is_loss else 0.0)
    hot = max(losses, default=cool)
    return EventFacts(mark=mark, samples=samples, num_samples=len(ranked), cool=cool, hot=hot)


def _phases(curves: RunCurves) -> dict[str, float]:
    """Return the mean seconds per phase over all log records, each of which stands for the same
    number of updates.
    """
    found = {phase: name for phase, name in PHASES.items() if curves.has(name)}
    finite = {phase: curves.read(name).finite().values for phase, name in found.items()}
    return {
        phase: max(float(values.mean()), 0.0) for phase, values in finite.items() if len(values)
    }


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
            problems.append(f"the checkpoint after {step:,} steps cannot be read")
            continue
        path = Path(folder.at(step).where)
        size = folder.num_bytes(step)
        found.append(CheckpointFacts(path=path, step=step, num_bytes=size, about=about[step]))
    return tuple(found)


def _worst(run: Path) -> tuple[WorstSample, ...]:
    if not RunLayout(run).ledger_ranks():
        return ()
    return tuple(
        entry for entry in read_worst(run, _MAX_WORST).entries if entry.history.mean >= LOW
    )


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
