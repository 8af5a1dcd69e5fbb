"""What a run recorded around one step: the starting point of a diagnosis. Reads records only.

"Calm" steps are earlier steps that were neither skipped nor part of a recorded event. Distances
from them are measured in robust deviations, so that a few bad steps among them do not hide another.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from sonde.errors import SettingError, SondeError
from sonde.forensics.verdict import read_verdict
from sonde.records.journal import StepRecord, read_steps
from sonde.records.manifest import Manifest, read_manifest
from sonde.spikes.spike_log import (
    RankedSample,
    RecordedSpike,
    SampleId,
    SpikeLog,
    read_spikes,
    samples_of,
)
from sonde.spread import Spread

WINDOW: Final = 64
"""How many steps before the one in question define what is normal."""
_MIN_CALM: Final = 8
EXPLODED: Final = 1e3
"""A loss this many times the usual one has exploded."""
_FOLLOWS: Final = 30
"""An event so many steps after another one follows it."""
LIMIT_Z: Final = 4.5
"""A loss more than this many deviations above the calm ones is not chance."""


def steps_in_question(run: Path) -> list[int]:
    """Return the steps of the recorded events: where the loss began to stand out, then the
    gradients, then single samples; newest first in each. Empty if nothing was recorded.

    Of events that follow one another, the one comes first whose first verdict is the surest: what
    began there goes on in the others.
    """
    log = _current(read_spikes(run), read_steps(run).by_number)
    found = {spike.event.first_step: spike.event.metric == "loss" for spike in log.spikes}
    of_loss = [step for step, is_loss in found.items() if is_loss]
    of_gradients = [step for step, is_loss in found.items() if not is_loss]
    ordered = [*_newest_series_first(run, of_loss), *_newest_series_first(run, of_gradients)]
    samples = {sample.step for sample in log.samples if sample.step is not None}
    return [*ordered, *sorted(samples - found.keys(), reverse=True)]


def _newest_series_first(run: Path, steps: Iterable[int]) -> list[int]:
    """Return steps in series that follow one another, the newest series first, and in each the step
    with the surest first verdict.
    """
    series: list[list[int]] = []
    for step in sorted(steps):
        if series and step - series[-1][-1] <= _FOLLOWS:
            series[-1].append(step)
        else:
            series.append([step])
    ordered: list[int] = []
    for following in reversed(series):
        ordered += sorted(following, key=lambda step: (-_first_confidence(run, step), -step))
    return ordered


def _first_confidence(run: Path, step: int) -> float:
    """Return how sure the verdict on a step is of the cause that it names; 0 if it names none."""
    try:
        verdict = read_verdict(run, step)
    except SondeError:
        return 0.0
    return verdict.causes[0].confidence if verdict.names_a_cause else 0.0


def steps_that_stand_out(run: Path, num: int) -> list[tuple[int, float]]:
    """Return the steps whose losses are farthest above those before them, farthest first, and how
    many deviations that is.
    """
    steps = read_steps(run).by_number
    numbers = list(steps)
    found = []
    first = min(WINDOW, max(len(numbers) - 1, 1))  # the first step has none before it
    for place in range(first, len(numbers)):
        before = Spread([steps[number].loss for number in numbers[max(0, place - WINDOW) : place]])
        loss = steps[numbers[place]].loss
        found.append((numbers[place], before.z(loss) if math.isfinite(loss) else math.inf))
    known = [(step, z) for step, z in found if not math.isnan(z)]
    return sorted(known, key=lambda step_and_z: -step_and_z[1])[:num]


def open_case(run: Path, step: int) -> "Case":
    """Open the case of a step."""
    manifest = read_manifest(run)
    steps = read_steps(run).by_number
    log = _current(read_spikes(run), steps)
    if not steps:
        raise SettingError(
            f"{run} recorded no steps, so nothing says what was normal",
            cause="only sonde's trainer and a Recorder record what every step did",
            hint="watch the training with one of them (docs/any-loop.md)",
        )
    if step not in steps:
        first = min(steps)
        last = max(steps)
        raise SettingError(
            f"{run} recorded no step {step}", hint=f"it recorded the steps {first} to {last}"
        )
    spike = next((spike for spike in log.spikes if spike.spans(step)), None)
    return Case(
        run=run,
        manifest=manifest,
        step=step,
        steps=steps,
        spike=spike,
        log=log,
        calm=_calm(steps, log, step),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Case:
    """One step of a run, and what was recorded about it and the steps before it."""

    run: Path
    manifest: Manifest
    step: int
    steps: Mapping[int, StepRecord] = field(repr=False)
    """Every recorded update, by step."""
    spike: RecordedSpike | None = field(repr=False)
    """The event that the step is part of, if any."""
    log: SpikeLog = field(repr=False)
    """All recorded events."""
    calm: tuple[StepRecord, ...] = field(repr=False)
    """The calm steps before this one, in order."""

    @property
    def record(self) -> StepRecord:
        """The record of the step itself."""
        return self.steps[self.step]

    @property
    def losses(self) -> Spread:
        """The losses of the calm steps."""
        return Spread([step.loss for step in self.calm])

    @property
    def loss_z(self) -> float:
        """How many deviations the loss is above the calm ones; infinite if it is not finite, NaN if
        there are too few records.
        """
        if len(self.calm) < _MIN_CALM:
            return math.nan
        return self.losses.z(self.record.loss) if math.isfinite(self.record.loss) else math.inf

    @property
    def is_loss_unusual(self) -> bool:
        """Whether the loss is far above the calm ones or part of a loss event."""
        in_event = self.spike is not None and self.spike.event.metric == "loss"
        return in_event or self.loss_z > LIMIT_Z

    @property
    def has_exploded_before(self) -> bool:
        """Whether the loss of the step before was already far beyond what is usual, and above that
        of the first step: beside a loss of nearly nothing, every other is far beyond it.
        """
        before = self.steps.get(self.step - 1)
        if before is None or not len(self.losses):
            return False
        first = self.steps[min(self.steps)]
        return before.loss > max(EXPLODED * abs(self.losses.median), first.loss)

    @property
    def is_event(self) -> bool:
        """Whether the step is part of a recorded event, of the loss or of the gradient."""
        return self.spike is not None

    @property
    def is_calm(self) -> bool:
        """Whether nothing was recorded that sets the step apart: no event, no loss far above
        normal, no sample that stood out, no skipped update.
        """
        return not (self.is_event or self.is_loss_unusual or self.is_skipped or self.has_outliers)

    @property
    def has_outliers(self) -> bool:
        """Whether samples of the step stood out although its loss did not."""
        return any(event.step == self.step for event in self.log.samples)

    @property
    def is_skipped(self) -> bool:
        """Whether the update was skipped and the weights did not change."""
        return self.record.skipped is not None

    def recorded_samples(self) -> dict[int, list[tuple[str, int]]]:
        """Return the recorded samples of the step, by rank; only the records of an event have
        them.
        """
        found = {}
        for samples in self._recorded():
            names = [
                (sample.dataset, sample.sample)
                for sample in samples
                if sample.dataset and isinstance(sample.sample, int)
            ]
            if len(names) == len(samples):
                found[samples[0].rank] = names
        return found

    def recorded_sample_losses(self) -> dict[tuple[str, SampleId], float]:
        """Return the recorded loss of each sample of the step."""
        losses = {}
        for of_rank in self._recorded():
            for sample in of_rank:
                if sample.loss is not None:
                    losses[sample.dataset, sample.sample] = sample.loss
        return losses

    def _recorded(self) -> list[list[RankedSample]]:
        """Return the samples of each rank that recorded some for the last execution of the step."""
        found = []
        for spike in self.log.spikes:
            for entry in spike.steps.get(self.step, ()):
                loss = float(entry.get("loss") or math.nan)
                is_last = same_bits(loss, self.record.loss)
                samples = list(samples_of(entry)) if is_last else []
                if samples:
                    found.append(samples)
        return found


def _current(log: SpikeLog, steps: Mapping[int, StepRecord]) -> SpikeLog:
    """Drop events of steps that were later repeated, after a restart or a rollback, with a
    different outcome.
    """
    return replace(log, spikes=tuple(spike for spike in log.spikes if _is_current(spike, steps)))


def _is_current(spike: RecordedSpike, steps: Mapping[int, StepRecord]) -> bool:
    first = spike.event.first_step
    record = steps.get(first)
    losses = [entry.get("loss") for entry in spike.steps.get(first, ())]
    if record is None or not losses:
        return True
    return any(same_bits(float(loss), record.loss) for loss in losses if loss is not None)


def same_bits(first: float, second: float) -> bool:
    """Return whether two numbers are bit-identical; NaN equals NaN."""
    return first == second or (math.isnan(first) and math.isnan(second))


def is_close(loss: float, recorded: float, tolerance: float = 1e-6) -> bool:
    """Return whether a loss is a recorded one up to rounding. Losses that are not finite are equal
    only if they are the same.
    """
    if not math.isfinite(loss) or not math.isfinite(recorded):
        return same_bits(loss, recorded)
    return abs(loss - recorded) <= tolerance * abs(recorded)


def _calm(steps: Mapping[int, StepRecord], log: SpikeLog, step: int) -> tuple[StepRecord, ...]:
    spans = [
        (spike.event.first_step, max(spike.event.last_step, spike.event.first_step))
        for spike in log.spikes
    ]
    before = [record for number, record in steps.items() if step - 2 * WINDOW <= number < step]
    made = [record for record in before if record.skipped is None and math.isfinite(record.loss)]
    calm = [
        record for record in made if not any(first <= record.step <= last for first, last in spans)
    ]
    return tuple(calm[-WINDOW:])
