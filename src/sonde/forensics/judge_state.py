"""The state is to blame, or the machine, or a setting: learning rate, weights, moments, precision, a rank's data, a replay that goes another way."""

import math
from collections.abc import Sequence
from typing import Final

from sonde.forensics.cause_texts import make_cause
from sonde.forensics.changes import DataChange
from sonde.forensics.laboratory import Laboratory, Reproduction, StateTest, TensorTest
from sonde.forensics.order_test import find_order
from sonde.forensics.tensor_watch import ACTIVATION, GRADIENT
from sonde.forensics.verdict import (
    BATCH_SIZE,
    CHANGED_DATA,
    CHANGED_TOKENIZER,
    DATA_ORDER,
    LEARNING_RATE,
    MACHINE,
    OPTIMIZER_STATE,
    OVERFLOW,
    WEIGHTS,
    Cause,
    ModuleStatistics,
)

_RATE_WINDOW: Final = 60
"""So long after a jump the learning rate may still be to blame."""
_RATE_RATIO: Final = 1.8
_PLAIN_RATIO: Final = 5.0
"""A rise like this is no schedule's, whether the loss shows it yet or not."""
_SIZE_RATIO: Final = 2.5
_STATE_Z: Final = 3.0
"""Other batches lose so many deviations more than normal: the state is bad."""


def is_state_bad(lab: Laboratory, state: StateTest) -> bool:
    """Do other batches lose far more at this state than batches did before?"""
    if state.num_broken > len(state.others) / 2:
        return True
    return lab.case.losses.z(state.here.median) > _STATE_Z


def judge_change(change: DataChange, made: Reproduction | None, is_unusual: bool, step: int) -> Cause:
    """Data that is not what the run began with."""
    cause = CHANGED_TOKENIZER if change.is_tokenizer else CHANGED_DATA
    if change.problem:
        told = [f"the data cannot be opened: {change.problem}"]
        return make_cause(CHANGED_DATA, 0.5 if is_unusual else 0.3, told, step=step)
    told = [f"not as the manifest has it: {', '.join(change.names)}"]
    if made is not None and made.result.reproduced:
        told.append(
            "the step made again with the data as it is now gives the recorded loss: it is what the run was fed"
        )
        return make_cause(cause, 0.97 if is_unusual else 0.45, told, step=step)
    if made is None:
        told.append("the step cannot be made again with it")
        return make_cause(cause, 0.85 if is_unusual else 0.45, told, step=step)
    told.append("the step made again gives another loss: the data may have changed after it")
    return make_cause(cause, 0.6, told, step=step)


def judge_rate(lab: Laboratory) -> list[Cause]:
    """Did the learning rate jump, and would the step have been normal without?"""
    case = lab.case
    jumps = [one for one in case.jumps("lr", ratio=_RATE_RATIO, within=_RATE_WINDOW) if one.step > 10]
    rises = [one for one in jumps if one.now > one.before]
    if not rises:
        return []
    jump = rises[-1]
    told = [
        f"at step {jump.step} it went from {jump.before:.3g} to {jump.now:.3g}, {jump.now / jump.before:.3g} times as much"
    ]
    scheduled = lab.replay.seams.updater.scheduled_rate(jump.step)
    setting = "lr"
    if scheduled is not None and abs(scheduled - jump.now) > 1e-6 * jump.now:
        told.append(f"the schedule says {scheduled:.3g} there")
        setting = "schedule"
    if jump.step >= case.step:
        told.append("a rate acts from the next step on: it cannot have raised the loss of this one")
        return [make_cause(LEARNING_RATE, 0.3, told, step=case.step, setting=setting)]
    loss = lab.with_rate(jump.before, jump.step)
    recorded = math.inf if case.record is None else case.record.loss
    normal = case.losses.median
    gone = 1.0 if not math.isfinite(recorded) else (recorded - loss) / max(recorded - normal, 1e-9)
    if math.isfinite(loss) and gone > 0.5:
        told.append(f"with the rate as it was, step {case.step} would have lost {loss:.4g} instead of {recorded:.4g}")
        return [make_cause(LEARNING_RATE, 0.6 + 0.37 * min(gone, 1.0), told, step=case.step, setting=setting)]
    told.append(f"with the rate as it was, step {case.step} would have lost {loss:.4g} all the same")
    is_plain = jump.now >= _PLAIN_RATIO * jump.before and not case.is_loss_unusual
    return [make_cause(LEARNING_RATE, 0.6 if is_plain else 0.2, told, step=case.step, setting=setting)]


