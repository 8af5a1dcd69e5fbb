"""Compare the first step after a restart with what the run recorded before it. Pure, and needs no
torch.

    claim = find_claim(log, now.state, num_updates=recorder.num_updates)
    report = compare(claim, log, rates, now)

A resume claims something: a step that somebody said (a host, or `recorder.num_updates`), an
optimizer that has counted steps, or weights that are those of a digest. Without a claim the
training starts from the beginning. If the run has no digest of the claimed step, the little that
can be told without one is told: empty moments, a step count or a rate that do not fit.
"""

from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from sonde.checkpoint import resume_course, resume_state
from sonde.checkpoint.digest_log import DigestLog, StateDigest
from sonde.checkpoint.resume_course import Before, Now
from sonde.checkpoint.resume_report import (
    CHANGED,
    LOST,
    MOMENTS,
    PARTS,
    RATE,
    SAME,
    SCHEDULE,
    STEP_COUNT,
    UNKNOWN,
    WEIGHTS,
    Finding,
    ResumeReport,
    is_close,
    listed,
    share,
)

BY_NUMBER: Final = "number"
BY_COUNT: Final = "step count"
BY_WEIGHTS: Final = "weights"
_NO_DIGEST: Final = "cannot tell: the run has no digest of this step"


class Claim(NamedTuple):
    """What a training claims to go on from."""

    kind: str
    """What makes the claim: `BY_NUMBER`, `BY_COUNT` or `BY_WEIGHTS`."""
    step: int
    """The number of updates that were made."""
    before: StateDigest | None
    """The digest of that step; None if the run has none."""


def find_claim(log: DigestLog, now: StateDigest, *, num_updates: int) -> Claim | None:
    """Return what a training claims to go on from; None if it starts from the beginning."""
    if num_updates > 0:
        return Claim(BY_NUMBER, num_updates, _digest_of(log, now, num_updates))
    later = [state for state in log.states if state.step > 0]
    known = [state for state in later if resume_state.has_weights_of(state, now)]
    beginning = [state for state in log.states if state.step == 0]
    is_fresh = any(resume_state.has_weights_of(state, now) for state in beginning)
    if known and not is_fresh:
        return Claim(BY_WEIGHTS, known[-1].step, known[-1])
    count = int(now.counts[1]) if now.counts is not None else 0
    if count > 0 and log.states:
        return Claim(BY_COUNT, count, _digest_of(log, now, count))
    return None


def _digest_of(log: DigestLog, now: StateDigest, step: int) -> StateDigest | None:
    """Return the digest of a step: of several, the newest that has these weights."""
    found = [state for state in log.states if state.step == step]
    same = [state for state in found if resume_state.has_weights_of(state, now)]
    if same:
        return same[-1]
    return found[-1] if found else None


def compare(claim: Claim, log: DigestLog, rates: Mapping[int, float], now: Now) -> ResumeReport:
    """Compare a training with what it claims to go on from. `rates` are the recorded ones by
    step.
    """
    if claim.before is None:
        findings = _without_digest(claim, log, rates, now)
    else:
        before = Before(claim.before, log.after(claim.before), log, rates)
        findings = _with_digest(before, now)
    return ResumeReport(
        step=now.update.step,
        from_step=claim.step,
        claim=claim.kind,
        path=claim.before.path if claim.before is not None else "",
        findings=sorted(findings, key=lambda finding: PARTS.index(finding.what)),
    )


def _with_digest(before: Before, now: Now) -> list[Finding]:
    scheduled = resume_course.schedule(before, now)
    others = before.log.states
    found = [
        resume_state.weights(before.state, now.state, others),
        resume_state.moments(before.state, now.state, others),
        resume_state.step_count(before.state, now.state),
        resume_course.rate(before, now, scheduled),
        scheduled,
        resume_course.scaler(before, now),
        resume_course.data(before, now),
        resume_course.generators(before, now),
        resume_course.mode(before, now),
        resume_state.trainable(before.state, now.state),
        resume_state.num_ranks(before.state, now.state),
    ]
    return [finding for finding in found if finding is not None]


def _without_digest(
    claim: Claim, log: DigestLog, rates: Mapping[int, float], now: Now
) -> list[Finding]:
    """Return what can be told about a step that has no digest."""
    found = [
        _weights_without_digest(claim, log.states, now.state),
        _moments_without_digest(claim, log.states, now.state),
        _count_without_digest(claim, log.states, now.state),
        _rate_without_digest(claim, rates, now),
    ]
    nearest = _nearest(log.states, claim.step)
    if nearest is not None:
        before = Before(nearest, None, log, rates)
        found += [
            _schedule_without_digest(claim, nearest, now),
            _begun_again(resume_course.scaler(before, now)),
            _begun_again(resume_course.data_again(before, now)),
            resume_course.mode(before, now),
            resume_state.trainable(nearest, now.state),
        ]
    return [finding for finding in found if finding is not None]


