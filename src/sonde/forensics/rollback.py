"""Plan a rollback to before a spike: the checkpoint, the samples to skip, and the command that
resumes training. Needs no torch.

    plan = plan_rollback(Path("runs/a"), step=1734)
    apply_rollback(plan)

A plan changes nothing. Applying it writes the skip list and moves later checkpoints to
`checkpoints/set-aside-…`, from where they can be moved back: nothing is deleted. Skipping does not
shift other samples (data/batch_sampler.py), so the run continues with the batches it would have
had, without those samples. A run that is still running is left alone.

The plan follows the verdict: samples are skipped only if it blames some, a setting that a restart
changed is reset in the command, and if the verdict says that nothing is wrong there is nothing to
roll back.
"""

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from sonde.checkpoint.digest_log import read_digests
from sonde.checkpoint.folder import CheckpointFolder
from sonde.checkpoint.resume_command import newest_existing, resumed_command, script_checkpoints
from sonde.data.skip_list import SkipList, read_skip_list
from sonde.errors import DamagedFile, RunError, SettingError
from sonde.forensics.history import changed_settings, settings_at
from sonde.forensics.verdict import (
    NOTHING,
    SURE,
    UNKNOWN,
    Verdict,
    blamed_samples,
    blames_samples,
    read_verdict,
)
from sonde.records.journal import append_event, read_events
from sonde.records.layout import RunLayout
from sonde.records.lock import RunLock
from sonde.records.manifest import Manifest, absolute_place, checkpoint_place, read_manifest
from sonde.spikes.spike_log import read_spikes, samples_of_step, skip_samples
from sonde.train.settings import FIXED, is_built_in