def judge_size(lab: Laboratory) -> list[Cause]:
    """Is the batch of another size than those before it?"""
    case = lab.case
    weights = sorted(one.weight for one in case.calm)
    if case.record is None or not weights or weights[len(weights) // 2] <= 0:
        return []
    usual = weights[len(weights) // 2]
    ratio = case.record.weight / usual
    if 1 / _SIZE_RATIO < ratio < _SIZE_RATIO:
        return []
    told = f"it has {case.record.weight:.0f} target tokens, usually there are {usual:.0f}"
    return [make_cause(BATCH_SIZE, 0.45, [told], step=case.step, setting="max_tokens")]


def judge_order(lab: Laboratory) -> list[Cause]:
    """Was a rank fed what its place in the data says? Only the records of an event tell."""
    case, replay = lab.case, lab.replay
    world = case.manifest.world_size
    recorded = case.recorded_samples(case.step)
    batches = replay.batches(case.step)
    planned: dict[int, list[tuple[str, int]]] = {rank: [] for rank in range(world)}
    for number, batch in enumerate(batches):
        planned[number % world] += [row.name for row in replay.seams.batches.rows(batch)]
    wrong = [rank for rank, samples in recorded.items() if rank in planned and samples != planned[rank]]
    if not wrong:
        return []
    told = [
        f"rank {rank} had the samples {_few(recorded[rank])}, and its place in the data says {_few(planned[rank])}"
        for rank in wrong
    ]
    confidence = 0.85
    if len(batches) == world and _gives_recorded_loss(
        lab, [recorded.get(rank, planned[rank]) for rank in range(world)]
    ):
        told.append("fed what was recorded, the step loses again what was recorded")
        confidence = 0.97
    blamed = wrong[0] if len(wrong) == 1 else None
    return [make_cause(DATA_ORDER, confidence, told, step=case.step, rank=blamed)]


def judge_overflow(lab: Laboratory, made: Reproduction) -> list[Cause]:
    """Did a number become too large for the precision?"""
    case = lab.case
    precision = lab.replay.precision
    if precision == "float32":
        return []
    loss, _ = lab.in_float32()
    replayed = made.result.replayed_loss
    if not math.isfinite(loss) or (math.isfinite(replayed) and case.losses.z(loss) > _STATE_Z):
        return []
    broken = first_broken(made.modules)
    if math.isfinite(replayed) and broken is None:
        far = (replayed - loss) / lab.deviation()
        if not far > _STATE_Z:
            return []
        told = [f"in {precision} the step loses {replayed:.4g}, in float32 {loss:.4g}"]
        return [make_cause(OVERFLOW, 0.7, told, step=case.step, setting="precision")]
    told = [f"in {precision} the loss is {replayed:.4g}, in float32 {loss:.4g}"]
    module = None
    if broken is not None:
        module = broken.module
        told.append(f"the first {broken.kind} that is not finite is that of {module}: {broken.num_nonfinite} elements")
    if math.isfinite(replayed):
        told.append("the loss itself is finite: with a dynamic loss scale such a step now and then is normal")
        return [make_cause(OVERFLOW, 0.3, told, step=case.step, module=module, setting="precision")]
    return [make_cause(OVERFLOW, 0.95, told, step=case.step, module=module, setting="precision")]


def judge_tensors(lab: Laboratory, state: StateTest) -> list[Cause]:
    """The state is bad, and the replay found it so: which tensor of the checkpoint that it came from?"""
    before = lab.checkpoint_before(lab.from_step)
    if before is None:
        return []
    test = lab.compare_tensors(before, lab.from_step)
    causes = _outlying(lab, test)
    if causes:
        return [_confirmed(lab, state, test, causes[0]), *causes[1:]]
    normal, bad = lab.case.losses.median, state.here.median
    for name in sorted(test.moved, key=lambda one: -test.moved[one])[:6]:
        loss = lab.with_tensor_of(name, before)
        if math.isfinite(loss) and (not math.isfinite(bad) or (bad - loss) > 0.6 * (bad - normal)):
            told = [f"with {name} as it was after update {before}, other batches lose {loss:.4g} instead of {bad:.4g}"]
            return [make_cause(WEIGHTS, 0.75, told, step=lab.case.step, module=name)]
    return []


def judge_stored(lab: Laboratory) -> list[Cause]:
    """The loss is calm: are there still weights or moments, in the checkpoint it came from, that training cannot have made?"""
    before = lab.checkpoint_before(lab.from_step)
    return [] if before is None else _outlying(lab, lab.compare_tensors(before, lab.from_step))


def judge_machine(lab: Laboratory, made: Reproduction) -> list[Cause]:
    """The step went another way when it was recorded: was it a tensor in memory, or the machine for a moment?"""
    case = lab.case
    after = lab.checkpoint_after(case.step)
    if after is not None and lab.from_step > 0:
        causes = _outlying(lab, lab.compare_tensors(lab.from_step, after))
        if causes:
            return causes
    misfed = _misfed(lab)
    if misfed:
        return misfed
    exact = made.num_exact
    told = [f"it recorded {made.result.recorded_loss:.6g}, and made again it loses {made.result.replayed_loss:.6g}"]
    if exact:
        told.append(f"the {exact} steps before it, since the checkpoint, are the same to the bit")
    rank, sample = _differing(lab)
    if sample:
        told.append(sample)
    known = [one for one in made.result.differences if not one.startswith(("the loss is another", "the code's"))]
    told += [f"not as it was: {one}" for one in known]
    confidence = 0.93 if exact else (0.8 if not known else 0.45)
    if case.manifest.world_size > 1 and not case.recorded_samples(case.step):
        fed = "which samples its ranks had was not recorded: one of them may have been fed others"
        order = make_cause(DATA_ORDER, 0.45, [told[0], fed], step=case.step)
        return [make_cause(MACHINE, min(confidence, 0.5), told, step=case.step, rank=rank), order]
    return [make_cause(MACHINE, confidence, told, step=case.step, rank=rank)]


def first_broken(modules: Sequence[ModuleStatistics]) -> ModuleStatistics | None:
    """The first activation, in order of execution, that is not finite; or else the first gradient."""
    for kind in (ACTIVATION, GRADIENT):
        for one in modules:
            if one.kind == kind and one.num_nonfinite:
                return one
    return None


def _outlying(lab: Laboratory, test: TensorTest) -> list[Cause]:
    """Causes for moments and weights that training cannot have made."""
    step, causes = lab.case.step, []
    where = f"that is in the checkpoint after update {test.after}"
    if test.is_before_good:
        where += f"; the one after {test.before} is good"
    if test.moments:
        worst = test.moments[0]
        told = [
            f"{worst.num_elements} first moments of {worst.name} are up to {worst.ratio:.3g} times larger than their second moments allow",
            where,
        ]
        causes.append(make_cause(OPTIMIZER_STATE, 0.95, told, step=step, module=worst.name, bad_checkpoint=test.after))
    if test.weights:
        worst = test.weights[0]
        told = [
            f"{worst.num_elements} elements of {worst.name} moved up to {worst.ratio:.3g} times as far as updates can move them",
            f"one went from {worst.before:.3g} to {worst.worst:.3g} in {test.after - test.before} updates",
            where,
        ]
        confidence = 0.4 if test.moments else 0.93
        causes.append(make_cause(WEIGHTS, confidence, told, step=step, module=worst.name, bad_checkpoint=test.after))
    return causes


def _confirmed(lab: Laboratory, state: StateTest, test: TensorTest, cause: Cause) -> Cause:
    """The cause, after the experiment that would clear it: the tensor as it was before."""
    if cause.cause != WEIGHTS or cause.module is None:
        return cause
    loss, bad = lab.with_tensor_of(cause.module, test.before), state.here.median
    told = f"with it as it was after update {test.before}, other batches lose {loss:.4g} instead of {bad:.4g}"
    lab.note("which tensor?", f"{cause.module} as it was after update {test.before}", told, loss=loss)
    gone = not math.isfinite(bad) or (bad - loss) > 0.5 * (bad - lab.case.losses.median)
    return make_cause(
        WEIGHTS,
        0.97 if math.isfinite(loss) and gone else 0.8,
        [*cause.evidence, told],
        step=lab.case.step,
        module=cause.module,
        bad_checkpoint=cause.bad_checkpoint,
    )


def _gives_recorded_loss(lab: Laboratory, samples: Sequence[Sequence[tuple[str, int]]]) -> bool:
    """Does the step lose what was recorded, when each rank has these samples?"""
    corpus = lab.replay.seams.batches.corpus
    rows = [None if corpus is None else corpus.read(one) for one in samples]
    if corpus is None or None in rows:
        return False
    fed = [corpus.batch(one) for one in rows if one is not None]
    loss = lab.replay.loss(batches=fed).loss
    expected = math.nan if lab.case.record is None else lab.case.record.loss
    lab.note(
        "was every rank fed what it should have been?",
        f"step {lab.case.step} with the samples that were recorded instead of those in order",
        f"the loss is {loss:.6g}, {expected:.6g} was recorded",
        loss=loss,
    )
    return abs(loss - expected) <= 1e-4 * abs(expected)


def _misfed(lab: Laboratory) -> list[Cause]:
    """Does one of the usual mistakes in the order of the data give the recorded loss?"""
    case = lab.case
    if case.record is None:
        return []
    match = find_order(lab.replay, case.step, case.record.loss, case.record.weight, case.manifest.world_size)
    lab.note(
        "was every rank fed what it should have been?",
        "each rank with the batches of other ranks, of nearby steps, of other epochs and in the order of the corpus",
        "none gives the recorded loss"
        if match is None
        else f"rank {match.rank} with {match.what} gives {match.loss:.6g}, as recorded",
    )
    if match is None:
        return []
    told = [
        f"fed {match.what}, rank {match.rank} makes the step lose {match.loss:.6g}, as was recorded; in order it would be another"
    ]
    return [make_cause(DATA_ORDER, 0.97, told, step=case.step, rank=match.rank)]


def _differing(lab: Laboratory) -> tuple[int | None, str]:
    """The rank and the sample whose recorded loss is farthest from the replayed one."""
    recorded = lab.case.recorded_sample_losses(lab.case.step)
    if not recorded:
        return (0 if lab.case.manifest.world_size == 1 else None), ""
    found: list[tuple[float, int, str]] = []
    row = 0
    world = lab.case.manifest.world_size
    for number, output in enumerate(lab.replay.loss().outputs):
        losses = [] if output.sample_losses is None else output.sample_losses.tolist()
        for name, loss in zip(output.sample_ids, losses, strict=False):
            before = recorded.get((str(name[0]), int(name[1])))
            row += 1
            if before is not None:
                far = abs(before - loss) if math.isfinite(before) else math.inf
                found.append((far, number % world, f"sample {name[1]} lost {before:.4g} then and {loss:.4g} now"))
    if not found:
        return None, ""
    far, rank, told = max(found)
    return (rank, told) if far > 1e-3 else (None, "")


def _few(samples: Sequence[tuple[str, int]]) -> str:
    numbers = [str(sample) for _, sample in samples]
    return ", ".join(numbers[:4]) + (" …" if len(numbers) > 4 else "")
