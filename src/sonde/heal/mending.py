"""Heal a run, on one rank: diagnose, decide, record the decision, and roll back. No other process may have the run open.

Each step is done exactly once, even if the process is killed: what is left to do is recorded in the run (history.py),
and repeating a step changes nothing.
"""

import logging
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from sonde.checkpoint.folder import CheckpointFolder
from sonde.data.skip_list import SkipList
from sonde.errors import SettingError, SondeError
from sonde.forensics.rollback import apply_rollback, plan_way_back
from sonde.forensics.verdict import Verdict, read_verdict
from sonde.heal.decision import Act, Call, Heal, Scene, back_before, beyond_budget, decide, is_sure
from sonde.heal.history import read_history, write_event
from sonde.records.layout import RunLayout
from sonde.records.manifest import checkpoint_place, read_manifest
from sonde.records.steps import read_steps
from sonde.spikes.skipping import samples_of_step

_TAIL: Final = 1000
_logger: Final = logging.getLogger("sonde")
_OF_RANKS: Final = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True, kw_only=True, slots=True)
class WayOn:
    """How training continues."""

    settings: Mapping[str, Any] = field(default_factory=dict)
    """Recipe settings that change."""
    start_over: bool = False
    """Whether training starts from the beginning."""
    stop: Act | None = None
    """If set, training does not continue; this is why."""


def mend(run: Path, heal: Heal, *, is_ours: bool = False, can_skip: bool = True) -> WayOn:
    """Carry out pending healing of a run, if any, and return how training continues.

    `is_ours`: this process has the run open. `can_skip`: the run's data can skip samples.
    """
    if not RunLayout(run).manifest.exists():
        return WayOn()
    history = read_history(run)
    act = history.act
    if history.call is not None:
        act = find_act(run, history.call, heal, past=history.acts)
        if act.skip and not can_skip:
            act = replace(act, kind="stop", skip={}, why=f"{act.why}, and this data cannot leave them out")
        write_event(run, "act", act=act)
        history = read_history(run)
    if act is not None:
        if act.kind != "stop":
            _go_back(run, act, is_ours=is_ours)
        write_event(run, "done")
    if act is not None and act.kind == "stop":
        return WayOn(stop=act)
    return _way_on(run, history.acts)


def find_act(run: Path, call: Call, heal: Heal, *, past: tuple[Act, ...]) -> Act:
    """Decide what to do about an anomaly. Changes nothing, except that the diagnosis writes its verdict."""
    spent = beyond_budget(heal, [*past, Act(kind="go back", call=call, checkpoint=call.step, why="")])
    if spent is not None:
        return Act(kind="stop", call=call, why=spent)
    diagnose = heal.diagnose or partial(diagnose_beside, heal)
    verdict = diagnose(run, call.first_step)
    if not is_sure(verdict) and call.step != call.first_step:
        later = diagnose(run, call.step)  # a gradual problem is clearer after it has lasted
        verdict = later if is_sure(later) else verdict
    checkpoint = plan_way_back(run, back_before(verdict, call, past, heal), SkipList(), "").checkpoint
    rates = {number: one.lr for number, one in read_steps(run).by_number.items()}
    scene = Scene(
        checkpoint=checkpoint,
        rate=rates.get(max(checkpoint, 1)),
        bad_rate=rates.get(call.step),
        batch=_batch(run, call.first_step),
    )
    return decide(verdict, call, scene, past, heal)


def diagnose_beside(heal: Heal, run: Path, step: int) -> Verdict | None:
    """Diagnose in a separate process, so that its memory, threads and crashes do not affect this one."""
    command = [sys.executable, "-m", "sonde", "diagnose", str(run), "--step", str(step)]
    command += ["--trust-recipe"] if read_manifest(run).recipe else []
    ours = {name: value for name, value in os.environ.items() if name not in _OF_RANKS and "TORCHELASTIC" not in name}
    try:
        done = subprocess.run(
            command, env=ours, input=b"", capture_output=True, timeout=heal.diagnosis_seconds, check=False
        )
        if done.returncode == 0:
            return read_verdict(run, step)
        problem = done.stderr.decode(errors="replace")[-_TAIL:].strip()
    except (subprocess.TimeoutExpired, OSError, SondeError) as error:
        problem = str(error)
    _logger.warning("step %d could not be diagnosed: %s", step, problem)
    return None


def _go_back(run: Path, act: Act, *, is_ours: bool) -> None:
    reason = f"healing at step {act.call.first_step}: {act.title or act.why}".replace("\n", " ")
    skip = SkipList({name: list(numbers) for name, numbers in act.skip.items()})
    apply_rollback(plan_way_back(run, act.checkpoint + 1, skip, reason), is_ours=is_ours)


def _way_on(run: Path, acts: tuple[Act, ...]) -> WayOn:
    """Derive the settings from all past actions, no matter how often the run was restarted since."""
    layout = RunLayout(run)
    settings: dict[str, Any] = {}
    if any(one.skip for one in acts):
        settings["skip_list"] = str(layout.skip_list.absolute())
    lowered = [one for one in acts if one.kind == "lower rate"]
    if lowered:
        settings |= {"lr_limit": lowered[-1].rate, "lr_limit_until": lowered[-1].rate_until}
    went_back = [one for one in acts if one.kind != "stop"]
    at_start = bool(went_back) and went_back[-1].checkpoint == 0 and not CheckpointFolder(checkpoint_place(run)).steps()
    return WayOn(settings=settings, start_over=at_start)


def _batch(run: Path, step: int) -> SkipList:
    try:
        return samples_of_step(run, step)[0]
    except SettingError:
        return SkipList()
