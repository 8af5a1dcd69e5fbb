"""From a verdict to what is done about it: pure, and told in words.

    samples are blamed            back to the last good state, and on without exactly them
    state or machine              back, and on as it was: it will not happen again. If it does: as not known
    not known, or not sure        back, and on without the batch
    the rate or another setting   the run ends with the advice; a rate may be halved for some updates, where that is allowed

Whatever the verdict says, the budget of times, samples and updates holds (`Heal`); beyond it the run ends with the verdict. No torch.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, Protocol, final

from sonde.data.skip_list import SkipList
from sonde.errors import SettingError
from sonde.forensics.rollback import SURE, blamed_samples
from sonde.forensics.verdict import NOTHING, UNKNOWN, Cause, Verdict

Kind = Literal["skip samples", "go back", "skip batch", "lower rate", "stop"]
ENDED: Final = "healing ended"
"""How the reason of a run begins that could not be mended, or must not be."""
_PLAIN: Final = 0.8
"""So sure of samples, an event where the run was mended before is one of its own."""
_RATES: Final = ("lr", "schedule", "warmup")


class Diagnose(Protocol):
    """Finds out what was wrong with a step of a run."""

    def __call__(self, run: Path, step: int, /) -> Verdict | None:
        """The verdict, also written into the run; None when that cannot be."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Heal:
    """The budget, which counts over all starts of a run, and what is allowed."""

    max_times: int
    """Go back at most so often; then the run ends with the verdict."""
    patience: int = 8
    """Updates that a loss has to come back by itself; one that is not finite has none."""
    max_skipped: int = 10_000
    """Leave out at most this many samples in all."""
    max_repeated: int = 10_000
    """Make at most this many updates again in all."""
    halve_rate: int | None = None
    """When the learning rate is to blame, halve it for this many updates; None ends the run with the advice."""
    dry_run: bool = False
    """Train on, and only say what would have been done."""
    diagnosis_seconds: float = 3600.0
    """A diagnosis that takes longer is given up, and the cause is not known."""
    diagnose: Diagnose | None = None
    """What finds the cause; unless given, `sonde diagnose` in a process beside."""

    def __post_init__(self) -> None:
        for name in ("max_times", "patience", "max_skipped", "max_repeated", "halve_rate"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SettingError(f"{name} must be 1 or more, not {value}")
        if not self.diagnosis_seconds > 0:
            raise SettingError(f"diagnosis_seconds must be above 0, not {self.diagnosis_seconds}")

    def train(self, trainer: Any, start: Callable[[Any, bool], str]) -> str:
        """What `Trainer(…, heal=…)` calls: train, mend, train on."""
        from sonde.heal import train_in_place  # loads torch, which reading the settings needs not

        return train_in_place(trainer, self, start)


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """Something happened that did not pass by itself."""

    kind: str
    """What the detector calls it."""
    step: int
    """The last update that was made."""
    first_step: int
    """Where it began."""
    value: float
    """The loss there."""
    baseline: float
    """What was expected; NaN when nothing was."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Act:
    """What is done about a call, complete: whoever reads it can do it."""

    kind: Kind
    """Which of the five."""
    call: Call
    """Why."""
    why: str
    """What decided, in a sentence."""
    checkpoint: int = 0
    """Go back to the state after this many updates; 0 is the beginning."""
    skip: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Samples to leave out from there on, by dataset."""
    rate: float | None = None
    """The learning rate is no higher than this,"""
    rate_until: int | None = None
    """until this many updates have been made."""
    cause: str = ""
    """The verdict's first cause; empty when there is no verdict."""
    title: str = ""
    """The cause in a sentence."""
    confidence: float = 0.0
    """How sure the verdict is of it."""
    advice: tuple[str, ...] = ()
    """What the verdict advises."""
    seconds: float = 0.0
    """What finding out took."""

    @property
    def num_skipped(self) -> int:
        """How many samples it leaves out."""
        return sum(map(len, self.skip.values()))

    @property
    def num_repeated(self) -> int:
        """How many updates are made again because of it."""
        return 0 if self.kind == "stop" else self.call.step - self.checkpoint


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Scene:
    """What is known beside the verdict."""

    checkpoint: int
    """The last good state."""
    rate: float | None
    """The learning rate that led there; None when it is not recorded."""
    bad_rate: float | None
    """The one of the last update."""
    batch: SkipList
    """The samples of the first bad update; empty when they are not recorded."""


def decide(verdict: Verdict | None, call: Call, scene: Scene, past: Sequence[Act], heal: Heal) -> Act:
    """What to do; `verdict` is None when the step could not be diagnosed, `past` what was done before in this run."""
    wanted = _wanted(verdict, call, scene, past, heal)
    if verdict is not None:
        first = verdict.causes[0]
        advice = tuple(one.replace("{step}", str(verdict.step)) for one in first.advice)
        wanted = replace(
            wanted,
            cause=first.cause,
            title=first.title,
            confidence=first.confidence,
            advice=advice,
            seconds=verdict.seconds,
        )
    spent = beyond_budget(heal, [*past, wanted]) if wanted.kind != "stop" else None
    return wanted if spent is None else replace(wanted, kind="stop", why=spent, skip={}, rate=None, rate_until=None)


def beyond_budget(heal: Heal, acts: Sequence[Act]) -> str | None:
    """Why these acts are more than is allowed; None when they are not."""
    done = [one for one in acts if one.kind != "stop"]
    spent = {
        f"{heal.max_times} times": len(done) > heal.max_times,
        f"{heal.max_skipped:,} samples": sum(one.num_skipped for one in done) > heal.max_skipped,
        f"{heal.max_repeated:,} updates again": sum(one.num_repeated for one in done) > heal.max_repeated,
    }
    return next((f"the budget of {what} is spent" for what, is_spent in spent.items() if is_spent), None)


def back_before(verdict: Verdict | None, call: Call, past: Sequence[Act], heal: Heal) -> int:
    """The step to go back before: where it began, or where the verdict says that the state was bad already.

    What comes again where the run was mended before, and is not plainly in the samples, was in the state that it went back to: go further.
    """
    first = verdict.causes[0] if verdict is not None and is_sure(verdict) else None
    steps = [call.first_step]
    if first is not None and first.bad_checkpoint is not None:
        steps.append(first.bad_checkpoint)
    if first is None or first.blames != "samples" or first.confidence < _PLAIN:
        steps += [one.checkpoint for one in past if one.kind != "stop" and _is_again(call, one, heal)]
    return min(steps)


def _is_again(call: Call, act: Act, heal: Heal) -> bool:
    return act.checkpoint < call.first_step <= act.call.step + heal.patience


def is_sure(verdict: Verdict | None) -> bool:
    """Does the verdict name a cause that one can act on?"""
    return (
        verdict is not None
        and verdict.causes[0].cause not in (NOTHING, UNKNOWN)
        and verdict.causes[0].confidence >= SURE
    )


def _wanted(verdict: Verdict | None, call: Call, scene: Scene, past: Sequence[Act], heal: Heal) -> Act:
    """What the verdict asks for, whatever it costs."""
    if verdict is None or not is_sure(verdict):
        return _without_batch(call, scene, "the cause is not known")
    first = verdict.causes[0]
    if first.blames == "setting":
        return _about_setting(first, call, scene, heal)
    blamed = blamed_samples(verdict)
    new = {name: _new(blamed, name, past) for name in blamed.datasets}
    if any(new.values()):
        skip = {name: numbers for name, numbers in new.items() if numbers}
        return _back("skip samples", call, scene, "the verdict blames these samples", skip)
    if len(blamed) or any(one.kind == "go back" and _is_again(call, one, heal) for one in past):
        return _without_batch(call, scene, "it came back, so what the verdict says does not explain it")
    return _back("go back", call, scene, "no sample is to blame, so it will not happen again")


def _about_setting(first: Cause, call: Call, scene: Scene, heal: Heal) -> Act:
    setting = first.setting or "a setting"
    is_rate = first.cause == "learning_rate" or setting in _RATES
    if not is_rate or heal.halve_rate is None or scene.rate is None or scene.bad_rate is None:
        return Act(
            kind="stop",
            call=call,
            checkpoint=scene.checkpoint,
            why=f"the verdict blames {setting}, which is for you to change",
        )
    return replace(
        _back("lower rate", call, scene, "the verdict blames the learning rate, and lowering it was allowed"),
        rate=min(scene.rate, scene.bad_rate / 2),  # after a jump the good one is lower still
        rate_until=scene.checkpoint + heal.halve_rate,
    )


def _without_batch(call: Call, scene: Scene, why: str) -> Act:
    skip = {name: scene.batch.samples(name).tolist() for name in scene.batch.datasets}
    if not skip:
        return Act(kind="stop", call=call, checkpoint=scene.checkpoint, why=f"{why}, and the batch was not recorded")
    return _back("skip batch", call, scene, why, skip)


def _back(kind: Kind, call: Call, scene: Scene, why: str, skip: Mapping[str, list[int]] | None = None) -> Act:
    return Act(kind=kind, call=call, checkpoint=scene.checkpoint, why=why, skip=skip or {})


def _new(blamed: SkipList, name: str, past: Sequence[Act]) -> list[int]:
    known = {number for one in past for number in one.skip.get(name, ())}
    return [number for number in blamed.samples(name).tolist() if number not in known]
