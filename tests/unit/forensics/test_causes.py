"""Causes that no planted training shows quickly, each with the fault that it is to name beside it;
and that adding one touches a file, a line and a test.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from sonde.forensics.causes import (
    CAUSES,
    batch_size,
    changed_code,
    failed_check,
    not_known,
    nothing_wrong,
    quiet_failure,
    resume_part,
    rules,
    stuck,
    text_kind,
)
from sonde.forensics.causes.cause_rule import confidence_of
from sonde.forensics.changes import StartChange
from sonde.forensics.evidence import Evidence
from sonde.records.journal import StepRecord
from sonde.spread import Spread
from sonde.texts.pairs import MISMATCHED, PAIR_KINDS
from sonde.texts.signs import KINDS, OVER_LONG


def steps_with(losses: Mapping[int, float], weights: Mapping[int, float]) -> dict[int, StepRecord]:
    """Three hundred calm steps, but for these."""
    calm = StepRecord(step=1, epoch=1, loss=3.0, weight=512.0, grad_norm=1.0, lr=1e-3)
    return {
        number: replace(
            calm,
            step=number,
            loss=losses.get(number, 3.0 + 0.01 * (number % 7)),
            weight=weights.get(number, 512.0),
        )
        for number in range(1, 301)
    }


def evidence(steps: Mapping[int, StepRecord], **values: Any) -> Evidence:
    """As much of it as these rules ask for, about the last step."""
    step = max(steps)
    calm = tuple(record for number, record in steps.items() if step - 64 <= number < step)
    losses = Spread([record.loss for record in calm])
    case = SimpleNamespace(
        step=step, steps=steps, calm=calm, record=steps[step], losses=losses, is_skipped=False
    )
    case.has_exploded_before = False
    case.loss_z = losses.z(steps[step].loss)
    case.is_loss_unusual = case.is_event = case.loss_z > 4.5
    own = {
        "case": case,
        "samples": [],
        "is_state_bad": False,
        "is_replayed": True,
        "recent_changes": [],
        "made": SimpleNamespace(differs=False, grad_norm=None, modules=()),
        "token_entropy": math.nan,
        "stands_out": lambda _: 0.0,
        "reference": SimpleNamespace(losses=None),
        "describe_rate": lambda: "the learning rate is as it is",
        "once": lambda _, make: make(),
    }
    return cast("Evidence", SimpleNamespace(**{**own, **values}))


def test_batch_size_a_last_batch_of_a_few_tokens() -> None:
    planted = steps_with(losses={300: 4.4}, weights={300: 24.0})
    found = batch_size.RULE.judge(evidence(planted))
    assert found is not None
    assert found.score >= 0.7
    assert "24 target tokens, usually there are 512" in found.evidence[0]
    assert batch_size.RULE.judge(evidence(steps_with(losses={300: 4.4}, weights={}))) is None


@pytest.mark.parametrize(("after_shuffling", "is_stuck"), [(3.01, True), (4.2, False)])
def test_stuck_a_training_at_the_loss_of_frequencies_that_takes_no_notice_of_order(
    after_shuffling: float, is_stuck: bool
) -> None:
    found = stuck.RULE.judge(
        evidence(steps_with({}, {}), token_entropy=3.0, once=lambda *_: after_shuffling - 3.0)
    )
    assert (found is not None) is is_stuck


def test_stuck_is_not_said_of_a_training_that_has_learnt_more_than_frequencies() -> None:
    assert (
        stuck.RULE.judge(evidence(steps_with({}, {}), token_entropy=5.0, once=lambda *_: 0.0))
        is None
    )


def test_changed_code_other_packages_since_a_restart_after_which_every_batch_is_bad() -> None:
    planted = StartChange(step=290, what=("torch was 2.6 and became 2.7",))
    found = changed_code.RULE.judge(
        evidence(steps_with({}, {}), recent_changes=[planted], is_state_bad=True)
    )
    assert found is not None
    assert "torch was 2.6" in found.evidence[0]
    assert changed_code.RULE.judge(evidence(steps_with({}, {}), recent_changes=[planted])) is None


def test_not_known_a_high_loss_that_nothing_explains() -> None:
    planted = evidence(steps_with({300: 9.0}, {}), modules_of_another_batch={})
    assert not_known.RULE.judge(planted) is not None
    assert nothing_wrong.RULE.judge(planted) is None
    assert not_known.RULE.judge(evidence(steps_with({}, {}))) is None


def test_nothing_wrong_is_less_sure_within_an_event_of_the_gradient() -> None:
    calm = evidence(steps_with({}, {}))
    event = evidence(steps_with({}, {}))
    event.case.is_event = True  # type: ignore[misc]  # as much of a case as is read
    one = nothing_wrong.RULE.judge(calm)
    other = nothing_wrong.RULE.judge(event)
    assert one is not None
    assert other is not None
    assert other.score < 0.5 < one.score


@pytest.mark.parametrize("values", [{"z": 4.5, "bits_z": 0.0}, {"z": 0.0, "bits_z": 6.0}])
def test_nothing_wrong_is_not_said_surely_beside_a_sample_that_is_far_out(
    values: dict[str, float],
) -> None:
    usual = SimpleNamespace(start=2.0, slope=1.0, model=SimpleNamespace(expected=lambda *_: [3.0]))
    given: dict[str, Any] = {"reference": SimpleNamespace(losses=usual)}
    calm = [SimpleNamespace(z=0.0, bits_z=math.nan)]
    found = nothing_wrong.RULE.judge(
        evidence(steps_with({}, {}), samples=[*calm, SimpleNamespace(**values)], **given)
    )
    sure = nothing_wrong.RULE.judge(evidence(steps_with({}, {}), samples=calm, **given))
    assert found is not None
    assert sure is not None
    assert found.score < sure.score
    assert confidence_of("replay", "none", sure.score) < 0.7


def test_a_cause_is_a_file_or_a_line_of_a_table_and_a_name_in_the_list() -> None:
    folder = Path(str(batch_size.__file__)).parent
    tables = {"text_kind", "quiet_failure", "failed_check", "resume_part"}
    files = {path.stem for path in folder.glob("*.py")} - {"__init__", "cause_rule"} - tables
    lines = {*text_kind.RULES, *quiet_failure.RULES, *failed_check.RULES, *resume_part.RULES}
    assert not files & lines
    assert files | lines == set(CAUSES) == set(rules())
    assert all(rule.title and rule.advice for rule in rules().values())


def test_every_kind_of_text_that_a_cause_judges_is_a_sign() -> None:
    judged = {
        rule.judge.keywords["kind"]
        for rule in text_kind.RULES.values()
        if isinstance(rule.judge, partial)
    }
    assert judged == {*KINDS, *PAIR_KINDS} - {OVER_LONG, MISMATCHED}
