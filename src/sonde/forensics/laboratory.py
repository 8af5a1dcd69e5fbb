"""The experiments of a diagnosis: the step again, its batch at other weights, other batches at its weights, and what became of single tensors.

Every method makes one experiment by replay, notes it for the verdict, and returns the numbers; what they mean is decided elsewhere. After each
of them the training stands before the step again.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, final

import torch
from torch import Tensor

from sonde.errors import SondeError
from sonde.forensics.case import Case
from sonde.forensics.losses import Losses, SampleLoss
from sonde.forensics.readings import NUM_READ, NUM_TEXTS
from sonde.forensics.replay import Replay, same_bits
from sonde.forensics.seams import Corpus, Name, Row
from sonde.forensics.tensor_watch import Watch
from sonde.forensics.verdict import Experiment, ModuleStatistics, ReplayResult
from sonde.spread import Spread

_NUM_OTHERS: Final = 6
"""Batches of steps before the one in question, and as many after it, that stand for normal ones."""
_NUM_REFERENCE: Final = 384
"""Samples of the corpus that single samples are compared with, those of the other batches included."""
_REFERENCE_TOKENS: Final = 32_000
_LEAST_REFERENCE: Final = 96
"""Of long samples fewer, so that all of them together have no more tokens than this, about."""
_CHOICE: Final = 8
"""Of so many times as many those of the right length are taken."""
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
    grad_norm: float | None
    """The gradient norm now."""
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
    earlier_others: tuple[float, ...]
    """What the other batches lose there, each; empty without."""

    @property
    def here(self) -> Spread:
        """What other batches lose at the state before the step."""
        return Spread([one.loss for one in self.others])

    @property
    def num_broken(self) -> int:
        """Other batches whose loss is not finite there."""
        return sum(not math.isfinite(one.loss) for one in self.others)

    @property
    def worse(self) -> Spread:
        """How much more each of them loses here than there."""
        return Spread([one.loss - before for one, before in zip(self.others, self.earlier_others, strict=False)])


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
            grad_norm=made.grad_norm,
            modules=watch.modules(),
        )

    def compare_states(self) -> StateTest:
        """Data or state? This batch and others, here and at the weights of an earlier checkpoint."""
        replay, case = self.replay, self.case
        batches = self.other_batches()
        own, others = replay.loss(), tuple(replay.loss(batches=one) for one in batches)
        earlier = self._earlier()
        earlier_own, earlier_others = math.nan, list[float]()
        if earlier is not None:
            replay.load_weights(earlier)
            earlier_own = replay.loss().loss
            earlier_others = [replay.loss(batches=one).loss for one in batches]
            self.rewind()
        here, there = Spread([one.loss for one in others]), Spread(earlier_others)
        usual = case.losses
        self.note(
            "data or state?",
            f"{len(others)} other batches at the state before step {case.step}",
            f"their loss is {here.median:.4g} (±{here.deviation:.2g}), that of this batch {own.loss:.4g}"
            + (f"; {usual.median:.4g} (±{usual.deviation:.2g}) was normal" if len(usual) else ""),
            own=own.loss,
            others=here.median,
            **({"normal": usual.median} if len(usual) else {}),
        )
        if earlier is not None:
            self.note(
                "data or state?",
                f"the same batch at the weights after update {earlier}",
                f"its loss is {earlier_own:.4g} there, that of other batches {there.median:.4g} (±{there.deviation:.2g})",
                own=earlier_own,
                others=there.median,
            )
        return StateTest(
            own=own,
            others=others,
            earlier=earlier,
            earlier_own=earlier_own,
            earlier_others=tuple(earlier_others),
        )

    def reference(self, others: Sequence[Losses]) -> tuple[list[Row], list[SampleLoss]]:
        """Samples to compare with at this state: those of other batches, and more of the corpus where batches can be made of them."""
        rows = [row for batches in self.other_batches() for row in self.rows_of(batches)]
        samples = [sample for one in others for sample in one.samples]
        corpus, own = self.replay.seams.batches.corpus, self.rows_of(self.replay.batches(self.case.step))
        if len(rows) != len(samples):
            rows = [Row(sample.sample_id, ()) for sample in samples]
            corpus = None
        longest = max((len(row.target) for row in rows), default=1)
        wanted = min(_NUM_REFERENCE, max(_REFERENCE_TOKENS // max(longest, 1), _LEAST_REFERENCE))
        missing, known = max(wanted - len(rows), wanted // 4), {row.name for row in [*rows, *own]}
        more = [] if corpus is None else rows_like(own, corpus, known, missing)
        more.sort(key=lambda row: len(row.target))  # short ones with short ones: less padding
        size = max(len(own), 16)
        for start in range(0, len(more), size):
            assert corpus is not None
            chosen = more[start : start + size]
            batch = corpus.batch(chosen)
            if batch is None:
                break
            rows += chosen
            samples += self.replay.loss(batches=[batch]).samples
        return rows, samples

    def without(self, samples: Sequence[tuple[str, int]]) -> float:
        """The loss of the step without some samples."""
        return self.replay.loss(drop=samples).loss

    def in_float32(self) -> float:
        """The loss of the step in float32."""
        made = self.replay.update(precision="float32")
        self.rewind()
        self.note(
            "precision?",
            "the step in float32 instead",
            f"the loss is {made.loss:.4g}" + ("" if made.skipped is None else f", but {made.skipped}"),
            loss=made.loss,
        )
        return made.loss

    def calm_modules(self) -> tuple[ModuleStatistics, ...]:
        """What goes through the model with another batch, at earlier weights if there are any."""
        earlier, watch = self._earlier(), Watch()
        if earlier is not None:
            self.replay.load_weights(earlier)
        self.replay.update(batches=self.other_batches()[0], watch=watch)
        self.rewind()
        return watch.modules()

    def with_rate(self, since: int, rate: Callable[[int], float], *, words: str, until: int | None = None) -> float:
        """The loss of step `until`, of the step itself unless named, if those from `since` on had been made at other learning rates."""
        until = until or self.case.step
        self.replay.go_to(since)
        while self.replay.num_updates < until - 1:
            self.replay.update(lr=rate(self.replay.num_updates + 1))
        loss = self.replay.loss().loss
        self.rewind()
        then = self.case.steps.get(until)
        self.note(
            "which setting?",
            f"the steps {since} to {until - 1} again at {words}",
            f"the loss of step {until} is {loss:.4g} then" + (f"; {then.loss:.4g} was recorded" if then else ""),
            loss=loss,
        )
        return loss

    def after_change(self, step: int, change: Callable[[Replay], None], *, words: str, until: int) -> float:
        """The loss of step `until`, if the training had been changed before step `step`."""
        self.replay.go_to(step)
        with torch.no_grad():
            change(self.replay)
        while self.replay.num_updates < until - 1:
            self.replay.update()
        loss = self.replay.loss().loss
        self.rewind()
        then = self.case.steps.get(until)
        self.note(
            "what changed in memory?",
            f"step {until} again with {words}",
            f"the loss is {loss:.6g}" + (f"; {then.loss:.6g} was recorded" if then else ""),
            loss=loss,
        )
        return loss

    def with_tensor_of(self, name: str, step: int) -> float:
        """What other batches lose with one tensor as it was in an earlier checkpoint: their median."""
        saved: Mapping[str, Tensor] = self.checkpoint(step)["model"]
        model = self.replay.model
        model.load_state_dict({**model.state_dict(), name: saved[name]})
        loss = Spread([self.replay.loss(batches=one).loss for one in self.other_batches()[:5]]).median
        self.rewind()
        self.note(
            "which tensor?",
            f"{name} as it was after update {step}",
            f"the loss of other batches is {loss:.4g} with it",
            loss=loss,
        )
        return loss

    def checkpoint_before(self, step: int) -> int | None:
        """The newest valid checkpoint before another one."""
        return max((one for one in self.replay.checkpoints() if 0 < one < step), default=None)

    def checkpoint_after(self, step: int) -> int | None:
        """The first valid checkpoint that holds a step."""
        return min((one for one in self.replay.checkpoints() if one >= step), default=None)

    def checkpoint(self, step: int) -> Mapping[str, Any]:
        """What is in a checkpoint; read once."""
        if step not in self._saved:
            self._saved[step] = self.replay.state_after(step)
        return self._saved[step]

    def rows_of(self, batches: Sequence[Any]) -> list[Row]:
        """The rows of micro-batches, in the order of their losses."""
        return [row for batch in batches for row in self.replay.seams.batches.rows(batch)]

    def other_batches(self) -> list[list[Any]]:
        """The batches of steps around this one; those after it first."""
        step = self.case.step
        for number in (
            [] if self._others else [*range(step + 1, step + 1 + _NUM_OTHERS), *range(max(step - _NUM_OTHERS, 1), step)]
        ):
            try:
                self._others.append(self.replay.batches(number))
            except SondeError:
                continue  # a training of another kind may have kept only some
        return self._others

    def _is_close(self, one: float, other: float, first_off: int | None) -> bool:
        """Are a recorded and a replayed loss the same, but for rounding?"""
        if not math.isfinite(one) or not math.isfinite(other):
            return same_bits(one, other) or (not math.isfinite(one) and not math.isfinite(other))
        off = abs(one - other)
        if first_off is not None and first_off - self.from_step > _NUM_EXACT:
            return off <= _ROUNDING * abs(other)  # all was the same to the bit, until it was not
        least = self.case.losses.deviation
        return off <= max(0.3 * least if math.isfinite(least) else 0.0, 1e-3 * abs(other))

    def _earlier(self) -> int | None:
        """The checkpoint before the one that the state came from; the one it came from, when it is a few steps back."""
        before = self.checkpoint_before(self.from_step)
        if before is not None:
            return before
        return self.from_step if 0 < self.from_step < self.case.step - 1 else None


def rows_like(own: Sequence[Row], corpus: Corpus, known: Collection[Name], num: int) -> list[Row]:
    """Samples of the corpus about as long as some rows, without known ones: a batch of the longest has few others like it."""
    # The last of many: the first ones are what texts are judged by, and would be judged by themselves.
    some = [row for row in corpus.some(NUM_TEXTS + NUM_READ)[NUM_TEXTS:] if row.name not in known]
    sizes = sorted(len(row.target) for row in own) or [1]
    middle = math.log(sizes[len(sizes) // 2] + 1)
    return sorted(some[: _CHOICE * num], key=lambda row: abs(math.log(len(row.target) + 1) - middle))[:num]
