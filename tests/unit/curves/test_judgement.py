"""What happened in a curve, and what it probably is: every clue with a curve that shows it."""

import math
from collections.abc import Callable, Mapping

import pytest
from logs_of_others import falling

from sonde.curves.judgement import Finding, judge
from sonde.curves.loss_curves import LossCurve, loss_curve
from sonde.curves.points import Point

Values = Callable[[int], Mapping[str, float]]


def curve_of(values: Values, steps: range | list[int]) -> LossCurve:
    curve = loss_curve([Point(step, None, dict(values(step))) for step in steps])
    assert curve is not None
    return curve


def only(findings: list[Finding]) -> Finding:
    (finding,) = findings
    return finding


def test_a_calm_curve_has_no_findings() -> None:
    loss = falling()
    assert judge(curve_of(lambda step: {"loss": loss(step)}, range(1, 400))) == []


def test_a_spike_of_one_point_is_the_batch() -> None:
    loss = falling({250: 9.0})
    finding = only(judge(curve_of(lambda step: {"loss": loss(step)}, range(1, 400))))
    assert (finding.kind, finding.first_step, finding.num_points) == ("spike", 250, 1)
    assert (finding.value, finding.peak) == (9.0, 9.0)
    assert finding.expected == pytest.approx(2.98, abs=0.1)
    assert [guess.cause for guess in finding.probably] == ["batch"]


def test_a_spike_early_in_a_short_log_is_found() -> None:
    planted = {12: 25.0}
    curve = curve_of(lambda step: {"loss": planted.get(step, 3.7 - 0.02 * step)}, range(1, 21))
    assert (only(judge(curve)).first_step, only(judge(curve)).value) == (12, 25.0)


def test_the_last_digit_of_a_log_that_rounds_is_no_event() -> None:
    # The end of a real run: trainer_state.json of a Whisper model.
    digits = {98: 2e-4, 100: 2e-4}
    curve = curve_of(lambda step: {"loss": digits.get(step, 1e-4)}, range(1, 101))
    assert judge(curve) == []


def test_a_policys_loss_that_is_mostly_zero_has_no_spikes_at_its_usual_values() -> None:
    values = {step: 0.1 * (step % 3) for step in range(1, 200, 5)}
    curve = curve_of(lambda step: {"grpo_loss": values.get(step, 0.0)}, range(1, 200))
    assert judge(curve) == []


def test_another_training_in_the_same_log_is_told_as_a_new_start() -> None:
    loss = falling()
    steps = [*range(1, 201), *range(1, 301)]
    finding = only(judge(curve_of(lambda step: {"loss": loss(step)}, steps)))
    assert finding.title == "Started over: step 200 was followed by step 1."


def test_a_restart_that_made_the_same_losses_again_is_clean() -> None:
    loss = falling()
    steps = [*range(1, 201), *range(150, 301)]
    finding = only(judge(curve_of(lambda step: {"loss": loss(step)}, steps)))
    assert (finding.kind, finding.first_step, finding.last_step) == ("restart", 150, 200)
    assert (finding.num_points, finding.is_alarm) == (51, False)
    assert finding.probably[0].cause == "none"


def test_a_restart_after_which_the_loss_is_higher_lost_something() -> None:
    before = falling()
    points = [Point(step, None, {"loss": before(step)}) for step in range(1, 201)]
    points += [Point(step, None, {"loss": before(step) + 1.5}) for step in range(150, 301)]
    curve = loss_curve(points)
    assert curve is not None
    found = {finding.kind: finding for finding in judge(curve)}
    assert "was not restored" in found["restart"].probably[0].sentence
    assert found["jump"].probably[0].cause == "resume"
    assert found["jump"].first_step == 150


def test_what_a_restart_made_again_is_judged_too() -> None:
    bad = falling({190: 9.0})
    good = falling()
    points = [Point(step, None, {"loss": bad(step)}) for step in range(1, 201)]
    points += [Point(step, None, {"loss": good(step)}) for step in range(150, 301)]
    curve = loss_curve(points)
    assert curve is not None
    spike = next(finding for finding in judge(curve) if finding.kind == "spike")
    assert (spike.first_step, spike.is_replaced) == (190, True)


def test_ranks_that_print_in_turn_are_averaged_and_no_restarts() -> None:
    points = [
        Point(max(step - rank, 1), None, {"loss": 3.0 + rank})
        for step in range(1, 200)
        for rank in range(2)
    ]
    curve = loss_curve(points)
    assert curve is not None
    assert curve.restarts == ()
    assert curve.values[100] == 3.5


def test_a_learning_rate_that_jumped_before_is_named_with_its_step() -> None:
    loss = falling({254: 6.0, 255: 6.0, 256: 6.0})
    rates = {True: 1e-3, False: 1e-4}
    curve = curve_of(lambda step: {"loss": loss(step), "lr": rates[step >= 250]}, range(1, 400))
    guess = only(judge(curve)).probably[0]
    assert guess.cause == "learning_rate"
    assert guess.sentence == "The learning rate: it jumped from 0.0001 to 0.001 at step 250."


