"""`sonde train --heal N`: train, heal the run when an anomaly persists, and continue. Works with
one process or many ranks.

    while the run has healing to do: rank 0 does it, the others wait        mend: diagnose, decide,
        record, roll back
    train, from the newest good state, with the resulting settings
    an anomaly ends the training: record it, and begin again                HealCallback

Every start builds everything from the settings, so the result is bit-identical to a run that a
person healed with `sonde rollback` and `sonde train`. Each step of healing is done exactly once,
even if the process is killed: what is left to do is recorded in the run (decision.py), and
repeating a step changes nothing.
"""

import logging
import math
import os
import statistics
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from sonde import ranks
from sonde.callbacks.base import Callback
from sonde.callbacks.context import Context
from sonde.checkpoint.folder import CheckpointFolder
from sonde.data.skip_list import SkipList, read_skip_list
from sonde.errors import SettingError, SondeError
from sonde.forensics.rollback import apply_rollback, plan_way_back
from sonde.forensics.verdict import Verdict, read_verdict
from sonde.heal import decision
from sonde.heal.decision import (
    Act,
    Call,
    Heal,
    Situation,
    describe_action,
    read_history,
    write_event,
)
from sonde.ranks import found_by_rank_0, process_group
from sonde.records.journal import read_steps
from sonde.records.layout import RunLayout
from sonde.records.manifest import checkpoint_place, read_manifest
from sonde.spikes.detectors import NONFINITE, Event, EventDetector
from sonde.spikes.robust_rule import RobustRule
from sonde.spikes.spike_log import samples_of_step
from sonde.train.rates import Rates
from sonde.train.schedule import Schedule
from sonde.train.session import train_run
from sonde.train.settings import RecipeSettings
from sonde.train.trainer import Trainer

_TAIL: Final = 1000
_OF_RANKS: Final = (
    "RANK",
    "LOCAL_RANK",
    "WORLD_SIZE",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
)
_LOOK: Final = 6
_FAR: Final = 2.5
"""The loss has not recovered while the median of `_LOOK` updates is more than `_FAR` deviations
above the baseline.
"""

_logger: Final = logging.getLogger("sonde")


@dataclass(frozen=True, kw_only=True, slots=True)
class Continuation:
    """How training continues."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Recipe settings that change."""
    start_over: bool = False
    """Whether training starts from the beginning."""
    stop: Act | None = None
    """If set, training does not continue; this is why."""


def mend(
    run: Path,
    heal: Heal,
    *,
    is_ours: bool = False,
    can_skip: bool = True,
    checkpoints: str | None = None,
) -> Continuation:
    """Carry out pending healing of a run, if any, and return how training continues. No other
    process may have the run open.

    `is_ours`: this process has the run open. `can_skip`: the run's data can skip samples.
    `checkpoints`: where they are, if not where the run says.
    """
    if not RunLayout(run).manifest.exists():
        return Continuation()
    history = read_history(run)
    acts = history.acts
    pending = history.act
    if history.call is not None:
        pending = find_act(run, history.call, heal, past=acts, checkpoints=checkpoints)
        if pending.skip and not can_skip:
            why = f"{pending.why}, and this data cannot leave them out"
            pending = replace(pending, kind="stop", skip={}, why=why)
        write_event(run, "act", act=pending)
        acts = (*acts, pending)
    if pending is None:
        return _way_on(run, acts, checkpoints)
    if pending.kind == "stop":
        write_event(run, "done")
        return Continuation(stop=pending)
    _go_back(run, pending, is_ours=is_ours, checkpoints=checkpoints)
    write_event(run, "done")
    return _way_on(run, acts, checkpoints)


def _go_back(run: Path, act: Act, *, is_ours: bool, checkpoints: str | None) -> None:
    """Roll the run back and set its skip list, as the action says."""
    reason = f"healing at step {act.call.first_step}: {act.title or act.why}".replace("\n", " ")
    skip = SkipList({name: list(numbers) for name, numbers in act.skip.items()})
    plan = plan_way_back(run, act.checkpoint + 1, skip, reason, checkpoints=checkpoints)
    apply_rollback(plan, is_ours=is_ours)


def find_act(
    run: Path, call: Call, heal: Heal, *, past: tuple[Act, ...], checkpoints: str | None = None
) -> Act:
    """Decide what to do about an anomaly. Changes nothing, except that the diagnosis writes its
    verdict.
    """
    spent = decision.beyond_budget(
        heal, [*past, Act(kind="go back", call=call, checkpoint=call.step, why="")]
    )
    if spent is not None:
        return Act(kind="stop", call=call, why=spent)
    diagnose = heal.diagnose or partial(diagnose_beside, heal, checkpoints)
    verdict = diagnose(run, call.first_step)
    if decision.sure_cause(verdict) is None and call.step != call.first_step:
        later = diagnose(run, call.step)  # a gradual problem is clearer after it has lasted
        verdict = later if decision.sure_cause(later) is not None else verdict
    before = decision.back_before(verdict, call, past, heal)
    plan = plan_way_back(run, before, SkipList(), "", checkpoints=checkpoints)
    checkpoint = plan.checkpoint
    rates = {number: record.lr for number, record in read_steps(run).by_number.items()}
    batch = SkipList()
    with suppress(SettingError):  # it was not recorded
        batch = samples_of_step(run, call.first_step)[0]
    scene = Situation(
        checkpoint=checkpoint,
        rate=rates.get(max(checkpoint, 1)),
        bad_rate=rates.get(call.step),
        batch=batch,
    )
    return decision.decide(verdict, call, scene, past, heal)


