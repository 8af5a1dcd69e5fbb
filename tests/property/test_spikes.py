"""Whatever numbers come: detectors never raise, never poison, resume exactly; lines and windows come back as they were."""

import itertools
import json
import math

from hypothesis import given
from hypothesis import strategies as st

from sonde.spikes.detectors import NONFINITE, RelativeRule, Rule, SigmaRule, ThresholdRule
from sonde.spikes.events import EventDetector, find_events
from sonde.spikes.loss_lines import all_samples, joined, read_line, worst_sample
from sonde.spikes.robust_rule import RobustRule
from sonde.spikes.sample_text import ids_text

ANY = st.floats(allow_nan=True, allow_infinity=True)
LOSSES = st.lists(st.one_of(ANY, st.floats(0, 12)), max_size=150)
RULES: st.SearchStrategy[Rule] = st.sampled_from(
    [ThresholdRule(above=5.0), RelativeRule(), SigmaRule(), RobustRule(min_history=4, level_steps=4, noise_steps=8)]
)


@given(LOSSES, RULES)
def test_no_number_makes_a_rule_raise_and_what_is_not_finite_is_always_told(losses: list[float], rule: Rule) -> None:
    state = rule.start()
    for loss in losses:
        assert (rule.score(state, loss).kind == NONFINITE) == (not math.isfinite(loss))
        assert "NaN" not in json.dumps({key: value for key, value in rule.pack(state).items() if key != "tail"})


@given(LOSSES, RULES, st.integers(0, 150))
def test_a_detector_resumes_exactly_at_any_step(losses: list[float], rule: Rule, cut: int) -> None:
    whole, first, second = EventDetector(rule), EventDetector(rule), EventDetector(rule)
    told = [whole.update(step, loss) for step, loss in enumerate(losses)]
    for step, loss in enumerate(losses[:cut]):
        first.update(step, loss)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    rest = [second.update(step, loss) for step, loss in list(enumerate(losses))[cut:]]
    assert repr(rest) == repr(told[cut:])  # by repr: NaN is not equal to itself


@given(LOSSES, RULES)
def test_events_do_not_overlap_and_hold_their_bad_steps(losses: list[float], rule: Rule) -> None:
    events = find_events(losses, rule)
    for event in events:
        assert event.first_step <= event.peak_step <= event.last_step
        assert 1 <= event.num_bad <= event.last_step - event.first_step + 1
    assert all(before.last_step < after.first_step for before, after in itertools.pairwise(events))


INFOS = st.from_regex(r"[0-9]{1,3}(-[0-9]{1,9}){4}", fullmatch=True)


@given(st.lists(st.tuples(ANY, INFOS), min_size=1, max_size=20), ANY, st.integers(0, 2**63))
def test_a_line_comes_back_as_it_was_and_its_worst_sample_leads(
    samples: list[tuple[float, str]], loss: float, iteration: int
) -> None:
    losses, infos = joined([one for one, _ in samples], ","), joined([info for _, info in samples], ",")
    line = read_line("\t".join(["2026-01-02 03:04:05", str(iteration), str(loss), losses, infos]), "\t")
    assert (line.iteration, repr(line.loss)) == (iteration, repr(loss))
    ranked = all_samples(line, ",")
    assert sorted(map(repr, ranked)) == sorted(map(repr, samples))
    assert repr(ranked[0]) == repr(worst_sample(line, ","))
    if not any(math.isnan(one) for one, _ in samples):
        assert ranked[0][0] == max(one for one, _ in samples)


@given(st.text(max_size=80))
def test_foreign_text_is_a_line_or_a_value_error(text: str) -> None:
    try:
        line = read_line(text, "\t")
        worst_sample(line, ",")
    except ValueError:
        return
    assert text.count("\t") == 4


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=50))
def test_ids_come_back_from_their_text(tokens: list[int]) -> None:
    text = ids_text(tokens)
    assert [int(word) for word in text[1:-1].split()] == tokens
