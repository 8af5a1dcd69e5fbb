"""Decide what to do about a verdict, record it, and tell it. Every decision comes with an
explanation.

    samples are blamed            roll back to the last good state and continue without exactly
                                  these samples
    state or machine              roll back and continue unchanged: it will not happen again. If it
                                  does: as not known
    not known, or not sure        roll back and continue unchanged: no data is removed on a guess.
                                  If it comes back: roll back and continue without the batch
    the rate or another setting   end the run with the advice; the rate may be halved for some
                                  updates, if allowed

The limits on rollbacks, samples and updates (`Heal`) always hold; beyond them the run ends with the
verdict. Deciding is pure. The healing history of a run is in its events:

    {"event":"heal","phase":"called", …}      an anomaly did not pass by itself
    {"event":"heal","phase":"act", …}         what will be done about it, written before it is done
    {"event":"heal","phase":"done"}           it has been done
    {"event":"heal","phase":"would", …}       what would have been done, in a dry run

A process that was killed between two records continues with the next one. A pending call or act is
void once a later training went on without it. `sonde show`, the report and the dashboard show the
same account: what happened, what was done, and what it cost. Needs no torch.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

from sonde.data.skip_list import SkipList
from sonde.errors import RunError
from sonde.fields import Positive, PositiveNumber, check_fields
from sonde.forensics.verdict import NOTHING, SURE, UNKNOWN, Cause, Verdict, blamed_samples
from sonde.records.journal import append_event, read_events

Kind = Literal["skip samples", "go back", "skip batch", "lower rate", "stop"]
ENDED: Final = "healing ended"
"""The prefix of the stop reason of a run that could not be healed or must not be."""
_PLAIN: Final = 0.8
"""With at least this confidence in bad samples, an anomaly where the run was healed before counts
as a new one.
"""
_RATES: Final = ("lr", "schedule", "warmup")
EVENT: Final = "heal"
_TRAINS: Final = "determinism"
"""The event that every training writes when it begins (train/determinism.py)."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Heal:
    """The limits of healing, which count over all starts of a run, and what it is allowed to do."""

    max_times: Positive
    """Roll back at most this many times; then the run ends with the verdict."""
    patience: Positive = 8
    """How many updates the loss has to recover by itself. A loss that is not finite gets none."""
    max_skipped: Positive = 10_000
    """Skip at most this many samples in total."""
    max_repeated: Positive = 10_000
    """Repeat at most this many updates in total."""
    halve_rate: Positive | None = None
    """If the learning rate is the cause, halve it for this many updates. None ends the run with the
    advice instead.
    """
    dry_run: bool = False
    """Keep training, and only report what would have been done."""
    diagnosis_seconds: PositiveNumber = 3600.0
    """Abort a diagnosis that takes longer than this many seconds, and treat the cause as
    unknown.
    """
    diagnose: Callable[[Path, int], Verdict | None] | None = None
    """Finds the cause of a bad step of a run, writes the verdict into the run and returns it; None
    if it cannot.

    Default: `sonde diagnose` in a separate process.
    """

    def __post_init__(self) -> None:
        check_fields(self)

    def train(self, trainer: Any, start: Callable[[Any, bool], str], /) -> str:
        """Train, and heal the run when needed. `Trainer(…, heal=…)` calls this: it is below healing
        and knows it as a `Healer` only.
        """
        # Imports torch, which reading the settings does not need: so the types here are `Any`, and
        # those of `train_in_place` are what counts.
        from sonde.heal import train_in_place

        return train_in_place(trainer, self, start)


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """An anomaly that did not pass by itself."""

    kind: str
    """The kind of anomaly, as the detector names it."""
    step: int
    """The last completed update."""
    first_step: int
    """The update at which it began."""
    value: float
    """The loss at that update."""
    baseline: float
    """The expected loss; NaN if there was none."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    """What is done about an anomaly. It is complete: no other information is needed to carry it
    out.
    """

    kind: Kind
    """The kind of action."""
    call: Call
    """The anomaly that caused it."""
    why: str
    """The reason for the decision, in a sentence."""
    checkpoint: int = 0
    """The checkpoint to roll back to, in completed updates; 0 is the beginning."""
    skip: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """The samples to skip from there on, by dataset."""
    rate: float | None = None
    """An upper limit for the learning rate."""
    rate_until: int | None = None
    """The number of updates until which `rate` applies."""
    cause: str = ""
    """The verdict's most likely cause; empty without a verdict."""
    title: str = ""
    """The cause in a sentence."""
    confidence: float = 0.0
    """The verdict's confidence in the cause."""
    advice: tuple[str, ...] = ()
    """The advice of the verdict."""
    seconds: float = 0.0
    """How long the diagnosis took, in seconds."""

    @property
    def num_skipped(self) -> int:
        """The number of samples that are skipped."""
        return sum(map(len, self.skip.values()))

    @property
    def num_repeated(self) -> int:
        """The number of updates that are repeated."""
        return 0 if self.kind == "stop" else self.call.step - self.checkpoint