def diagnose_beside(heal: Heal, checkpoints: str | None, run: Path, step: int) -> Verdict | None:
    """Diagnose in a separate process, so that its memory, threads and crashes do not affect this
    one.
    """
    command = [sys.executable, "-m", "sonde", "diagnose", str(run), "--step", str(step)]
    if checkpoints is not None:
        command += ["--checkpoints", checkpoints]
    if read_manifest(run).recipe:
        command.append("--trust-recipe")
    ours = {
        name: value
        for name, value in os.environ.items()
        if name not in _OF_RANKS and "TORCHELASTIC" not in name
    }
    try:
        done = subprocess.run(
            command,
            env=ours,
            input=b"",
            capture_output=True,
            timeout=heal.diagnosis_seconds,
            check=False,
        )
        if done.returncode == 0:
            return read_verdict(run, step)
        problem = done.stderr.decode(errors="replace")[-_TAIL:].strip()
    except (subprocess.TimeoutExpired, OSError, SondeError) as error:
        problem = str(error)
    _logger.warning("step %d could not be diagnosed: %s", step, problem)
    return None


def _way_on(run: Path, acts: tuple[Act, ...], checkpoints: str | None) -> Continuation:
    """Derive the settings from all past actions, no matter how often the run was restarted
    since.
    """
    layout = RunLayout(run)
    settings: dict[str, Any] = {}
    if any(act.skip for act in acts):
        settings["skip_list"] = str(layout.skip_list.absolute())
    lowered = [act for act in acts if act.kind == "lower rate"]
    if lowered:
        settings |= {"lr_limit": lowered[-1].rate, "lr_limit_until": lowered[-1].rate_until}
    went_back = [act for act in acts if act.kind != "stop"]
    at_start = (
        bool(went_back)
        and went_back[-1].checkpoint == 0
        and not CheckpointFolder(checkpoint_place(run, checkpoints)).steps()
    )
    return Continuation(settings=settings, start_over=at_start)