def _nearest(states: Sequence[StateDigest], step: int) -> StateDigest | None:
    """Return the digest of the nearest step, to compare what does not change from step to step."""
    return min(states, key=lambda state: abs(state.step - step), default=None)


def _begun_again(finding: Finding | None) -> Finding | None:
    """Return a finding only if it says that something began again: all else changes with steps."""
    is_again = finding is not None and finding.status in (LOST, CHANGED)
    return finding if is_again and finding is not None and "again" in finding.text else None


def _schedule_without_digest(claim: Claim, nearest: StateDigest, now: Now) -> Finding | None:
    for name, old in nearest.objects.items():
        at = now.state.objects.get(name, {}).get("last_epoch")
        was = old.get("last_epoch")
        if isinstance(at, int) and isinstance(was, int):
            expected = was + claim.step - nearest.step
            if at <= 1 < min(expected, claim.step):
                text = f"began again: at {at}, and the run is at step {claim.step:,}"
                return Finding(what=SCHEDULE, status=LOST, text=text)
            if at == expected:
                return Finding(what=SCHEDULE, status=SAME, text=f"at {at}, as the steps")
    return None


def _weights_without_digest(
    claim: Claim, states: Sequence[StateDigest], now: StateDigest
) -> Finding:
    for state in reversed(states):
        if not resume_state.has_weights_of(state, now):
            continue
        text = f"those of step {state.step:,}, not of step {claim.step:,}"
        if state.step == 0:
            text = "as at the beginning of the run: they were not loaded"
        return Finding(what=WEIGHTS, status=LOST, text=text)
    fresh = resume_state.as_at_the_beginning(now, states)
    if fresh:
        how_many = share(len(fresh), len(now.tensors), "tensor")
        text = f"{how_many} as at the beginning of the run, so not loaded: {listed(fresh)}"
        return Finding(what=WEIGHTS, status=LOST, text=text)
    return Finding(what=WEIGHTS, status=UNKNOWN, text=_NO_DIGEST)


def _moments_without_digest(
    claim: Claim, states: Sequence[StateDigest], now: StateDigest
) -> Finding | None:
    had = any(state.moments for state in states if state.optimizer == now.optimizer)
    if not had and "Adam" not in now.optimizer:
        return None
    if now.moments:
        return Finding(what=MOMENTS, status=UNKNOWN, text=_NO_DIGEST)
    how_many = share(now.num_without_moments, now.num_without_moments, "parameter")
    text = f"EMPTY at step {claim.step:,} ({how_many}): the state of the optimizer was not loaded"
    return Finding(what=MOMENTS, status=LOST, text=text)


def _count_without_digest(
    claim: Claim, states: Sequence[StateDigest], now: StateDigest
) -> Finding | None:
    if now.counts is None:
        return None
    own = now.counts[1]
    # Updates that a scaler skipped are not counted by the optimizer.
    behind = [state.step - state.counts[1] for state in states if state.counts is not None]
    usual = behind[-1] if behind else 0.0
    figures = {"now": own, "step": claim.step}
    if own == claim.step - usual or own == claim.step:
        text = f"{own:,.0f}, as the number of steps"
        return Finding(what=STEP_COUNT, status=SAME, text=text, figures=figures)
    text = f"{own:,.0f}, and the run is at step {claim.step:,}"
    if own < claim.step / 2:
        return Finding(what=STEP_COUNT, status=LOST, text=text, figures=figures)
    return Finding(what=STEP_COUNT, status=CHANGED, text=text, figures=figures)


def _rate_without_digest(claim: Claim, rates: Mapping[int, float], now: Now) -> Finding | None:
    wanted = rates.get(claim.step + 1)
    tolerance = 1e-6
    if wanted is None:
        wanted = rates.get(claim.step)
        tolerance = resume_course.usual_move(rates, claim.step)
    if not now.update.rates or wanted is None:
        return None
    own = now.update.rates[0]
    if is_close(own, wanted, tolerance):
        return Finding(what=RATE, status=SAME, text=f"{own:.4g}, as it was")
    text = f"{own:.4g}, was {wanted:.4g}"
    first = rates.get(1)
    if first is not None and is_close(own, first):
        return Finding(what=RATE, status=LOST, text=f"{text}: the schedule began again")
    return Finding(what=RATE, status=CHANGED, text=text)
