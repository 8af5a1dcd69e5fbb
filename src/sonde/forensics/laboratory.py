"""The experiments of a diagnosis: the step again, its batch at other weights, other batches at its weights, and what became of single tensors.

Every method makes one experiment by replay, notes it for the verdict, and returns the numbers; what they mean is decided elsewhere. After each
of them the training stands before the step again.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

from torch import Tensor

from sonde.forensics.case import Case
from sonde.forensics.losses import Losses
from sonde.forensics.replay import Replay, same_bits
from sonde.forensics.seams import Name, Row
from sonde.forensics.tensor_bounds import (
    OutlyingTensor,
    adam_settings,
    movement,
    outlying_moments,
    outlying_weights,
)
from sonde.forensics.tensor_watch import Watch
from sonde.forensics.verdict import Experiment, ModuleStatistics, ReplayResult
from sonde.spread import Spread

_NUM_OTHERS: Final = 6
"""Batches of steps before the one in question, and as many after it, that stand for normal ones."""
_NUM_EXACT: Final = 2
"""After so many steps that were the same to the bit, one that is not means something,"""
_ROUNDING: Final = 1e-5
"""if it is off by more than this."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Reproduction:
    """The step made again."""

    result: ReplayResult
    """As the verdict tells it."""
    is_off: bool
    """Is the replayed loss another one, by more than rounding?"""
    first_off: int | None
    """The first step since the checkpoint whose loss is not the recorded one to the bit."""
    num_exact: int
    """Steps since the checkpoint, before that one, that were bit for bit the same."""
    modules: tuple[ModuleStatistics, ...]
    """What went through the model."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class StateTest:
    """The step's batch and other batches, at the state before the step and at an earlier one."""

    own: Losses
    """The step's batch at its state."""
    others: tuple[Losses, ...]
    """Other batches at that state."""
    earlier: int | None
    """After how many updates the earlier weights are; None when there are none."""
    earlier_own: float
    """The step's batch at the earlier weights; NaN without."""
    earlier_others: Spread
    """Other batches there."""

    @property
    def here(self) -> Spread:
        """What other batches lose at the state before the step."""
        return Spread([one.loss for one in self.others])

    @property
    def num_broken(self) -> int:
        """Other batches whose loss is not finite there."""
        return sum(not math.isfinite(one.loss) for one in self.others)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TensorTest:
    """Weights and moments that training cannot have made, between two checkpoints."""

    before: int
    """The earlier checkpoint."""
    after: int
    """The later one."""
    weights: tuple[OutlyingTensor, ...]
    moments: tuple[OutlyingTensor, ...]
    """Of the later one."""
    is_before_good: bool
    """Is there no such moment in the earlier one?"""
    moved: Mapping[str, float]
    """How far each tensor moved, against its size."""