class HealCallback(Callback):
    """Judges the loss like the spike recorder, waits a few updates, and interrupts training if an
    anomaly does not pass.

    Anomalies that end in time are ignored. A loss that is not finite gets no time, because either
    its state or its batch is useless. While an anomaly is open, checkpoints are marked as untrusted
    so that they do not displace good ones. The loss is the mean over all ranks, so all ranks decide
    alike. Costs 5 µs per update; with several ranks also the small exchanges of any callback that
    may request something.
    """

    def __init__(self, heal: Heal) -> None:
        self.calls: list[Call] = []
        """The anomalies reported so far: at most one, unless it only watches."""
        self._heal = heal
        self._detector = EventDetector(RobustRule())
        self._recent: deque[float] = deque(maxlen=_LOOK)
        self._told = -1
        self._distrusts = False

    def judge(self, step: int, loss: float) -> Call | None:
        """Process the loss of an update. Returns a `Call` if the run needs healing."""
        before = self._detector.open
        self._detector.update(step, loss)
        event = self._detector.open
        if event is not None and not math.isfinite(loss):
            first_step = step
            if before is not None and before.last_step == step - 1:
                first_step = before.first_step  # it goes on
            event = replace(event, kind=NONFINITE, first_step=first_step, value=loss)
        else:
            self._recent.append(loss)
            if (
                event is None
                or step - event.first_step < self._heal.patience
                or not self._stays(event)
            ):
                return None
        return Call(
            kind=event.kind,
            step=step,
            first_step=event.first_step,
            value=event.value,
            baseline=event.baseline,
        )

    def _stays(self, event: Event) -> bool:
        """The detector judges single updates; the median of several reveals a much smaller
        deviation.
        """
        deviation = (event.value - event.baseline) / event.z if event.z else 0.0
        return statistics.median(self._recent) > event.baseline + _FAR * deviation

    def on_step_end(self, context: Context) -> None:
        """Judge the loss of the update. An update without target tokens has no loss and is
        skipped.
        """
        if not context.weight:
            return
        call = self.judge(context.step, float(context.tensors["loss"]))
        event = self._detector.open
        if event is not None:
            context.distrust(f"the loss is unusual since step {event.first_step}")
        elif self._distrusts:
            context.distrust(None)
        self._distrusts = event is not None
        if call is None or event is None or event.first_step == self._told:
            return
        self._told = event.first_step
        self.calls.append(call)
        if not self._heal.dry_run:
            context.ask_to_give_up(f"to heal: {call.kind} since step {call.first_step}")

    def state_dict(self) -> dict[str, Any]:
        """The state of the detector and the most recent losses."""
        return {
            "detector": self._detector.state_dict(),
            "recent": list(self._recent),
            "told": self._told,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`."""
        self._detector.load_state_dict(state["detector"])
        self._recent = deque(state["recent"], maxlen=_LOOK)
        self._told = state["told"]


def train_healing(
    settings: RecipeSettings,
    directory: str | os.PathLike[str],
    heal: Heal,
    *,
    callbacks: Sequence[Callback] = (),
    start_over: bool = False,
    checkpoints: str | None = None,
) -> str:
    """Train a run to its end, healing it on the way, and return why it stopped. Under torchrun,
    call this on every rank. `checkpoints` is a folder or URL for them, if they are not in the run.
    """

    def start(way: Continuation, watch: HealCallback) -> str:
        return train_run(
            replace(settings, **way.settings),
            directory,
            callbacks=[*callbacks, watch],
            start_over=start_over or way.start_over,
            checkpoints=checkpoints,
        )

    with process_group(timeout_seconds=settings.timeout_seconds):
        return keep_training(start, directory, heal, checkpoints=checkpoints)


def train_in_place(trainer: Trainer, heal: Heal, start: Callable[[Callback, bool], str]) -> str:
    """Heal within `Trainer(…, heal=heal)`: restore the trainer's own objects from a checkpoint
    instead of rebuilding them.
    """
    if heal.halve_rate is not None and not isinstance(trainer.schedule, Schedule):
        raise SettingError(
            f"halve_rate needs a Schedule, not a {type(trainer.schedule).__name__}",
            hint="only the rate of a Schedule can be lowered for some updates",
        )
    assert trainer.run is not None

    def go_on(way: Continuation, watch: HealCallback) -> str:
        _apply(trainer, **way.settings)
        return start(watch, way.start_over)

    can_skip = hasattr(trainer.data, "leave_out")
    return keep_training(
        go_on,
        trainer.run.directory,
        heal,
        is_ours=True,
        can_skip=can_skip,
        checkpoints=str(trainer.run.checkpoint_place),
    )


def _apply(
    trainer: Trainer,
    *,
    skip_list: str | None = None,
    lr_limit: float | None = None,
    lr_limit_until: int | None = None,
) -> None:
    """From the next start on, leave out the samples of a skip list and limit the learning rate of a
    `Schedule`.
    """
    if skip_list is not None:
        trainer.data.leave_out(read_skip_list(Path(skip_list)))
    if lr_limit is not None:
        assert isinstance(trainer.schedule, Schedule)
        limited = replace(trainer.schedule, lr_limit=lr_limit, lr_limit_until=lr_limit_until)
        trainer.rates = Rates(limited, trainer.optimizer)


def keep_training(
    start: Callable[[Continuation, HealCallback], str],
    directory: str | os.PathLike[str],
    heal: Heal,
    *,
    is_ours: bool = False,
    can_skip: bool = True,
    checkpoints: str | None = None,
) -> str:
    """Train with healing in your own loop. `start` builds everything, opens the run in `directory`,
    trains, and closes the run.

    `start` receives how to continue and a callback to train with, and returns why it stopped.
    `is_ours`: the run stays open throughout. `can_skip`: the data can skip samples; otherwise an
    anomaly that requires skipping ends the run. `checkpoints`: where they are, if not where the run
    says.
    """
    run = Path(directory)

    def mended() -> dict[str, Any]:
        way = mend(run, heal, is_ours=is_ours, can_skip=can_skip, checkpoints=checkpoints)
        return asdict(way)

    while True:
        way = msgspec.convert(found_by_rank_0(mended), Continuation)
        if way.stop is not None:
            if ranks.rank() == 0:
                _warn(describe_action(way.stop))
            return f"{decision.ENDED}: {way.stop.why}"
        watch = HealCallback(heal)
        reason = start(way, watch)
        if heal.dry_run:
            found_by_rank_0(partial(_tell_what_would_be, run, watch, heal, checkpoints))
        if heal.dry_run or not watch.calls:
            return reason
        if ranks.rank() == 0:
            write_event(run, "called", call=watch.calls[-1])


def _tell_what_would_be(
    run: Path, watch: HealCallback, heal: Heal, checkpoints: str | None
) -> None:
    """After a dry run, report what each anomaly would have led to."""
    for call in watch.calls:
        past = read_history(run).would
        act = find_act(run, call, heal, past=past, checkpoints=checkpoints)
        write_event(run, "would", act=act)
        _warn(describe_action(act, would=True))


def _warn(lines: list[str]) -> None:
    for line in lines:
        _logger.warning("%s", line)
