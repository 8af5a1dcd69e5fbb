"""The experiments of a diagnosis: replay the step, try its batch at other weights and other batches
at its weights, swap tensors.

Each method runs one experiment by replay, records it for the verdict, and returns the numbers;
their interpretation is elsewhere. Afterwards, the training is back at the state before the step.
"""

import math
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from functools import cache, cached_property
from typing import Any, Final, NamedTuple

import torch

from sonde.errors import SondeError
from sonde.forensics.case import Case, same_bits
from sonde.forensics.readings import NUM_READ, NUM_TEXTS
from sonde.forensics.replay import Replay
from sonde.forensics.seams import Losses, ModuleWatch, Name, Row, RunTexts, SampleLoss
from sonde.forensics.verdict import Experiment, ModuleStatistics, ReplayResult
from sonde.records.journal import StepRecord
from sonde.spread import Spread

_NUM_OTHERS: Final = 6
"""How many batches before the step, and as many after it, represent normal ones."""
_NUM_REFERENCE: Final = 384
"""How many samples of the corpus to compare single samples with, including those of the other
batches.
"""
_REFERENCE_TOKENS: Final = 32_000
_LEAST_REFERENCE: Final = 96
"""For long samples, the reference has about `_REFERENCE_TOKENS` tokens in total, but at least this
many samples.
"""
_CHOICE: Final = 8
"""Draw this many times more candidates, to choose those of similar length."""
_NUM_EXACT: Final = 2
"""After this many bit-identical steps, a step that differs is significant."""
_MAX_REMADE: Final = 300
"""A checkpoint is made again only from one at most this many steps before it."""
_ROUNDING: Final = 1e-5
"""The relative difference from which on such a step counts."""


class Reproduction(NamedTuple):
    """The replayed step."""

    result: ReplayResult
    """The result as shown in the verdict."""
    differs: bool
    """Whether the replayed loss differs by more than rounding."""
    first_different: int | None
    """The first step since the checkpoint whose loss is not bit-identical to the recorded one."""
    num_exact: int
    """The number of bit-identical steps since the checkpoint before that one."""
    grad_norm: float | None
    """The replayed gradient norm."""
    modules: tuple[ModuleStatistics, ...]
    """Statistics of every module's tensors."""


class RemadeCheckpoint(NamedTuple):
    """A checkpoint compared with the same state made again by a replay."""

    step: int
    """The number of updates after which it was saved."""
    others: tuple[str, ...]
    """The parameters of the model that are not the same to the bit."""
    num_tensors: int
    """The number of parameters of the model."""
    before: int
    """The checkpoint that it was made again from."""
    growth: float
    """How many times as large the first of those tensors is as it should be, by its norm."""


class StateTest(NamedTuple):
    """The losses of the step's batch and of other batches, at the state before the step and at
    earlier weights.
    """

    own: Losses
    """The step's batch at its state."""
    others: Sequence[Losses]
    """Other batches at that state."""
    earlier: int | None = None
    """The checkpoint with the earlier weights, in completed updates; None if there is none."""
    earlier_own: float = math.nan
    """The loss of the step's batch at the earlier weights; NaN if there are none."""
    earlier_others: Sequence[float] = ()
    """The loss of each of the other batches at the earlier weights; empty if there are none."""

    @property
    def here(self) -> Spread:
        """The losses of other batches at the state before the step."""
        return Spread([other.loss for other in self.others])

    @property
    def worse(self) -> Spread:
        """How much higher the loss of each other batch is at this state than at the earlier
        weights.
        """
        losses = zip(self.others, self.earlier_others, strict=False)
        return Spread([now.loss - before for now, before in losses])