class Situation(NamedTuple):
    """What is known about the run besides the verdict."""

    checkpoint: int
    """The step of the last good checkpoint."""
    rate: float | None
    """The learning rate at that checkpoint; None if it is not recorded."""
    bad_rate: float | None
    """The learning rate of the last update."""
    batch: SkipList
    """The samples of the first bad update; empty if they are not recorded."""


def decide(
    verdict: Verdict | None, call: Call, scene: Situation, past: Sequence[Act], heal: Heal
) -> Act:
    """Decide what to do. `verdict` is None if the step could not be diagnosed; `past` are the
    earlier actions of this run.
    """
    act = Act(kind="stop", call=call, checkpoint=scene.checkpoint, why="")
    if verdict is not None:
        first = verdict.causes[0]
        advice = tuple(line.replace("{step}", str(verdict.step)) for line in first.advice)
        act = replace(
            act,
            cause=first.cause,
            title=first.title,
            confidence=first.confidence,
            advice=advice,
            seconds=verdict.seconds,
        )
    wanted = _wanted(act, verdict, scene, past, heal)
    spent = beyond_budget(heal, [*past, wanted]) if wanted.kind != "stop" else None
    return wanted if spent is None else replace(act, why=spent)


def beyond_budget(heal: Heal, acts: Sequence[Act]) -> str | None:
    """Return why these actions exceed the limits, or None if they do not."""
    done = [act for act in acts if act.kind != "stop"]
    if len(done) > heal.max_times:
        return f"the budget of {heal.max_times} times is spent"
    if sum(act.num_skipped for act in done) > heal.max_skipped:
        return f"the budget of {heal.max_skipped:,} samples is spent"
    if sum(act.num_repeated for act in done) > heal.max_repeated:
        return f"the budget of {heal.max_repeated:,} steps again is spent"
    return None


def back_before(verdict: Verdict | None, call: Call, past: Sequence[Act], heal: Heal) -> int:
    """Return the step to roll back before: where the anomaly began, or where the state was already
    bad according to the verdict.

    If an anomaly recurs where the run was healed before and is not clearly caused by samples, the
    restored state was bad: go back further.
    """
    first = sure_cause(verdict)
    steps = [call.first_step]
    if first is not None and first.bad_checkpoint is not None:
        steps.append(first.bad_checkpoint)
    if first is None or first.blames != "samples" or first.confidence < _PLAIN:
        steps += [
            act.checkpoint for act in past if act.kind != "stop" and _is_again(call, act, heal)
        ]
    return min(steps)


def _is_again(call: Call, act: Act, heal: Heal) -> bool:
    return act.checkpoint < call.first_step <= act.call.step + heal.patience


def sure_cause(verdict: Verdict | None) -> Cause | None:
    """Return the cause that the verdict names, if its confidence is enough to act on it."""
    first = None if verdict is None else verdict.causes[0]
    is_sure = (
        first is not None and first.cause not in (NOTHING, UNKNOWN) and first.confidence >= SURE
    )
    return first if is_sure else None


def _wanted(
    act: Act, verdict: Verdict | None, scene: Situation, past: Sequence[Act], heal: Heal
) -> Act:
    """Return the action that the verdict calls for, regardless of the limits."""
    first = sure_cause(verdict)
    came_back = any(
        earlier.kind == "go back" and _is_again(act.call, earlier, heal) for earlier in past
    )
    if verdict is None or first is None:
        if came_back:
            return _without_batch(act, scene, "it came back, and the cause is not known")
        return replace(act, kind="go back", why="the cause is not sure, so no sample is skipped")
    if first.blames == "setting":
        return _about_setting(act, first.setting or "a setting", scene, heal)
    blamed = blamed_samples(verdict)
    skip = _not_left_out_yet(blamed, past)
    if skip:
        return replace(act, kind="skip samples", why="the verdict blames these samples", skip=skip)
    if len(blamed) or came_back:
        return _without_batch(
            act, scene, "it came back, so what the verdict says does not explain it"
        )
    return replace(act, kind="go back", why="no sample is to blame, so a retry should succeed")


def _not_left_out_yet(blamed: SkipList, past: Sequence[Act]) -> dict[str, list[int]]:
    """Return the blamed samples that no earlier action left out, by dataset."""
    known: set[tuple[str, int]] = set()
    for earlier in past:
        for name, numbers in earlier.skip.items():
            known.update((name, number) for number in numbers)
    found = {}
    for name in blamed.entries:
        new = [number for number in blamed.samples(name).tolist() if (name, number) not in known]
        if new:
            found[name] = new
    return found


def _about_setting(act: Act, setting: str, scene: Situation, heal: Heal) -> Act:
    is_rate = act.cause == "learning_rate" or setting in _RATES
    if not is_rate or heal.halve_rate is None or scene.rate is None or scene.bad_rate is None:
        return replace(act, why=f"the verdict blames {setting}, which is for you to change")
    return replace(
        act,
        kind="lower rate",
        why="the verdict blames the learning rate, and lowering it was allowed",
        # after a jump, the rate of the good state is lower still
        rate=min(scene.rate, scene.bad_rate / 2),
        rate_until=scene.checkpoint + heal.halve_rate,
    )


