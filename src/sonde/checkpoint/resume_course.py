"""What of the course of a training is as it was: rate, schedule, scaler, data, generators, mode.
Pure, and needs no torch.

The truth is the update that followed the checkpoint before, if there was one: its rates, samples
and generators. Without it, what was saved is compared, and what cannot be known is said to be so.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from sonde.checkpoint.digest_log import (
    DigestLog,
    GeneratorDigest,
    Mode,
    NextUpdate,
    SamplesSeen,
    StateDigest,
)
from sonde.checkpoint.resume_report import (
    CHANGED,
    DATA,
    GENERATORS,
    LOST,
    MODE,
    RATE,
    SAME,
    SCALER,
    SCHEDULE,
    UNKNOWN,
    Finding,
    Status,
    is_close,
    listed,
)

_CONTENT: Final = "content"
"""The dataset of samples that are named by a digest of their content (recorder/batch_tree.py)."""
_RECENT: Final = 20
_HOST: Final = ("python", "numpy")


class Before(NamedTuple):
    """What a run recorded up to the checkpoint, and about the update after it."""

    state: StateDigest
    following: NextUpdate | None
    """The update after the checkpoint; None if the process ended there."""
    log: DigestLog
    rates: Mapping[int, float]
    """The recorded rate of every step, of the first group."""

    @property
    def beginning(self) -> StateDigest | None:
        """The state before the first step."""
        return next((state for state in self.log.states if state.step == 0), None)

    @property
    def first_update(self) -> NextUpdate | None:
        """The first step of the run."""
        return next((update for update in self.log.following if update.step == 0), None)


class Now(NamedTuple):
    """The training at its first step after the restart."""

    state: StateDigest
    update: NextUpdate


def schedule(before: Before, now: Now) -> Finding | None:
    """Compare where the schedulers are."""
    findings = []
    for name, old in before.state.objects.items():
        if "last_epoch" not in old:
            continue
        own = now.state.objects.get(name)
        if own is None:
            text = f"no {name} was given to the recorder this time"
            findings.append(Finding(what=SCHEDULE, status=UNKNOWN, text=text))
        else:
            findings.append(_scheduler(before, now, old, own))
    return _worst(findings)


def _scheduler(before: Before, now: Now, old: Mapping[str, Any], own: Mapping[str, Any]) -> Finding:
    was = old["last_epoch"]
    at = own.get("last_epoch")
    figures = {"now": at, "before": was}
    if not isinstance(at, (int, float)) or not isinstance(was, (int, float)):
        return Finding(what=SCHEDULE, status=UNKNOWN, text="cannot tell", figures=figures)
    off = at - was
    if off and abs(off) <= 1 and _follows(before, now):
        off = 0  # it was saved before the scheduler had moved
    if not off:
        changed = _other_settings(old, own)
        if changed:
            text = f"at {at}, as it was, with other settings: {listed(changed)}"
            return Finding(what=SCHEDULE, status=CHANGED, text=text, figures=figures)
        return Finding(what=SCHEDULE, status=SAME, text=f"at {at}, as it was", figures=figures)
    if at <= 1 < was:
        text = f"began again: at {at}, was at {was}"
        return Finding(what=SCHEDULE, status=LOST, text=text, figures=figures)
    direction = "behind" if off < 0 else "ahead"
    steps = f"{abs(off):,} step{'' if abs(off) == 1 else 's'}"
    text = f"{steps} {direction}: at {at}, was at {was}"
    return Finding(what=SCHEDULE, status=LOST, text=text, figures=figures)


def _other_settings(old: Mapping[str, Any], own: Mapping[str, Any]) -> list[str]:
    """Return the settings of a scheduler that changed, with their values."""
    names = [name for name in old if name in own and not name.startswith("_")]
    return [
        f"{name} {_brief(own[name])}, was {_brief(old[name])}"
        for name in names
        if own[name] != old[name] and name != "last_epoch"
    ]


def _follows(before: Before, now: Now) -> bool:
    """Return whether the rates are those of the update that followed the checkpoint."""
    return before.following is not None and _are_same(now.update.rates, before.following.rates)


def rate(before: Before, now: Now, scheduled: Finding | None) -> Finding | None:
    """Compare the learning rate of the first update with what it was to be. `scheduled` is what
    was found about the schedule.
    """
    own = now.update.rates
    wanted, tolerance = _expected_rates(before)
    if not own or not wanted:
        return None
    figures = {"now": list(own), "before": list(wanted)}
    if _are_same(own, wanted, tolerance):
        text = f"{own[0]:.4g}, as it was"
        return Finding(what=RATE, status=SAME, text=text, figures=figures)
    place = _first_other(own, wanted, tolerance)
    text = f"{own[place]:.4g}, was {wanted[place]:.4g}"
    if place:
        text += f" (group {place})"
    reason = _rate_reason(before, now, scheduled)
    if reason:
        return Finding(what=RATE, status=LOST, text=f"{text}: {reason}", figures=figures)
    return Finding(what=RATE, status=CHANGED, text=text, figures=figures)


def _first_other(own: Sequence[float], wanted: Sequence[float], tolerance: float) -> int:
    """Return the first group whose rate is another one."""
    for number, (value, other) in enumerate(zip(own, wanted, strict=False)):
        if not is_close(value, other, tolerance):
            return number
    return 0


def _rate_reason(before: Before, now: Now, scheduled: Finding | None) -> str:
    """Say what was lost that the rate is another one; empty if that may be meant so."""
    if scheduled is not None and scheduled.status == LOST:
        where = scheduled.text.partition(":")[0]
        return f"the schedule {where}" if where == "began again" else f"the schedule is {where}"
    if now.state.optimizer != before.state.optimizer:
        return ""  # another optimizer needs another rate
    is_scheduled = scheduled is not None and scheduled.status == SAME
    if is_scheduled and now.state.counts != before.state.counts:
        # The scheduler was restored; the rate is with the optimizer, which was not.
        return "it came with the optimizer's state"
    same_rate = _rate_of_another_step(before, now.update.rates[0])
    if same_rate is None or is_scheduled:
        return ""
    if same_rate == 1:
        return "the schedule began again"
    return f"that is the rate of step {same_rate:,}, not of {before.state.step + 1:,}"


def _expected_rates(before: Before) -> tuple[Sequence[float], float]:
    """Return the rates that the first update should have, and how exactly that is known."""
    if before.following is not None and before.following.rates:
        return before.following.rates, 1e-6
    step = before.state.step
    saved = before.state.rates
    last = before.rates.get(step)
    if last is None or not saved or not is_close(last, saved[0]):
        return saved, 1e-6  # a scheduler has set the next rate already
    # The rate is constant, or the loop sets it before each step: then it moves a little.
    return saved, usual_move(before.rates, step)


def usual_move(rates: Mapping[int, float], step: int) -> float:
    """Return by what fraction the rate may move in one step, from how it moved before."""
    recent = [rates[at] for at in range(step - _RECENT, step + 1) if at in rates]
    moves = [abs(later - earlier) for earlier, later in pairwise(recent)]
    if not moves or not recent[-1]:
        return 1e-6
    return max(1e-6, 1.5 * max(moves) / abs(recent[-1]))


def _rate_of_another_step(before: Before, own: float) -> int | None:
    """Return another step that had exactly this rate, if the rate differs from step to step."""
    step = before.state.step
    found = [at for at, value in before.rates.items() if at != step + 1 and is_close(value, own)]
    if not found or len(found) > max(len(before.rates) // 4, 1):
        return None
    return 1 if 1 in found else min(found, key=lambda at: abs(at - step))


def scaler(before: Before, now: Now) -> Finding | None:
    """Compare the scale of gradients."""
    for name, old in before.state.objects.items():
        if "scale" not in old or "growth_interval" not in old:
            continue
        own = now.state.objects.get(name)
        if not own:
            return Finding(what=SCALER, status=CHANGED, text="there is none now")
        keys = ("scale", "_growth_tracker")
        scale, good = (own.get(key) for key in keys)
        was_scale, was_good = (old.get(key) for key in keys)
        figures = {"now": [scale, good], "before": [was_scale, was_good]}
        if (scale, good) == (was_scale, was_good):
            text = f"scale {_brief(scale)}, as it was"
            return Finding(what=SCALER, status=SAME, text=text, figures=figures)
        text = f"scale {_brief(scale)}, was {_brief(was_scale)}"
        if scale == was_scale:
            text = f"scale {_brief(scale)}, with {good} good steps counted, were {was_good}"
        start = before.beginning
        first = None if start is None else start.objects.get(name)
        is_first = first is not None and first.get("scale") == scale
        if good == 0 and (is_first or first is None):
            return Finding(
                what=SCALER, status=LOST, text=f"{text}: it began again", figures=figures
            )
        return Finding(what=SCALER, status=CHANGED, text=text, figures=figures)
    return None


def data(before: Before, now: Now) -> Finding:
    """Compare the samples of the first update with those that were to come next."""
    own = now.update.samples
    if own is None:
        text = "cannot tell: the batches have no samples that could be named"
        return Finding(what=DATA, status=UNKNOWN, text=text)
    following = before.following
    wanted = following.samples if following is not None else None
    first = before.first_update
    is_first = first is not None and first.samples is not None and _is_same(own, first.samples)
    if wanted is None:
        return _data_without_truth(before, own, is_first=is_first)
    figures = {"now": _figures(own), "expected": _figures(wanted)}
    if _is_same(own, wanted):
        return Finding(what=DATA, status=SAME, text="goes on where it was", figures=figures)
    other = 1 if is_first else _step_of(before, own)
    if is_first:
        text = f"starts over: {_next_words(before, own, wanted, other)}"
        return Finding(what=DATA, status=LOST, text=text, figures=figures)
    if other is not None:
        text = f"at another place: {_next_words(before, own, wanted, other)}"
        return Finding(what=DATA, status=LOST, text=text, figures=figures)
    off = _offset(own, wanted)
    if off:
        what = "are left out" if off > 0 else "come again"
        text = f"at another place: {_next_words(before, own, wanted)}; {abs(off):,} samples {what}"
        return Finding(what=DATA, status=LOST, text=text, figures=figures)
    text = f"other samples than before: {_next_words(before, own, wanted)}"
    return Finding(what=DATA, status=CHANGED, text=text, figures=figures)


def data_again(before: Before, now: Now) -> Finding | None:
    """Return whether the samples of step 1 come again, if nothing else is known about them."""
    own = now.update.samples
    first = before.first_update
    if own is None or first is None or first.samples is None or not _is_same(own, first.samples):
        return None
    text = "the batch of step 1 comes again, unless an epoch ended here"
    return Finding(what=DATA, status=CHANGED, text=text, figures={"now": _figures(own)})


def _data_without_truth(before: Before, own: SamplesSeen, *, is_first: bool) -> Finding:
    """Compare the samples if the process before ended at the checkpoint."""
    step = before.state.step
    figures = {"now": _figures(own)}
    last = before.state.last_samples
    if any(_is_same(own, seen) for seen in last) and len(last) > 1:
        text = f"the batch of one of the last steps before step {step + 1:,} comes again"
        return Finding(what=DATA, status=LOST, text=text, figures=figures)
    wanted = _after(last)
    if wanted is not None and own.first[0][1] == wanted:
        return Finding(what=DATA, status=SAME, text="goes on where it was", figures=figures)
    if wanted is not None:
        text = f"sample {own.first[0][1]:,} comes next, {wanted:,} was expected"
        if own.first[0][1]:
            return Finding(
                what=DATA, status=LOST, text=f"at another place: {text}", figures=figures
            )
        text = f"starts over: {text}, unless an epoch ended here"
        return Finding(what=DATA, status=CHANGED, text=text, figures=figures)
    if is_first:
        text = "starts over: the batch of step 1 comes again, unless an epoch ended here"
        return Finding(what=DATA, status=CHANGED, text=text, figures=figures)
    text = "cannot tell: the run before ended here, so the next samples are not known"
    return Finding(what=DATA, status=UNKNOWN, text=text, figures=figures)


def _after(last: Sequence[SamplesSeen]) -> int | None:
    """Return the number of the next sample if the last updates took them one after another."""
    if len(last) < 2 or any(seen.first[0][0] == _CONTENT for seen in last):
        return None
    for seen, later in pairwise(last):
        if later.first[0][1] != seen.first[0][1] + seen.num or not _is_in_order(seen):
            return None
    return last[-1].first[0][1] + last[-1].num


def _is_in_order(seen: SamplesSeen) -> bool:
    start = seen.first[0][1]
    return all(number == start + place for place, (_, number) in enumerate(seen.first))


def _offset(own: SamplesSeen, wanted: SamplesSeen) -> int:
    """Return how far the data is ahead, if it is read in order; else 0."""
    is_numbered = own.first[0][0] == wanted.first[0][0] != _CONTENT
    if not is_numbered or not _is_in_order(own) or not _is_in_order(wanted) or own.num < 2:
        return 0
    return own.first[0][1] - wanted.first[0][1]


def _is_same(own: SamplesSeen, other: SamplesSeen) -> bool:
    """Return whether these are the same samples; of batches of different sizes, the first."""
    if own.num == other.num:
        return own.hash == other.hash
    return tuple(own.first[0]) == tuple(other.first[0])


def _step_of(before: Before, own: SamplesSeen) -> int | None:
    """Return another step that had exactly these samples, if it is known."""
    for seen in before.log.following:
        is_other = seen.step != before.state.step and seen.samples is not None
        if is_other and seen.samples is not None and _is_same(own, seen.samples):
            return seen.step + 1
    last = before.state.last_samples
    for place, samples in enumerate(reversed(last)):
        if _is_same(own, samples):
            return before.state.step - place
    return None


def _next_words(
    before: Before, own: SamplesSeen, wanted: SamplesSeen, step: int | None = None
) -> str:
    """Say which samples come next, and which were expected; `step` had the same ones before."""
    if _CONTENT not in (own.first[0][0], wanted.first[0][0]):
        return f"sample {own.first[0][1]:,} comes next, {wanted.first[0][1]:,} was expected"
    batch = "another batch" if step is None else f"the batch of step {step:,}"
    return f"{batch} comes next, that of step {before.state.step + 1:,} was expected"


def _figures(samples: SamplesSeen) -> dict[str, Any]:
    return {"first": [list(name) for name in samples.first], "num": samples.num}


def generators(before: Before, now: Now) -> Finding | None:
    """Compare the generators that the update draws from."""
    following = before.following
    wanted = following.generators if following is not None else before.state.generators
    own = now.update.generators
    draws = set(now.update.draws)
    others = []
    moved = []
    for name in wanted.keys() & own.keys():
        if name in _HOST and name not in draws:
            continue  # nothing depends on it that could be seen
        if not _is_same_block(own[name], wanted[name], is_exact=following is not None):
            others.append(name)
        elif following is not None and own[name].position != wanted[name].position:
            moved.append(name)
    if not wanted or not own:
        return Finding(what=GENERATORS, status=UNKNOWN, text="cannot tell: none were recorded")
    figures = {"others": sorted(others), "moved": sorted(moved), "draws": sorted(draws)}
    status, text = _of_generators(others, moved, draws)
    return Finding(what=GENERATORS, status=status, text=text, figures=figures)


def _of_generators(
    others: Sequence[str], moved: Sequence[str], draws: Collection[str]
) -> tuple[Status, str]:
    """Return the status of the generators, and what to say: which are others, and which have only
    moved on.
    """
    if any(name in draws for name in others):
        return LOST, "others: dropout and shuffling differ from an uninterrupted run"
    if others:
        names = ", ".join(sorted(others))
        return CHANGED, f"others ({names}); this step draws no numbers from them"
    if moved and draws:
        return CHANGED, "restored, but a few numbers were drawn since: dropout differs"
    if moved:
        return SAME, "as they were, but for a few numbers drawn since; this step draws none"
    return SAME, "as they were"


def _is_same_block(own: GeneratorDigest, wanted: GeneratorDigest, *, is_exact: bool) -> bool:
    """Return whether a generator is where it was, or a few numbers further."""
    if own.block == wanted.block:
        return is_exact or own.position >= wanted.position
    return bool(wanted.next_block) and own.block == wanted.next_block


def mode(before: Before, now: Now) -> Finding | None:
    """Compare whether the model and its modules train or evaluate."""
    was = _mode_before(before)
    own = now.update.mode
    if was is None or own is None:
        return None
    if own.is_training != was.is_training:
        text = f"the model is in {_mode_name(own)} mode, was in {_mode_name(was)} mode"
        if was.is_training:
            return Finding(what=MODE, status=LOST, text=text)
        return Finding(what=MODE, status=CHANGED, text=text)
    added = [name for name in own.others if name not in was.others]
    gone = [name for name in was.others if name not in own.others]
    other = "eval" if own.is_training else "train"
    if added and own.is_training and _hold_all_trained(added, now.state):
        text = f"everything that is trained is in eval mode now: {listed(added)}"
        return Finding(what=MODE, status=LOST, text=text)
    if added:
        return Finding(what=MODE, status=CHANGED, text=f"in {other} mode now: {listed(added)}")
    if gone:
        text = f"no longer in {other} mode: {listed(gone)}"
        return Finding(what=MODE, status=CHANGED, text=text)
    return Finding(what=MODE, status=SAME, text=f"{_mode_name(own)}, as it was")


def _hold_all_trained(modules: Sequence[str], state: StateDigest) -> bool:
    """Return whether all tensors that are trained belong to these modules."""
    prefixes = tuple(f"{module}." for module in modules)
    trained = [name for name, tensor in state.tensors.items() if tensor.is_trainable]
    return bool(trained) and all(name.startswith(prefixes) for name in trained)


def _mode_before(before: Before) -> Mode | None:
    """Return the mode of the last update that is known, up to the one after the checkpoint."""
    found = None
    for update in before.log.following:
        if update.mode is not None and update.step <= before.state.step:
            found = update.mode
    return found


def _mode_name(mode: Mode) -> str:
    return "train" if mode.is_training else "eval"


def _are_same(own: Sequence[float], other: Sequence[float], tolerance: float = 1e-6) -> bool:
    if len(own) != len(other):
        return bool(own) and bool(other) and is_close(own[0], other[0], tolerance)
    return all(is_close(a, b, tolerance) for a, b in zip(own, other, strict=True))


def _worst(findings: Sequence[Finding]) -> Finding | None:
    order = (LOST, CHANGED, UNKNOWN, SAME)
    for status in order:
        for finding in findings:
            if finding.status == status:
                return finding
    return None


def _brief(value: Any) -> str:
    return f"{value:,.6g}" if isinstance(value, (int, float)) else str(value)[:60]