EVENT: Final = "rollback"
"""The event that records a rollback."""
HOST_CHECKPOINT: Final = "host_checkpoint"
"""The event that records a checkpoint that a host framework wrote (Hugging Face, Lightning). It
belongs to the user: nothing here moves or deletes it.
"""
SCRIPT: Final = "script"
"""The `host` of a checkpoint that the script of a loop of one's own wrote."""
_WAYS: Final = {
    "huggingface": 'trainer.train(resume_from_checkpoint="{path}")',
    "lightning": 'trainer.fit(…, ckpt_path="{path}")',
    "accelerate": 'accelerator.load_state("{path}")',
}
_SAMPLES: Final = "take its samples from sonde.without(dataset, run) (docs/any-loop.md)"
_LOWER: Final = 0.2
"""A learning rate that is too high is multiplied by this."""


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCheckpoint:
    """A checkpoint that sonde did not write: a host did, or the script itself. `path` is empty for
    the beginning of the run.
    """

    host: str
    step: int
    path: str

    @property
    def way_on(self) -> str:
        """How the user's script resumes from this checkpoint: code, or a sentence."""
        if self.host == SCRIPT:
            return f"the script must resume from {self.path}"
        way = _WAYS[self.host]
        return (
            way.format(path=self.path)
            if self.path
            else f"{way.partition('(')[0]}(…) without a checkpoint"
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class RollbackPlan:
    """The checkpoint to go back to, and how to continue."""

    run: Path
    """The run directory."""
    place: str | None
    """Where the checkpoints are, if not where the run says: a folder or a URL."""
    step: int
    """The step that the rollback was requested for."""
    first_step: int
    """The first bad step of its event. The checkpoint is from before it."""
    checkpoint: int
    """The checkpoint to resume from, in completed updates; 0 is the beginning."""
    set_aside: tuple[int, ...]
    """Later checkpoints, which are moved aside."""
    skip_list: Path
    """The skip list file."""
    skip: SkipList
    """The samples to add to the skip list."""
    reason: str
    """Why these samples are skipped."""
    command: tuple[str, ...]
    """The command that resumes training."""
    notes: tuple[str, ...] = ()
    """Further remarks, one sentence each."""
    host: HostCheckpoint | None = None
    """The host's own checkpoint to resume from, if a host framework trained the run."""


def plan_rollback(
    run: Path,
    step: int,
    *,
    worst: int | None = None,
    data: Path | None = None,
    checkpoints: str | None = None,
) -> RollbackPlan:
    """Plan how to get past a step. `data` and `checkpoints` are where these are now, if they were
    moved.

    The skipped samples are those that the verdict names with enough confidence, or the `worst` few
    of the spike if that is asked for; otherwise none.
    """
    manifest = read_manifest(run)
    verdict = read_verdict(run, step) if RunLayout(run).verdict(step).exists() else None
    first_step = _first_step(run, step, verdict)
    skip, reason = _samples(run, step, verdict, worst)
    bad = None if verdict is None else verdict.causes[0].bad_checkpoint
    before = first_step if bad is None else min(first_step, bad)
    plan = plan_way_back(run, before, skip, reason, checkpoints=checkpoints)
    changed, set_back = _settings(
        run, manifest, plan.checkpoint, None if worst is not None else verdict
    )
    if data is not None:
        changed["data"] = str(data.absolute())
    return replace(
        plan,
        step=step,
        first_step=first_step,
        command=_command(plan, manifest, changed),
        notes=(*plan.notes, *set_back, *_command_notes(run, manifest, plan.host)),
    )


def plan_way_back(
    run: Path, before: int, skip: SkipList, reason: str, *, checkpoints: str | None = None
) -> RollbackPlan:
    """Plan a rollback to the newest good state before a step, skipping these samples from there on.
    `checkpoints` is where they are, if not where the run says. The plan has no command.
    """
    manifest = read_manifest(run)
    place = None if checkpoints is None else absolute_place(checkpoints)
    folder = _folder(run, manifest, place)
    host = newest_of_host(run, before)
    checkpoint = 0
    notes: list[str] = []
    if host is None:
        checkpoint, notes = _checkpoint_before(folder, before)
    if host is None and checkpoint == 0:
        host = newest_of_script(run, manifest, before)
    if host is not None:
        checkpoint = host.step
        notes = []
    skip_list = RunLayout(run).skip_list.absolute()
    skip, carried = _with_earlier_list(manifest, skip, skip_list)
    return RollbackPlan(
        run=run,
        place=place,
        step=before,
        first_step=before,
        checkpoint=checkpoint,
        set_aside=tuple(step for step in folder.steps() if step > checkpoint),
        skip_list=skip_list,
        skip=skip,
        reason=reason,
        command=(),
        notes=(*notes, *carried),
        host=host,
    )


def apply_rollback(plan: RollbackPlan, *, is_ours: bool = False) -> Path | str | None:
    """Apply a plan.

    Returns the new location of the later checkpoints, or None if there were none. `is_ours`: this
    process has the run open.
    """
    with ExitStack() as held:
        if not is_ours:
            held.callback(RunLock(RunLayout(plan.run).lock).release)
        manifest = read_manifest(plan.run)
        folder = _folder(plan.run, manifest, plan.place, to_change=not is_ours)
        _refuse_foreign(folder, plan)
        skip_samples(plan.run, plan.skip, step=plan.step, remark=plan.reason, path=plan.skip_list)
        aside = folder.set_aside(plan.set_aside) if plan.set_aside else None
        append_event(
            plan.run,
            EVENT,
            step=plan.step,
            checkpoint=plan.checkpoint,
            set_aside=list(plan.set_aside),
            folder=None if aside is None else str(aside),
            skip_list=str(plan.skip_list),
            command=list(plan.command),
        )
    return aside


def _first_step(run: Path, step: int, verdict: Verdict | None) -> int:
    """Return where the problem began: from the spike's record, the verdict's event, or the step
    itself.
    """
    try:
        return read_spikes(run).at(step).event.first_step
    except SettingError:
        if verdict is None:
            raise
    event: Mapping[str, Any] = verdict.event or {}
    first = event.get("first_step", step)
    return first if isinstance(first, int) else step


def _samples(
    run: Path, step: int, verdict: Verdict | None, worst: int | None
) -> tuple[SkipList, str]:
    if worst is not None:
        return samples_of_step(run, step, worst=worst)
    if verdict is None:
        return SkipList(), f"nothing says that samples of step {step} are to blame"
    first = verdict.causes[0]
    if first.cause in (NOTHING, UNKNOWN):
        raise RunError(
            f"there is nothing to roll back at step {step}",
            cause=f"the verdict says: {first.title}",
            hint="`--worst K` skips the K samples with the highest loss all the same",
        )
    if not blames_samples(first):
        return SkipList(), f"no sample is to blame: {first.title}"
    if first.confidence < SURE:
        return SkipList(), (
            f"the verdict blames samples with a confidence of {first.confidence:.0%} only, which is"
            " not enough to leave them out"
        )
    reason = f"step {step} of {verdict.run_id}: {first.title}"
    return blamed_samples(verdict), reason.replace("\n", " ")


def _settings(
    run: Path, manifest: Manifest, checkpoint: int, verdict: Verdict | None
) -> tuple[dict[str, Any], list[str]]:
    """Return the settings to change when training resumes, and remarks about them."""
    first = None if verdict is None else verdict.causes[0]
    now = manifest.settings
    then = settings_at(run, manifest, max(checkpoint, 1))
    if first is None or first.blames != "setting" or not is_built_in(manifest):
        return {}, []
    old = {
        name: value for name, (value, _) in changed_settings(then, now).items() if name not in FIXED
    }
    if old:
        values = ", ".join(f"{name} {value}" for name, value in old.items())
        return old, [f"set back to what it was before the change: {values}"]
    if first.setting == "lr" and isinstance(now.get("lr"), float):
        return {"lr": _LOWER * now["lr"]}, [
            f"the learning rate is lowered from {now['lr']:g}: the verdict finds it too high"
        ]
    return {}, [f"the verdict blames {first.setting or 'a setting'}: change it before you train on"]


def newest_of_host(run: Path, step: int) -> HostCheckpoint | None:
    """Return the host's newest existing checkpoint before `step`; None if no host trained the
    run.
    """
    found: HostCheckpoint | None = None
    for record in read_events(run, HOST_CHECKPOINT):
        host = record.get("host")
        at = record.get("step")
        path = record.get("path")
        if not isinstance(host, str) or host not in _WAYS:
            continue
        found = found or HostCheckpoint(host=host, step=0, path="")
        if (
            isinstance(at, int)
            and isinstance(path, str)
            and found.step <= at < step
            and Path(path).exists()
        ):
            found = HostCheckpoint(host=host, step=at, path=path)
    return found


def newest_of_script(run: Path, manifest: Manifest, step: int) -> HostCheckpoint | None:
    """Return the newest existing checkpoint before `step` that the script wrote itself, as the
    run's digests know it; None if there is none.
    """
    known = script_checkpoints(read_digests(run).states)
    newest = newest_existing(known, _directory(manifest), step)
    if newest is None:
        return None
    return HostCheckpoint(host=SCRIPT, step=newest.step, path=newest.path)


def _directory(manifest: Manifest) -> Path:
    """Return where the script was started."""
    return Path(str(manifest.host.get("directory") or "."))


def _checkpoint_before(folder: CheckpointFolder, first_step: int) -> tuple[int, list[str]]:
    """Return the newest checkpoint before a step that verifies and is trusted; 0 if there is
    none.
    """
    notes: list[str] = []
    earlier = [step for step in folder.steps() if step < first_step]
    for step in reversed(earlier):
        try:
            wrong = "; ".join(folder.problems(step)[:1]) or folder.document(step).get("distrusted")
        except DamagedFile as error:
            wrong = error.message
        if not wrong:
            return step, notes
        notes.append(f"the checkpoint after {step} steps is passed over: {wrong}")
    notes.append(
        "there is no good checkpoint from before it: the run starts from its first weights again"
    )
    return 0, notes


def _with_earlier_list(
    manifest: Manifest, skip: SkipList, path: Path
) -> tuple[SkipList, list[str]]:
    """Add the samples of another skip list that the run was trained with, because a run has only
    one list.
    """
    settings = manifest.settings if isinstance(manifest.settings, dict) else {}
    named = settings.get("skip_list")
    if not isinstance(named, str) or not named:
        return skip, []
    earlier = _directory(manifest) / named
    if earlier.absolute() == path:
        return skip, []
    return skip | read_skip_list(earlier), [f"what {earlier} leaves out is taken over"]


def _folder(
    run: Path, manifest: Manifest, place: str | None, *, to_change: bool = False
) -> CheckpointFolder:
    """Return the folder of states that the run resumes from: its checkpoints, or those kept by a
    recorder.
    """
    kept = CheckpointFolder(RunLayout(run).kept_states, run_id=manifest.run_id)
    if kept.steps():
        return kept
    found = checkpoint_place(run, place, to_change=to_change)
    return CheckpointFolder(found, run_id=manifest.run_id)


def _command(plan: RollbackPlan, manifest: Manifest, changed: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the command that resumes training, with the settings that are changed."""
    if not is_built_in(manifest):
        return _script_command(plan.run, manifest, plan.host)
    flags = [
        word for name, value in changed.items() if name != "data" for word in _flag(name, value)
    ]
    if len(plan.skip) or plan.skip_list.exists():
        flags += ["--skip-list", str(plan.skip_list)]
    place = plan.place or manifest.checkpoints
    if place is not None:
        flags += ["--checkpoints", place]
    where = [str(changed["data"])] if "data" in changed else []
    if manifest.world_size == 1:
        return ("sonde", "train", *where, "--run", str(plan.run), *flags)
    return (
        *(
            "torchrun",
            "--standalone",
            "--nproc-per-node",
            str(manifest.world_size),
            "-m",
            "sonde",
            "train",
        ),
        *(*where, "--run-dir", str(plan.run), *flags),
    )


def _script_command(run: Path, manifest: Manifest, host: HostCheckpoint | None) -> tuple[str, ...]:
    """Return the command that the script was started with; it resumes from its own checkpoint if
    the run knows how.
    """
    launcher = manifest.host.get("launcher")
    words = launcher if isinstance(launcher, list) and launcher else manifest.command
    if host is None or host.host != SCRIPT:
        return tuple(words)
    known = script_checkpoints(read_digests(run).states)
    directory = _directory(manifest)
    newest = newest_existing(known, directory, host.step + 1)
    if newest is None:
        return tuple(words)
    return tuple(resumed_command(words, newest, known, directory) or words)


def _flag(name: str, value: Any) -> list[str]:
    """Return a setting as a flag of `sonde train`."""
    flag = f"--{name.replace('_', '-')}"
    if isinstance(value, bool):
        return [flag if value else f"--no-{name.replace('_', '-')}"]
    if isinstance(value, (list, tuple)):
        words = []
        for part in value:
            words += [flag, str(part)]
        return words
    return [flag, "none" if value is None else str(value)]


def _command_notes(run: Path, manifest: Manifest, host: HostCheckpoint | None) -> list[str]:
    if host is not None and host.host == SCRIPT:
        return [f"{host.way_on}, and {_SAMPLES}"]
    if host is not None:
        return [f"resume with {host.way_on}; the callback skips what the skip list names"]
    if is_built_in(manifest):
        return []
    if RunLayout(run).kept_states.is_dir():
        return [f"the script must call recorder.restore(), and {_SAMPLES}"]
    return ["the run was trained by a script of its own: it must read the skip list (docs/data.md)"]


def _refuse_foreign(folder: CheckpointFolder, plan: RollbackPlan) -> None:
    """Refuse the rollback if later checkpoints belong to another run: they cannot be moved, and
    training would resume from them.
    """
    if plan.host is None and plan.checkpoint != max(
        (step for step in folder.steps() if step not in plan.set_aside), default=0
    ):
        raise RunError(
            f"the checkpoints of {plan.run} have changed since the plan was made", hint="plan again"
        )
    own = folder.entries()
    foreign = [path for path in plan.set_aside if path not in own and not folder.problems(path)]
    if foreign:
        raise RunError(
            f"{folder.directory} holds later checkpoints of another run:"
            f" {', '.join(map(str, foreign))}",
            hint="move them elsewhere; what is not this run's is left alone",
        )