class Laboratory:
    """Runs experiments for one case."""

    def __init__(self, case: Case, replay: Replay) -> None:
        self.case = case
        self.replay = replay
        self.experiments: list[Experiment] = []
        """The experiments so far, in order."""
        self.from_step = replay.go_to(case.step)
        """The checkpoint from which the state before the step was reached."""
        self._steps_that_differ = list(replay.deviations)
        self._ready = replay.snapshot()
        self.checkpoint = cache(replay.state_after)
        """Return the contents of a checkpoint."""
        self.corpus = replay.seams.batches.corpus
        """The corpus of the batch; None if tokens cannot be decoded to text."""

    def note(self, question: str, done: str, found: str, **numbers: float) -> None:
        """Record an experiment."""
        self.experiments.append(
            Experiment(question=question, done=done, found=found, numbers=numbers)
        )

    def rewind(self) -> None:
        """Return to the state before the step."""
        self.replay.restore(self._ready)

    def reproduce(self) -> Reproduction:
        """Replay the step unchanged, recording the tensors of every module."""
        case = self.case
        watch = ModuleWatch()
        made = self.replay.update(watch=watch)
        self.rewind()
        recorded = case.record.loss
        result = ReplayResult(
            from_step=self.from_step,
            recorded_loss=recorded,
            replayed_loss=made.loss,
            reproduced=same_bits(recorded, made.loss),
            differences=self.replay.differences(),
        )
        first_different = next(
            iter(self._steps_that_differ), None if result.reproduced else case.step
        )
        same = "the same to the bit" if result.reproduced else "not the same"
        found = f"the loss is {made.loss:.6g}, {recorded:.6g} was recorded, {same}"
        if first_different and first_different < case.step:
            found += f"; the steps up to {first_different - 1} are the same to the bit"
        done = (
            f"{_steps(self.from_step + 1, case.step)} again, from the checkpoint after step"
            f" {self.from_step}"
        )
        self.note("does it happen again?", done, found, replayed=made.loss, recorded=recorded)
        return Reproduction(
            result=result,
            differs=not self._is_close(recorded, made.loss, first_different),
            first_different=first_different,
            num_exact=(case.step + 1 if first_different is None else first_different)
            - self.from_step
            - 1,
            grad_norm=made.grad_norm,
            modules=watch.modules(),
        )

    def compare_states(self) -> StateTest:
        """Data or state? Compare this batch with others, at this state and at the weights of an
        earlier checkpoint.
        """
        replay = self.replay
        step = self.case.step
        usual = self.case.losses
        test = StateTest(
            replay.loss(), [replay.loss(batches=batch) for batch in self.other_batches]
        )
        own = test.own.loss
        here = test.here
        found = (
            f"their loss is {here.median:.4g} (±{here.deviation:.2g}), that of this batch {own:.4g}"
        )
        numbers = {"own": own, "others": here.median}
        if len(usual):
            found += f"; {usual.median:.4g} (±{usual.deviation:.2g}) was normal"
            numbers["normal"] = usual.median
        done = f"{len(test.others)} other batches at the state before step {step}"
        self.note("data or state?", done, found, **numbers)
        earlier = self._earlier()
        if earlier is None:
            return test
        replay.load_weights(earlier)
        own = replay.loss().loss
        others = [replay.loss(batches=batch).loss for batch in self.other_batches]
        self.rewind()
        there = Spread(others)
        found = (
            f"its loss is {own:.4g} there, that of other batches {there.median:.4g}"
            f" (±{there.deviation:.2g})"
        )
        done = f"the same batch at the weights after step {earlier}"
        self.note("data or state?", done, found, own=own, others=there.median)
        return test._replace(earlier=earlier, earlier_own=own, earlier_others=others)

    def reference(self, others: Sequence[Losses]) -> tuple[list[Row], list[SampleLoss]]:
        """Return samples to compare with at this state: those of other batches, and more from the
        corpus if batches can be built.
        """
        rows = [row for batches in self.other_batches for row in self.rows_of(batches)]
        samples = [sample for other in others for sample in other.samples]
        corpus = self.corpus
        own = self.own_rows
        if len(rows) != len(samples):
            rows = [Row(sample.sample_id, ()) for sample in samples]
            corpus = None
        longest = max((len(row.target) for row in rows), default=1)
        wanted = min(_NUM_REFERENCE, max(_REFERENCE_TOKENS // max(longest, 1), _LEAST_REFERENCE))
        missing = max(wanted - len(rows), wanted // 4)
        known = {row.name for row in [*rows, *own]}
        more = [] if corpus is None else rows_like(own, corpus, known, missing)
        more.sort(key=lambda row: len(row.target))  # sorted by length to reduce padding
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

    def in_float32(self) -> float:
        """Return the loss of the step in float32."""
        made = self.replay.update(precision="float32")
        self.rewind()
        found = f"the loss is {made.loss:.4g}" + (
            "" if made.skipped is None else f", but {made.skipped}"
        )
        self.note("precision?", "the step in float32 instead", found, loss=made.loss)
        return made.loss

    def modules_of_another_batch(self) -> tuple[ModuleStatistics, ...]:
        """Return module statistics for another batch, at earlier weights if available."""
        earlier = self._earlier()
        watch = ModuleWatch()
        if earlier is not None:
            self.replay.load_weights(earlier)
        self.replay.update(batches=self.other_batches[0], watch=watch)
        self.rewind()
        return watch.modules()

    def replay_with(
        self,
        since: int,
        *,
        words: str,
        record: StepRecord | None = None,
        rate: Callable[[int], float | None] | None = None,
        change: Callable[[Replay], None] | None = None,
        replay: Replay | None = None,
    ) -> float:
        """Return the loss of a step (by default this one) if the steps from `since` on had been
        made otherwise.

        With other learning rates, after a change of what is in memory, or by another replay of the
        run.
        """
        record = record or self.case.record
        replay = replay or self.replay
        replay.go_to(since)
        if change is not None:
            with torch.no_grad():
                change(replay)
        while replay.num_updates < record.step - 1:
            replay.update(lr=rate and rate(replay.num_updates + 1))
        loss = replay.loss().loss
        self.rewind()
        question = "which setting?" if change is None else "what changed in memory?"
        found = f"the loss of step {record.step} is {loss:.6g} then; {record.loss:.6g} was recorded"
        self.note(question, f"{_steps(since, record.step)} again with {words}", found, loss=loss)
        return loss

    def remade_checkpoint(self) -> "RemadeCheckpoint | None":
        """Make the starting checkpoint again from the one before it, and compare the weights bit
        for bit. None if there is none before it, or if the steps between do not give the recorded
        losses.
        """
        start = self.from_step
        before = [step for step in self.replay.checkpoints() if step < start]
        if not before or start - before[-1] > _MAX_REMADE:
            return None
        self.replay.go_to(start)
        self.replay.update()
        is_exact = not self.replay.deviations
        # Buffers may change in a forward pass, which the state at an event has seen already.
        parameters = self.replay.model.named_parameters()
        made = {name: value.detach().clone() for name, value in parameters}
        self.rewind()
        if not is_exact:
            return None
        kept = self.checkpoint(start)["model"]
        others = tuple(name for name, value in made.items() if not torch.equal(value, kept[name]))
        growth = _size(kept[others[0]]) / (_size(made[others[0]]) or math.nan) if others else 1.0
        found = f"{len(others)} of {len(made)} parameters differ from those in the checkpoint"
        done = f"{_steps(before[-1] + 1, start)} again"
        self.note("is the checkpoint what training made?", done, found)
        return RemadeCheckpoint(start, others, len(made), before[-1], growth)

    def with_tensor_of(self, name: str, step: int) -> float:
        """Return the median loss of other batches with one tensor replaced by its value in an
        earlier checkpoint.
        """
        model = self.replay.model
        model.load_state_dict({**model.state_dict(), name: self.checkpoint(step)["model"][name]})
        loss = Spread(
            [self.replay.loss(batches=batch).loss for batch in self.other_batches[:5]]
        ).median
        self.rewind()
        found = f"the loss of other batches is {loss:.4g} with it"
        self.note("which tensor?", f"{name} as it was after step {step}", found, loss=loss)
        return loss

    def rows_of(self, batches: Sequence[Any]) -> list[Row]:
        """Return the rows of micro-batches, in the order of their losses."""
        return [row for batch in batches for row in self.replay.seams.batches.rows(batch)]

    @cached_property
    def own_rows(self) -> list[Row]:
        """The rows of the step."""
        return self.rows_of(self.replay.batches(self.case.step))

    @cached_property
    def other_batches(self) -> list[list[Any]]:
        """The batches of steps around this one, later ones first."""
        step = self.case.step
        found = list[list[Any]]()
        for number in [
            *range(step + 1, step + 1 + _NUM_OTHERS),
            *range(max(step - _NUM_OTHERS, 1), step),
        ]:
            with suppress(SondeError):  # runs of other trainers may have kept only some batches
                found.append(self.replay.batches(number))
        return found

    def _is_close(self, recorded: float, replayed: float, first_different: int | None) -> bool:
        """Return whether a recorded and a replayed loss are equal up to rounding."""
        if not math.isfinite(recorded) or not math.isfinite(replayed):
            return math.isfinite(recorded) == math.isfinite(replayed)
        off = abs(recorded - replayed)
        if first_different is not None and first_different - self.from_step > _NUM_EXACT:
            return off <= _ROUNDING * abs(replayed)  # all steps were bit-identical until this one
        least = self.case.losses.deviation
        return off <= max(0.3 * least if math.isfinite(least) else 0.0, 1e-3 * abs(replayed))

    def _earlier(self) -> int | None:
        """Return the checkpoint before the starting one; otherwise the starting one, if it is at
        least two steps back.
        """
        start = self.from_step if 0 < self.from_step < self.case.step - 1 else None
        return max(
            (
                checkpoint
                for checkpoint in self.replay.checkpoints()
                if 0 < checkpoint < self.from_step
            ),
            default=start,
        )


def _size(tensor: torch.Tensor) -> float:
    return float(tensor.detach().double().norm())


def rows_like(own: Sequence[Row], corpus: RunTexts, known: Collection[Name], num: int) -> list[Row]:
    """Return samples of the corpus about as long as `own`, without `known` ones: a batch of the
    longest has few others like it.
    """
    # Use the later part of the sample: the earlier part makes up the text profile and must not be
    # judged by itself.
    some = [row for row in corpus.some(NUM_TEXTS + NUM_READ)[NUM_TEXTS:] if row.name not in known]
    sizes = sorted(len(row.target) for row in own) or [1]
    middle = math.log(sizes[len(sizes) // 2] + 1)
    return sorted(
        some[: _CHOICE * num], key=lambda row: abs(math.log(len(row.target) + 1) - middle)
    )[:num]


def _steps(first: int, last: int) -> str:
    return f"step {last}" if first == last else f"the steps {first} to {last}"
