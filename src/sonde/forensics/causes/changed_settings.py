"""Settings changed at a restart: the steps since are replayed with the old ones."""

import math
from typing import Final, NamedTuple

from sonde.errors import SondeError
from sonde.forensics.case import is_close
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.changes import StartChange
from sonde.forensics.evidence import Evidence

_UNTRIED: Final = 0.3
"""The score of a change that cannot be tried without: it is a fact, not a cause."""
_ELSE: Final = 0.15
_ROUNDING: Final = 1e-4
"""The step is reproduced if its loss differs by no more than this fraction."""
_GONE: Final = 0.5
_EFFECT: Final = 0.05
"""A setting is to blame if it raises the loss by this fraction."""
_LEAST_EXCESS: Final = 2.0
"""A setting is blamed only for a loss at least this many deviations above normal."""


class SettingsTried(NamedTuple):
    """The loss of the step, replayed since the restart."""

    now: float
    """With the settings that it had."""
    before: float
    """With the settings as they were before the restart."""


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether a setting changed recently, and whether the loss is normal without the
    change.
    """
    changes = [change for change in evidence.recent_changes if change.settings]
    if not changes:
        return None
    change = changes[-1]
    sentences = [f"after step {change.step}: {name}" for name in change.what]
    tried = evidence.once(f"settings {change.step}", lambda: _try_both(evidence, change))
    if tried is None:
        sentences.append("the settings as they were cannot be tried, so their effect is not known")
        return CauseFinding(score=_UNTRIED, evidence=sentences, setting=change.settings[0])
    return _judge_effect(evidence, change, tried, sentences)


def _judge_effect(
    evidence: Evidence, change: StartChange, tried: SettingsTried, sentences: list[str]
) -> CauseFinding:
    """Judge by the loss of the step with the settings of now and with those of before."""
    case = evidence.case
    recorded = case.record.loss
    normal = evidence.normal_before(change.step + 1)
    setting = change.settings[0]
    sentences.append(
        f"with the settings as they were the loss of step {case.step} is {tried.before:.4g} instead"
        f" of {recorded:.4g}; {normal:.4g} was normal"
    )
    if not is_close(tried.now, recorded, _ROUNDING):
        sentences.append(
            f"but with the settings as they are now it is {tried.now:.4g}, not what was recorded:"
            " something else happened at the restart"
        )
        return CauseFinding(score=_ELSE, evidence=sentences, setting=setting)
    excess = recorded - normal
    is_high = not math.isfinite(excess) or excess > _LEAST_EXCESS * case.losses.deviation
    # The same step on the same data: any difference is due to the setting.
    effect = recorded - tried.before
    if effect > _EFFECT * abs(recorded):
        is_high = True
        excess = max(excess, effect)
    if not is_high:
        return CauseFinding(score=0.1, evidence=sentences, setting=setting)
    gone = 1.0 if not math.isfinite(recorded) else effect / excess
    score = 0.15
    if math.isfinite(tried.before) and gone > _GONE:
        score = 0.6 + 0.38 * min(gone, 1.0)
    return CauseFinding(
        score=score, evidence=sentences, setting=setting, bad_checkpoint=change.step + 1
    )


def _try_both(evidence: Evidence, change: StartChange) -> SettingsTried | None:
    """Replay the steps since the restart with both settings; None if the training cannot be built
    with the old ones.
    """
    words = ", ".join(change.settings)
    since = change.step + 1
    try:
        replay = evidence.lab.replay.with_settings_of(max(change.step, 1))
        if replay is None:
            return None
        rate = replay.seams.updater.scheduled_rate
        before = evidence.lab.replay_with(
            since, words=f"{words} as before", replay=replay, rate=rate
        )
        now = evidence.lab.replay_with(since, words=f"{words} as it became")
    except (SondeError, RuntimeError, KeyError):
        return None  # another model or optimizer: the old settings do not fit what was saved since
    return SettingsTried(now, before)


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
