"""Whatever numbers come: detectors never raise, never poison, resume exactly; lines and windows
come back as they were.
"""

import itertools
import json
import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from sonde.compat.atorch.loss_lines import (
    all_samples,
    ids_text,
    ids_texts,
    joined,
    read_line,
    worst_sample,
)
from sonde.spikes.detectors import (
    NONFINITE,
    EventDetector,
    RelativeRule,
    Rule,
    SigmaRule,
    ThresholdRule,
    find_events,
)
from sonde.spikes.robust_rule import RobustRule

ANY = st.floats(allow_nan=True, allow_infinity=True)
CALM = [2.0, 2.1] * 24
"""As many good numbers as the robust rule needs before it judges."""
LOSSES = st.lists(st.one_of(ANY, st.floats(0, 12)), max_size=150).map(lambda losses: CALM + losses)
RULES: st.SearchStrategy[Rule] = st.sampled_from(
    [ThresholdRule(above=5.0), RelativeRule(), SigmaRule(), RobustRule()]
)


@given(LOSSES, RULES)
def test_no_number_makes_a_rule_raise_and_what_is_not_finite_is_always_told(
    losses: list[float], rule: Rule
) -> None:
    state = rule.start()
    for loss in losses:
        assert (rule.score(state, loss).kind == NONFINITE) == (not math.isfinite(loss))
        assert "NaN" not in json.dumps(
            {key: value for key, value in rule.pack(state).items() if key != "tail"}
        )


@given(LOSSES, RULES, st.integers(0, 200))
def test_a_detector_resumes_exactly_at_any_step(losses: list[float], rule: Rule, cut: int) -> None:
    whole = EventDetector(rule)
    first = EventDetector(rule)
    second = EventDetector(rule)
    sentences = [whole.update(step, loss) for step, loss in enumerate(losses)]
    for step, loss in enumerate(losses[:cut]):
        first.update(step, loss)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    rest = [second.update(step, loss) for step, loss in list(enumerate(losses))[cut:]]
    assert repr(rest) == repr(sentences[cut:])  # by repr: NaN is not equal to itself


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
    fields = [
        joined([loss for loss, _ in samples], ","),
        joined([info for _, info in samples], ","),
    ]
    text = "\t".join(["2026-01-02 03:04:05", str(iteration), str(loss), *fields]) + "\n"
    _, read_iteration, read_loss, losses, infos = read_line(text.encode(), b"\t")
    assert (read_iteration, repr(read_loss)) == (iteration, repr(loss))
    ranked = all_samples(losses, infos, b",")
    assert sorted(map(repr, ranked)) == sorted(map(repr, samples))
    assert repr(ranked[0]) == repr(worst_sample(losses, infos, b","))
    if not any(math.isnan(loss) for loss, _ in samples):
        assert ranked[0][0] == max(loss for loss, _ in samples)


@given(st.text(max_size=80))
def test_foreign_text_is_a_line_or_a_value_error(text: str) -> None:
    try:
        _, _, _, losses, infos = read_line(text.encode(), b"\t")
        worst_sample(losses, infos, b",")
    except ValueError:
        return
    assert text.count("\t") == 4


IDS = st.one_of(st.integers(-(2**31), 2**31 - 1), st.integers(0, 10**5))


@given(st.lists(IDS, max_size=50))
def test_ids_come_back_from_their_text(tokens: list[int]) -> None:
    text = ids_text(tokens)
    assert [int(word) for word in text[1:-1].split()] == tokens


@given(arrays(np.int32, st.tuples(st.integers(0, 9), st.integers(0, 9)), elements=IDS))
def test_rows_of_ids_have_the_text_that_each_has_alone(rows: NDArray[np.int32]) -> None:
    assert ids_texts([*rows]) == [ids_text(row) for row in rows.tolist()]