@final
class Laboratory:
    """One case and the training it belongs to."""

    def __init__(self, case: Case, replay: Replay) -> None:
        self.case = case
        self.replay = replay
        self.experiments: list[Experiment] = []
        """What was done, in order."""
        self.from_step = replay.go_to(case.step)
        """The checkpoint that the state before the step was reached from."""
        self._deviations = list(replay.deviations)
        self._ready = replay.snapshot()
        self._saved: dict[int, Mapping[str, Any]] = {}
        self._others: list[list[Any]] = []

    def note(self, question: str, done: str, found: str, **numbers: float) -> None:
        """Write an experiment down."""
        self.experiments.append(Experiment(question=question, done=done, found=found, numbers=numbers))

    def rewind(self) -> None:
        """Back to the state before the step."""
        self.replay.restore(self._ready)

    def reproduce(self) -> Reproduction:
        """The step again, as it was, with every module watched."""
        case, watch = self.case, Watch()
        made = self.replay.update(watch=watch)
        self.rewind()
        recorded = None if case.record is None else case.record.loss
        same = None if recorded is None else same_bits(recorded, made.loss)
        first_off = next(iter(self._deviations), None)
        if first_off is None and same is False:
            first_off = case.step
        is_off = recorded is not None and not self._is_close(recorded, made.loss, first_off)
        told = "was not recorded" if recorded is None else f"{recorded:.6g} was recorded"
        exactly = {None: "", True: ", the same to the bit", False: ", not the same"}[same]
        last = case.step if first_off is None else first_off
        self.note(
            "does it happen again?",
            f"the steps {self.from_step + 1} to {case.step} again, from the checkpoint after update {self.from_step}",
            f"the loss is {made.loss:.6g}, {told}{exactly}"
            + (
                f"; the steps up to {first_off - 1} are the same to the bit"
                if first_off and first_off < case.step
                else ""
            ),
            replayed=made.loss,
            **({} if recorded is None else {"recorded": recorded}),
        )
        return Reproduction(
            result=ReplayResult(
                from_step=self.from_step,
                recorded_loss=recorded,
                replayed_loss=made.loss,
                reproduced=same,
                differences=self.replay.differences(),
            ),
            is_off=is_off,
            first_off=first_off,
            num_exact=last - self.from_step - 1 + (first_off is None),
            modules=watch.modules(),
        )

    def compare_states(self) -> StateTest:
        """Data or state? This batch and others, here and at the weights of an earlier checkpoint."""
        replay, case = self.replay, self.case
        batches = self._other_batches()
        own, others = replay.loss(), tuple(replay.loss(batches=one) for one in batches)
        earlier = self._earlier()
        earlier_own, earlier_others = math.nan, Spread([])
        if earlier is not None:
            replay.load_weights(earlier)
            earlier_own = replay.loss().loss
            earlier_others = Spread([replay.loss(batches=one).loss for one in batches])
            self.rewind()
        here = Spread([one.loss for one in others])
        self.note(
            "data or state?",
            f"{len(others)} other batches at the state before step {case.step}",
            f"they lose {here.median:.4g} (±{here.deviation:.2g}), this batch {own.loss:.4g}; "
            f"{case.losses.median:.4g} (±{case.losses.deviation:.2g}) was normal",
            own=own.loss,
            others=here.median,
            normal=case.losses.median,
        )
        if earlier is not None:
            self.note(
                "data or state?",
                f"the same batch at the weights after update {earlier}",
                f"it loses {earlier_own:.4g} there, other batches {earlier_others.median:.4g} (±{earlier_others.deviation:.2g})",
                own=earlier_own,
                others=earlier_others.median,
            )
        return StateTest(
            own=own, others=others, earlier=earlier, earlier_own=earlier_own, earlier_others=earlier_others
        )

    def without(self, samples: Sequence[tuple[str, int]]) -> float:
        """The loss of the step without some samples."""
        return self.replay.loss(drop=samples).loss

    def in_float32(self) -> tuple[float, tuple[ModuleStatistics, ...]]:
        """The loss of the step in float32, and what went through the model."""
        watch = Watch()
        made = self.replay.update(precision="float32", watch=watch)
        self.rewind()
        self.note(
            "precision?",
            "the step in float32 instead",
            f"the loss is {made.loss:.4g}" + ("" if made.skipped is None else f", but {made.skipped}"),
            loss=made.loss,
        )
        return made.loss, watch.modules()

    def calm_modules(self) -> tuple[ModuleStatistics, ...]:
        """What goes through the model with another batch, at earlier weights if there are any."""
        earlier, watch = self._earlier(), Watch()
        if earlier is not None:
            self.replay.load_weights(earlier)
        self.replay.update(batches=self._other_batches()[0], watch=watch)
        self.rewind()
        return watch.modules()

    def with_rate(self, rate: float, since: int) -> float:
        """The loss of the step if the steps from `since` on had been made at another learning rate."""
        case = self.case
        self.replay.go_to(since)
        while self.replay.num_updates < case.step - 1:
            self.replay.update(lr=rate)
        loss = self.replay.loss().loss
        self.rewind()
        self.note(
            "which setting?",
            f"the steps {since} to {case.step - 1} again at a learning rate of {rate:.3g}",
            f"the loss of step {case.step} is {loss:.4g} then; {case.losses.median:.4g} was normal",
            loss=loss,
        )
        return loss

    def compare_tensors(self, before: int, after: int) -> TensorTest:
        """Weights and moments of a checkpoint against those of an earlier one."""
        old, new = self._checkpoint(before), self._checkpoint(after)
        settings = adam_settings(new["optimizer"]["param_groups"][0])
        names = self._parameter_names()
        earlier = outlying_moments(names, _moments(old, len(names)), settings) if settings else []
        rates = [self.case.steps[step].lr for step in range(before + 1, after + 1) if step in self.case.steps]
        whole = len(rates) == after - before
        test = TensorTest(
            before=before,
            after=after,
            weights=tuple(
                outlying_weights(
                    old["model"], new["model"], settings=settings if whole else None, rates=rates, num_updates=before
                )
            ),
            moments=tuple(outlying_moments(names, _moments(new, len(names)), settings)) if settings else (),
            is_before_good=not earlier,
            moved=movement(old["model"], new["model"]),
        )
        worst = [f"{one.name} ({one.num_elements} elements)" for one in (*test.moments[:2], *test.weights[:2])]
        self.note(
            "which tensor?",
            f"the checkpoint after update {after} against that after {before}",
            f"beyond what Adam can have done: {', '.join(worst)}"
            if worst
            else "nothing is beyond what Adam can have done",
            weights=float(len(test.weights)),
            moments=float(len(test.moments)),
        )
        return test

    def with_tensor_of(self, name: str, step: int) -> float:
        """What other batches lose with one tensor as it was in an earlier checkpoint: their median."""
        saved: Mapping[str, Tensor] = self._checkpoint(step)["model"]
        model = self.replay.model
        model.load_state_dict({**model.state_dict(), name: saved[name]})
        loss = Spread([self.replay.loss(batches=one).loss for one in self._other_batches()[:5]]).median
        self.rewind()
        return loss

    def checkpoint_before(self, step: int) -> int | None:
        """The newest valid checkpoint before another one."""
        return max((one for one in self.replay.checkpoints() if 0 < one < step), default=None)

    def checkpoint_after(self, step: int) -> int | None:
        """The first valid checkpoint that holds a step."""
        return min((one for one in self.replay.checkpoints() if one >= step), default=None)

    def deviation(self) -> float:
        """What a loss varies by from step to step."""
        return self.case.losses.deviation

    def rows(self) -> dict[Name, Row]:
        """The samples of the step, by name."""
        return {row.name: row for row in self._rows_of(self.replay.batches(self.case.step))}

    def other_rows(self) -> list[list[Row]]:
        """The samples of the other batches."""
        return [self._rows_of(one) for one in self._other_batches()]

    def _rows_of(self, batches: Sequence[Any]) -> list[Row]:
        return [row for batch in batches for row in self.replay.seams.batches.rows(batch) if row.name[1] >= 0]

    def _is_close(self, one: float, other: float, first_off: int | None) -> bool:
        """Are a recorded and a replayed loss the same, but for rounding?"""
        if not math.isfinite(one) or not math.isfinite(other):
            return same_bits(one, other) or (not math.isfinite(one) and not math.isfinite(other))
        off = abs(one - other)
        if first_off is not None and first_off - self.from_step > _NUM_EXACT:
            return off <= _ROUNDING * abs(other)  # all was the same to the bit, until it was not
        least = self.deviation()
        return off <= max(0.3 * least if math.isfinite(least) else 0.0, 1e-3 * abs(other))

    def _earlier(self) -> int | None:
        """The checkpoint before the one that the state came from; the one it came from, when it is a few steps back."""
        before = self.checkpoint_before(self.from_step)
        if before is not None:
            return before
        return self.from_step if 0 < self.from_step < self.case.step - 1 else None

    def _other_batches(self) -> list[list[Any]]:
        step = self.case.step
        numbers = [*range(step + 1, step + 1 + _NUM_OTHERS), *range(max(step - _NUM_OTHERS, 1), step)]
        self._others = self._others or [self.replay.batches(number) for number in numbers]
        return self._others

    def _checkpoint(self, step: int) -> Mapping[str, Any]:
        if step not in self._saved:
            self._saved[step] = self.replay.state_after(step)
        return self._saved[step]

    def _parameter_names(self) -> list[str]:
        """The names of the optimiser's parameters, in its order."""
        names = {id(parameter): name for name, parameter in self.replay.model.named_parameters()}
        groups = self.replay.optimizer.param_groups
        return [names.get(id(parameter), "") for group in groups for parameter in group["params"]]


def _moments(saved: Mapping[str, Any], num: int) -> list[Mapping[str, Any]]:
    """The optimiser's state of each parameter in a checkpoint; its keys are numbers, or as JSON has them."""
    states = saved["optimizer"]["state"]
    return [states.get(place, states.get(str(place), {})) for place in range(num)]