def test_a_gradient_that_rose_first_blames_the_state() -> None:
    loss = falling({250: 9.0})
    norms = {247: 14.0}
    curve = curve_of(
        lambda step: {"loss": loss(step), "grad_norm": norms.get(step, 1.0)}, range(1, 400)
    )
    guess = only(judge(curve)).probably[0]
    assert guess.cause == "state"
    assert "14 at step 247" in guess.sentence


def test_a_loss_that_is_nan_for_good_has_lost_the_weights() -> None:
    loss = falling()
    curve = curve_of(lambda step: {"loss": loss(step) if step < 300 else math.nan}, range(1, 400))
    finding = only(judge(curve))
    assert (finding.kind, finding.first_step, finding.num_points) == ("nonfinite", 300, 100)
    assert "weights are lost" in finding.probably[0].sentence


def test_a_single_nan_did_not_lose_the_weights() -> None:
    loss = falling({300: math.nan})
    finding = only(judge(curve_of(lambda step: {"loss": loss(step)}, range(1, 400))))
    assert "The weights survived" in finding.probably[0].sentence


def test_a_gradient_norm_that_is_no_number_is_a_finding_of_its_own() -> None:
    loss = falling()
    norms = {300: math.nan, 301: math.inf}
    curve = curve_of(
        lambda step: {"loss": loss(step), "grad_norm": norms.get(step, 1.0)}, range(1, 400)
    )
    finding = only(judge(curve))
    assert (finding.kind, finding.first_step, finding.num_points) == ("gradient_not_finite", 300, 2)


def test_a_gradient_norm_that_is_no_number_counts_where_the_loss_is_no_longer_logged() -> None:
    points = [Point(step, None, {"lm loss": 3.0, "grad norm": 1.0}) for step in range(1, 100)]
    points += [Point(step, None, {"grad norm": math.nan}) for step in range(100, 120)]
    curve = loss_curve(points)
    assert curve is not None
    finding = only(judge(curve))
    assert (finding.kind, finding.first_step, finding.num_points) == (
        "gradient_not_finite",
        100,
        20,
    )


def test_a_loss_that_stays_up_blames_weights_or_data() -> None:
    loss = falling()
    curve = curve_of(
        lambda step: {"loss": loss(step) + (1.5 if step >= 250 else 0.0)}, range(1, 500)
    )
    finding = only(judge(curve))
    assert (finding.kind, finding.first_step) == ("jump", 250)
    assert finding.title.endswith("and stays up.")
    assert finding.probably[0].cause == "state"


def test_a_climb_is_told_from_where_it_began() -> None:
    loss = falling()
    curve = curve_of(lambda step: {"loss": loss(step) + max(step - 600, 0) * 0.01}, range(1, 900))
    finding = next(finding for finding in judge(curve) if finding.kind == "divergence")
    assert finding.first_step == 640
    assert finding.title == "The loss climbs from 2.494 around step 600 to 5.514 at step 889."


def test_a_long_pause_of_the_log_is_told() -> None:
    loss = falling()
    points = [
        Point(step, 1.7e9 + step + (7200 if step > 120 else 0), {"loss": loss(step)})
        for step in range(1, 300)
    ]
    curve = loss_curve(points)
    assert curve is not None
    finding = only(judge(curve))
    assert (finding.kind, finding.first_step) == ("pause", 121)
    assert finding.title == "Nothing was logged for 2 h 0 min after step 120."


def test_evaluations_that_part_from_the_training_are_a_fact_and_no_alarm() -> None:
    loss = falling()
    overfits = {step: 3.0 + abs(step - 500) / 1000 for step in range(100, 1001, 100)}

    def values(step: int) -> dict[str, float]:
        logged = {"loss": loss(step)}
        if step in overfits:
            logged["eval_loss"] = overfits[step]
        return logged

    finding = only(judge(curve_of(values, range(1, 1001))))
    assert (finding.kind, finding.first_step) == ("parting", 1000)
    assert not finding.is_alarm


def test_a_loss_that_jumped_and_stays_up_is_told_once() -> None:
    loss = falling()
    steps = range(1, 1201)
    curve = curve_of(lambda step: {"loss": loss(step) + (4.0 if step >= 600 else 0.0)}, steps)
    assert only(judge(curve)).kind == "jump"


def test_a_loss_that_climbs_is_not_also_called_without_progress() -> None:
    loss = falling()
    steps = range(1, 1201)
    curve = curve_of(lambda step: {"loss": loss(step) * 1.004 ** max(step - 600, 0)}, steps)
    assert only(judge(curve)).kind == "divergence"


def test_a_loss_that_collapsed_to_zero_is_told_once() -> None:
    loss = falling()
    steps = range(1, 1201)
    curve = curve_of(lambda step: {"loss": loss(step) if step < 600 else 0.0}, steps)
    assert only(judge(curve)).kind == "loss_collapse"


def test_a_spike_soon_after_a_steep_start_is_found() -> None:
    loss = falling({54: 4.9}, scale=25.0)
    curve = curve_of(lambda step: {"loss": loss(step)}, range(1, 102))
    assert only(judge(curve)).first_step == 54