def _without_batch(act: Act, scene: Situation, why: str) -> Act:
    skip = {name: scene.batch.samples(name).tolist() for name in scene.batch.entries}
    if not skip:
        return replace(act, why=f"{why}, and the batch was not recorded")
    return replace(act, kind="skip batch", why=why, skip=skip)


class HealHistory(NamedTuple):
    """The complete healing history of a run."""

    acts: tuple[Act, ...] = ()
    """The actions, in order."""
    would: tuple[Act, ...] = ()
    """The actions that dry runs would have taken."""
    call: Call | None = None
    """An anomaly that was reported but not decided yet."""
    act: Act | None = None
    """An action that was decided but not carried out yet."""


def read_history(run: str | os.PathLike[str]) -> HealHistory:
    """Read the healing history of a run; records that cannot be read are skipped."""
    acts: list[Act] = []
    would: list[Act] = []
    call: Call | None = None
    act: Act | None = None
    for record in read_events(Path(run), EVENT, _TRAINS):
        phase = record.get("phase") if record["event"] == EVENT else None
        if record["event"] == _TRAINS or phase == "done":
            call = act = None
        try:
            if phase == "called":
                call = msgspec.convert(record.get("call"), Call)
            elif phase == "act":
                call = None
                act = msgspec.convert(record.get("act"), Act)
                acts.append(act)
            elif phase == "would":
                would.append(msgspec.convert(record.get("act"), Act))
        except (msgspec.ValidationError, ValueError):
            continue
    return HealHistory(acts=tuple(acts), would=tuple(would), call=call, act=act)


def write_event(
    run: Path, phase: Literal["called", "act", "done", "would"], **details: Call | Act
) -> None:
    """Append a record to the history, synced to disk before this returns."""
    values: Mapping[str, Any] = {name: asdict(detail) for name, detail in details.items()}
    if not append_event(run, EVENT, phase=phase, **values):
        raise RunError(
            f"{run} cannot be mended: its events cannot be written",
            hint="free the disk, and start again",
        )


def describe(run: str | os.PathLike[str]) -> list[list[str]]:
    """Describe each time that the run was healed, or would have been, in a few sentences; empty if
    there were none.
    """
    history = read_history(run)
    chapters = [describe_action(act) for act in history.acts] + [
        describe_action(act, would=True) for act in history.would
    ]
    if history.acts:
        chapters.append([_in_all(history.acts)])
    return chapters


def describe_action(act: Act, *, would: bool = False) -> list[str]:
    """Describe an action in four sentences: what happened, what was found, what was done, and what
    it cost.
    """
    found = f"Verdict ({act.confidence:.0%}): {act.title}" if act.title else "No verdict."
    why = f"{act.why[:1].upper()}{act.why[1:]}."
    done = _done(act)
    if would:
        done = f"Would have {done[0].lower()}{done[1:]}"
    cost = f"Cost: {_counted(act.num_repeated, 'step')} repeated, {act.seconds:.0f} s of diagnosis."
    return [_happened(act.call), f"{found} {why}", done, cost]


def _happened(call: Call) -> str:
    if not math.isfinite(call.value):
        return f"Step {call.first_step}: the loss was not finite."
    expected = "" if math.isnan(call.baseline) else f" where {call.baseline:.4g} was expected"
    waited = call.step - call.first_step
    return (
        f"Step {call.first_step}: the loss was {call.value:.4g}{expected}, and did not recover"
        f" in {waited} steps."
    )


def _done(act: Act) -> str:
    place = f"the state after step {act.checkpoint}" if act.checkpoint else "the beginning"
    if act.kind == "stop":
        return " ".join(["Ended the run.", *act.advice])
    if act.kind == "lower rate":
        return (
            f"Rolled back to {place}, and limited the learning rate to {act.rate:.3g} until step"
            f" {act.rate_until}."
        )
    if act.kind == "go back":
        return f"Rolled back to {place}, and continued unchanged."
    which = ", ".join(_samples_text(name, numbers) for name, numbers in act.skip.items())
    whose = "the batch, " if act.kind == "skip batch" else ""
    skipped = _counted(act.num_skipped, "sample")
    return f"Rolled back to {place}, and continued without {whose}{skipped} ({which})."


def _samples_text(dataset: str, numbers: Sequence[int]) -> str:
    """Return a dataset's name and the numbers of its samples, the first eight of them."""
    listed = [str(number) for number in numbers[:8]]
    if len(numbers) > 8:
        listed.append("…")
    return " ".join([dataset, *listed])


def _in_all(acts: tuple[Act, ...]) -> str:
    back = [act for act in acts if act.kind != "stop"]
    samples = _counted(sum(act.num_skipped for act in back), "sample")
    steps = _counted(sum(act.num_repeated for act in back), "step")
    return f"In all: {_counted(len(back), 'rollback')}, {samples} skipped, {steps} repeated."


def _counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is 1."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
