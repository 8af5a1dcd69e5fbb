"""Settings changed at a restart: the steps since are replayed with the old ones."""

import math
from typing import Final

from sonde.errors import SondeError
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.changes import StartChange
from sonde.forensics.evidence import Evidence

_NEAR: Final = 16
"""A change at most this many steps ago is more likely to blame than an older one."""
_GONE: Final = 0.5
_EFFECT: Final = 0.05
"""A setting is to blame if it raises the loss by this fraction."""
_LEAST_EXCESS: Final = 2.0
"""A setting is blamed only for a loss at least this many deviations above normal."""


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether a setting changed recently, and whether the loss is normal without the
    change.
    """
    changes = [one for one in evidence.recent_changes if one.settings]
    if not changes:
        return None
    change = changes[-1]
    case = evidence.case
    sentences = [f"after step {change.step}: {name}" for name in change.what]
    loss = evidence.once(f"settings {change.step}", lambda: _loss_before(evidence, change))
    recorded = case.record.loss
    normal = evidence.normal_before(change.step + 1)
    excess = recorded - normal
    is_high = not math.isfinite(excess) or excess > _LEAST_EXCESS * case.losses.deviation
    if loss is None:
        score = (
            (0.55 if case.step - change.step <= _NEAR else 0.35)
            if is_high or evidence.is_state_bad
            else 0.1
        )
        return CauseFinding(score=score, evidence=sentences, setting=change.settings[0])
    sentences.append(
        f"with the settings as they were the loss of step {case.step} is {loss:.4g} instead of"
        f" {recorded:.4g}; {normal:.4g} was normal"
    )
    # The same step on the same data: any difference is due to the setting.
    effect = recorded - loss
    if effect > _EFFECT * abs(recorded):
        is_high = True
        excess = max(excess, effect)
    if not is_high:
        return CauseFinding(score=0.1, evidence=sentences, setting=change.settings[0])
    gone = 1.0 if not math.isfinite(recorded) else (recorded - loss) / excess
    score = 0.6 + 0.38 * min(gone, 1.0) if math.isfinite(loss) and gone > _GONE else 0.15
    return CauseFinding(
        score=score, evidence=sentences, setting=change.settings[0], bad_checkpoint=change.step + 1
    )


def _loss_before(evidence: Evidence, change: StartChange) -> float | None:
    """Return the loss of the step without the change of settings; None if the training cannot be
    built with the old ones.
    """
    words = f"{', '.join(change.settings)} as before"
    try:
        replay = evidence.lab.replay.with_settings_of(max(change.step, 1))
        if replay is None:
            return None
        rate = replay.seams.updater.scheduled_rate
        return evidence.lab.replay_with(change.step + 1, words=words, replay=replay, rate=rate)
    except (SondeError, RuntimeError, KeyError):
        return None  # another model or optimizer: the old settings do not fit what was saved since


RULE: Final = CauseRule(
    title="Settings changed between two starts of the run.",
    advice=(
        (
            "Resume from the checkpoint before with the settings as they were: `sonde rollback RUN"
            " --step {step}` prints the command."
        ),
    ),
    blames="setting",
    family="setting",
    judge=judge,
)
