"""All evidence that causes are judged by. Each experiment runs once, when it is first needed, and
is cached.

    evidence = Evidence(case, laboratory, change)
    evidence.samples            # every sample of the step: z against samples of its length, bits
                                # per character, signs of its text
    evidence.is_state_bad       # do other batches have a high loss too?

Nothing here names a cause.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cached_property
from statistics import fmean
from typing import Any, Final, TypeVar

from sonde.errors import SondeError
from sonde.forensics.broken_numbers import BrokenNumbers, from_modules
from sonde.forensics.case import Case
from sonde.forensics.changes import DataChange, StartChange, start_changes
from sonde.forensics.laboratory import Laboratory, Reproduction, StateTest
from sonde.forensics.readings import Readings, UsualSigns
from sonde.forensics.samples_seen import Reference, SeenSample, see, surprise
from sonde.forensics.seams import GRADIENT, Name, Row, SampleLoss
from sonde.forensics.tensor_test import TensorTest, compare_tensors
from sonde.forensics.verdict import Suspect
from sonde.records.journal import StepRecord
from sonde.spread import Spread

_STATE_Z: Final = 3.0
"""The state is bad if other batches are this many deviations above normal."""
_WORSE_Z: Final = 3.0
"""The state is also bad if other batches are this many standard errors above their own loss at
earlier weights.
"""
_WORSE_SHARE: Final = 0.06
"""That rise must also be at least this fraction of their loss."""
_FAR_WORSE: Final = 0.2
_WORSE_STATE_WEIGHT: Final = 0.8
_BAD_STATE_WEIGHT: Final = 0.35
_OTHER_WAY_WEIGHT: Final = 0.3
"""The weight of findings about samples if the state is bad anyway, or if the replay diverged."""
_FAR_Z: Final = 3.0
"""Samples this many deviations out, by loss or by bits per character, are read together."""
_MOST_DAMAGED: Final = 0.25
"""If more samples than this fraction look damaged, that is what is usual."""
_RECENT_START: Final = 100
"""A restart can be blamed for problems within this many updates."""

_NUM_MODULES: Final = 3
"""The number of modules whose gradients are reported."""

_Found = TypeVar("_Found")


class Evidence:
    """What is known about one step."""

    def __init__(
        self, case: Case, lab: Laboratory | SondeError, change: DataChange | None = None
    ) -> None:
        """`lab` is an error if the step cannot be replayed: then only recorded data is available,
        and there is no `lab`.
        """
        self.case = case
        """What the run recorded."""
        self.change = change
        """How the data differs from when the run began."""
        self.problem = lab if isinstance(lab, SondeError) else None
        """Why the step cannot be replayed."""
        self.is_replayed = self.problem is None
        """Whether the step can be replayed."""
        if not isinstance(lab, SondeError):
            self.lab = lab
            """The laboratory that runs the experiments."""
            self.corpus = lab.corpus
            """The corpus of the batch; None if tokens cannot be decoded to text."""
        self._once: dict[object, Any] = {}

    def once(self, name: object, make: Callable[[], _Found]) -> _Found:
        """Return the cached result of `make`, which is called only the first time."""
        if name not in self._once:
            self._once[name] = make()
        found: _Found = self._once[name]
        return found

    @cached_property
    def made(self) -> Reproduction:
        """The replayed step."""
        return self.lab.reproduce()

    @cached_property
    def state(self) -> StateTest:
        """The losses of this batch and others, at this state and at earlier weights."""
        return self.lab.compare_states()

    @cached_property
    def is_state_bad(self) -> bool:
        """Whether other batches have a far higher loss at this state than batches had before."""
        state = self.state
        num_broken = sum(not math.isfinite(other.loss) for other in state.others)
        if num_broken > len(state.others) / 2 or self.case.losses.z(state.here.median) > _STATE_Z:
            return True
        return self._rise > _WORSE_SHARE

    @cached_property
    def _rise(self) -> float:
        """The rise of the loss of other batches since earlier weights, relative to their loss; 0 if
        it may be chance.
        """
        worse = self.state.worse
        if len(worse) < 4 or worse.median <= _WORSE_Z * worse.deviation / math.sqrt(len(worse)):
            return 0.0
        return worse.median / max(abs(self.state.here.median), 1e-9)

    @cached_property
    def data_weight(self) -> float:
        """The weight of findings about samples: less if the state is bad anyway, or if the replay
        diverged.
        """
        if self.made.differs:
            return _OTHER_WAY_WEIGHT
        if not self.is_state_bad:
            return 1.0
        return (
            _BAD_STATE_WEIGHT
            if self._rise > _FAR_WORSE or not self._rise > 0
            else _WORSE_STATE_WEIGHT
        )

    @cached_property
    def broken(self) -> BrokenNumbers | None:
        """Where the numbers of the step stopped being finite; None if they did not."""
        norm = self.made.grad_norm
        replayed = self.made.result.replayed_loss
        if math.isfinite(replayed) and (norm is None or math.isfinite(norm)):
            return None
        precision = self.lab.replay.seams.updater.precision
        is_finite = None
        if precision != "float32":
            is_finite = math.isfinite(self.lab.in_float32())
        return from_modules(self.made.modules, precision, is_finite)

    @cached_property
    def recent_changes(self) -> list[StartChange]:
        """What changed at restarts shortly before this step, oldest first."""
        changes = start_changes(self.case.run, self.case.manifest.settings)
        return [
            change
            for change in changes
            if self.case.step - _RECENT_START <= change.step < self.case.step
        ]

    @cached_property
    def tensors(self) -> list[TensorTest]:
        """Checkpoints compared with the one before: the starting one and, if the replay diverged,
        the first after the step.
        """
        start = self.lab.from_step
        known = self.lab.replay.checkpoints()
        before = [step for step in known if 0 < step < start]
        after = [step for step in known if step >= self.case.step]
        tests = []
        if before:
            tests.append(compare_tensors(self.lab, before[-1], start))
        if after and start > 0 and self.made.differs:
            tests.append(compare_tensors(self.lab, start, after[0]))
        return tests

    @property
    def has_bad_tensors(self) -> bool:
        """Whether there is a tensor that training cannot have produced."""
        return any(
            tensor.weights
            or tensor.moments
            or tensor.fallen
            or tensor.steps
            or tensor.stale is not None
            for tensor in self.tensors
        )

    @property
    def diverged_at(self) -> StepRecord | None:
        """The first step since the checkpoint whose replay gave a different loss, if the difference
        is more than rounding.
        """
        return self.case.steps.get(self.made.first_different or 0) if self.made.differs else None

    def normal_before(self, step: int) -> float:
        """Return the median loss of the steps before one from which on the run was another."""
        records = self.case.steps.values()
        before = Spread([record.loss for record in records if step - 64 <= record.step < step])
        return before.median if len(before) else self.case.losses.median

    @cached_property
    def modules_of_another_batch(self) -> dict[tuple[str, str], float]:
        """The norms of activations and gradients for another batch, by module and kind."""
        return {
            (module.module, module.kind): module.norm
            for module in self.lab.modules_of_another_batch()
        }

    @cached_property
    def _readings(self) -> Readings | None:
        return (
            None
            if self.corpus is None
            else Readings(self.corpus, [row.name for row in self.lab.own_rows])
        )

    @property
    def token_entropy(self) -> float:
        """The loss of a unigram model of the tokens; NaN without a corpus."""
        return math.nan if self._readings is None else self._readings.token_entropy

    @cached_property
    def reference(self) -> Reference:
        """Samples that represent usual ones, at this state; damaged ones do not."""
        rows, samples = self._compared
        damaged = self.usual_signs.are_damaged(len(rows))
        if 0 < sum(damaged) <= _MOST_DAMAGED * len(rows):
            whole = [place for place, is_bad in enumerate(damaged) if not is_bad]
            samples = [samples[place] for place in whole]
            rows = [rows[place] for place in whole]
        return Reference(samples, self._num_characters(rows))

    @cached_property
    def _compared(self) -> tuple[list[Row], list[SampleLoss]]:
        return self.lab.reference(self.state.others)

    @cached_property
    def usual_signs(self) -> UsualSigns:
        """The signs that are common in the corpus anyway."""
        rows, samples = self._compared
        if self._readings is None:
            return UsualSigns((), ())
        return self._readings.usual(rows, [sample.token_losses for sample in samples])

    @cached_property
    def samples(self) -> list[SeenSample]:
        """The samples of the step, in order, without placeholder rows of ranks that had no
        batch.
        """
        found = self.state.own.samples
        rows = self.lab.own_rows
        ranks = _ranks_of(self.state.own.of_batches, self.case.manifest.world_size)
        if len(rows) != len(found):
            rows = [Row(_name(sample.sample_id), ()) for sample in found]
        kept = [
            place
            for place, row in enumerate(rows)
            if row.name[1] >= 0 and found[place].loss is not None
        ]
        samples = [found[place] for place in kept]
        rows = [rows[place] for place in kept]
        seen = see(
            samples,
            rows,
            [ranks[place] for place in kept],
            self.reference,
            self._num_characters(rows),
        )
        if self._readings is None:
            return seen
        far = [place for place, sample in enumerate(seen) if max(sample.z, sample.bits_z) > _FAR_Z]
        read = self._readings.read_together(rows, [sample.token_losses for sample in samples], far)
        return [
            replace(sample, signs=tuple(signs)) for sample, signs in zip(seen, read, strict=True)
        ]

    @cached_property
    def batch_z(self) -> float:
        """How far the samples of the batch are above usual ones on average, in deviations of other
        batches.
        """
        means = [
            fmean(self.reference.losses_z(other.samples) or [math.nan])
            for other in self.state.others
        ]
        own = fmean([sample.z for sample in self.samples] or [math.nan])
        return Spread(means).z(own) if math.isfinite(own) else math.inf

    def stands_out(self, seen: Sequence[SeenSample]) -> float:
        """Return how rare it is that samples of such a batch are as strange as these, as a negative
        power of ten; 0 for no surprise.
        """
        return surprise([sample.strangeness for sample in seen], len(self.samples))

    @property
    def has_sources(self) -> bool:
        """Whether samples have a source."""
        return any(sample.row.source is not None for sample in self.samples)

    def part_of(self, seen: Sequence[SeenSample]) -> float:
        """Return the fraction of the excess loss that disappears without these samples, from 0 to
        1.
        """
        names = frozenset(sample.row.name for sample in seen)
        own = self.state.own.loss
        normal = self.state.here.median + self.state.here.deviation

        def measure() -> float:
            loss = self.lab.replay.loss(drop=sorted(names)).loss
            done = f"step {self.case.step} without {len(names)} of its {len(self.samples)} samples"
            found = f"the loss is {loss:.4g} instead of {own:.4g}; {normal:.4g} is normal"
            self.lab.note("which samples?", done, found, without=loss, own=own)
            return loss

        loss = self.once(names, measure)
        if own <= normal or len(names) == len(self.samples):
            return 1.0  # nothing is above normal, or no sample is left that could be
        if not math.isfinite(own) or not math.isfinite(loss):
            return float(math.isfinite(loss))
        return max(0.0, min(1.0, (own - loss) / (own - normal)))

    def suspects(self, seen: Sequence[SeenSample]) -> list[Suspect]:
        """Return the samples as suspects of a verdict, worst first."""
        ordered = sorted(seen, key=_worst_first)
        if self.corpus is not None:
            corpus = self.corpus
            return [corpus.suspect(sample.row, sample.sample, sample.rank) for sample in ordered]
        return [
            Suspect(
                dataset=sample.row.name[0],
                sample=sample.row.name[1],
                rank=sample.rank,
                loss=sample.sample.loss,
            )
            for sample in ordered
        ]

    def describe_rate(self) -> str:
        """Describe the learning rate compared with its usual range."""
        rates = Spread([step.lr for step in self.case.calm])
        return (
            f"the learning rate is {self.case.record.lr:.3g}; over the calm steps before it was"
            f" {rates.median:.3g} (±{rates.deviation:.1g})"
        )

    def _num_characters(self, rows: Sequence[Row]) -> list[int] | None:
        return (
            None if self.corpus is None else [len(self.corpus.decode(row.target)) for row in rows]
        )


def describe_gradients(evidence: Evidence) -> list[str]:
    """Describe the gradient norm compared with calm steps, and the modules whose gradients deviate
    most.
    """
    usual = Spread([step.grad_norm for step in evidence.case.calm if step.grad_norm is not None])
    norm = evidence.made.grad_norm
    sentences = list[str]()
    if norm is not None and len(usual):
        sentences.append(
            f"the gradient norm is {norm:.3g}, {usual.z(norm):+.1f} deviations from calm steps"
        )
    ratios = []
    for gradient in evidence.made.modules:
        if gradient.kind == GRADIENT:
            key = gradient.module, gradient.kind
            calm = evidence.modules_of_another_batch.get(key, 0.0)
            if calm > 0:
                ratios.append((gradient.norm / calm, gradient.module))
    for ratio, module in sorted(ratios, reverse=True)[:_NUM_MODULES]:
        if ratio > 2:
            sentences.append(f"the gradient of {module} is {ratio:.2g} times that of a calm step")
    return sentences


def _ranks_of(batches: Sequence[Sequence[SampleLoss]], world_size: int) -> list[int]:
    """Return the rank that had each sample of some batches; the ranks take turns."""
    ranks = []
    for number, samples in enumerate(batches):
        ranks += [number % world_size] * len(samples)
    return ranks


def _worst_first(seen: SeenSample) -> float:
    """Return the key that sorts samples by what they add to the loss, most first; what is not
    finite is most.
    """
    return -seen.excess if math.isfinite(seen.excess) else -math.inf


def _name(sample_id: object) -> Name:
    """Derive a sample's name from its id."""
    if isinstance(sample_id, tuple) and len(sample_id) == 2:
        return str(sample_id[0]), int(sample_id[1])
    return "", sample_id if isinstance(sample_id, int) else -1
