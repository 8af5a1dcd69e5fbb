"""Replay one step of a run, recording every module's tensors, and report the result. This is what `sonde replay` shows.

Every tensor is compared with the same one in a calm update: the batch of the previous step, with the same weights. What
is large in both is due to the weights; what is large in one is due to the batch.

Every rank of the replay calls this. Each sees its own activations, and the losses and gradients of all.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

from torch import nn

from sonde.errors import SettingError
from sonde.forensics.case import same_bits
from sonde.forensics.replay import Replay, ReplayOptions
from sonde.forensics.seams import Seams
from sonde.forensics.tensor_watch import Watch
from sonde.forensics.verdict import ModuleStatistics, ReplayResult
from sonde.probe.debugger import PrecisionDebugger
from sonde.probe.settings import TENSOR
from sonde.probe.watching import watch as watch_modules
from sonde.records.layout import RunLayout
from sonde.records.steps import StepRecord, read_steps


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayReport:
    """A step as recorded and as replayed."""

    run_id: str
    """The id of the run."""
    step: int
    """The step; 1 is the first update."""
    replay: ReplayResult
    """The loss, and whether it was reproduced."""
    recorded: StepRecord | None
    """The record of the step, if there is one."""
    grad_norm: float | None
    """The replayed gradient norm."""
    weight: float
    """The number of target tokens in the replay."""
    skipped: str | None
    """Why the update was skipped; None if it was applied."""
    changes: tuple[str, ...]
    """The requested changes to the step. With any of them, the loss is not expected to match the recorded one."""
    modules: tuple[ModuleStatistics, ...]
    """Statistics of every tensor of the step on this rank: activations, gradients, parameters."""


def replay_step(
    run: Path, step: int, options: ReplayOptions | None = None, *, dump: bool = False, seams: Seams | None = None
) -> ReplayReport:
    """Replay step `step` of a run. With `dump`, write every input and output to the run's probe folder.

    `seams` provides states, batches and updates for a run that sonde's trainer did not make.
    """
    num_made = max(read_steps(run).by_number, default=None)
    if num_made is not None and step > num_made:
        raise SettingError(f"{run} has no step {step}", hint=f"it has made {num_made} updates")
    options = replace(options or ReplayOptions(), settings_of=step)
    replay = Replay(run, options=options, seams=seams)
    from_step = replay.go_to(step)
    if options.weights_from is not None:
        replay.load_weights(options.weights_from)
    calm = calm_norms(replay)
    watch = Watch()
    with _dumped(replay.model, dump_folder(run, step)) if dump else nullcontext():
        result = replay.update(
            batches=None if options.swap_batch is None else replay.batches(options.swap_batch),
            drop=options.drop,
            precision=options.precision,
            watch=watch,
        )
    recorded = replay.recorded(step)
    told = list(replay.differences())
    if recorded is not None and not options.changes and _norms_differ(recorded.grad_norm, result.grad_norm):
        told.append(f"the gradient norm was {recorded.grad_norm!r} and is now {result.grad_norm!r}")
    reproduced = None if recorded is None or options.changes else same_bits(recorded.loss, result.loss)
    if reproduced is False:
        told += replay.seams.batches.problems()
    return ReplayReport(
        run_id=replay.manifest.run_id,
        step=step,
        replay=ReplayResult(
            from_step=from_step,
            recorded_loss=None if recorded is None else recorded.loss,
            replayed_loss=result.loss,
            reproduced=reproduced,
            differences=tuple(told),
        ),
        recorded=recorded,
        grad_norm=result.grad_norm,
        weight=result.weight,
        skipped=result.skipped,
        changes=options.changes,
        modules=tuple(replace(one, calm_norm=calm.get((one.kind, one.module))) for one in watch.modules()),
    )


def calm_norms(replay: Replay) -> dict[tuple[str, str], float]:
    """Return norms by kind and module for the batch of the previous step, with the current weights. The position of the replay is unchanged.

    Empty at the first step, which has no previous one.
    """
    if not replay.num_updates:
        return {}
    before, watch = replay.snapshot(), Watch()
    replay.update(batches=replay.batches(replay.num_updates), watch=watch)
    replay.restore(before)
    return {(one.kind, one.module): one.norm for one in watch.modules()}


def dump_folder(run: Path, step: int) -> Path:
    """Return the folder for the tensors of a replayed step."""
    return RunLayout(run).probe / f"replay-{step}"


@contextmanager
def _dumped(model: nn.Module, folder: Path) -> Iterator[None]:
    debugger = PrecisionDebugger(dump_path=folder, task=TENSOR)
    try:
        with watch_modules(model):
            yield
            debugger.step()
    finally:
        debugger.close()


def _norms_differ(then: float | None, now: float | None) -> bool:
    return then is not now if then is None or now is None else not same_bits(then, now)
