"""The index answers as a plain reading of the record files would."""

import math

import numpy as np
import pytest
from indexed_run import log, refreshed, write, write_raw

from sonde.records.layout import RunLayout
from sonde.records.values import NO_STEP


def test_a_series_holds_steps_and_values_in_the_order_written(layout: RunLayout) -> None:
    write(layout, log(1, loss=0.5, lr=1), log(2, loss=0.25, lr=1), log(5, loss=0.125, lr=1))
    with refreshed(layout) as index:
        loss = index.series("loss")
        assert loss.steps.tolist() == [1, 2, 5]
        assert loss.values.tolist() == [0.5, 0.25, 0.125]
        assert loss.steps.dtype == np.int64
        assert loss.values.dtype == np.float64


def test_an_unknown_metric_is_an_empty_series(layout: RunLayout) -> None:
    write(layout, log(1, loss=0.5))
    with refreshed(layout) as index:
        assert index.series("accuracy").values.tolist() == []
        assert index.series("loss", rank=1).steps.tolist() == []
        assert index.metrics("spikes") == {}


def test_a_run_without_records_has_an_empty_index(layout: RunLayout) -> None:
    with refreshed(layout) as index:
        assert index.metrics() == {}
        assert index.num_records() == 0
        assert index.records_at_step("log", 1) == []


def test_a_metric_that_only_some_records_hold_keeps_its_own_steps(layout: RunLayout) -> None:
    write(
        layout,
        log(1, loss=1.0),
        log(2, loss=2.0, accuracy=0.5),
        log(3),
        log(4, accuracy=0.75, loss=4.0),
    )
    with refreshed(layout) as index:
        assert index.series("loss").steps.tolist() == [1, 2, 4]
        assert index.series("accuracy").steps.tolist() == [2, 4]
        assert index.series("accuracy").values.tolist() == [0.5, 0.75]
        assert index.metrics() == {"accuracy": 2, "loss": 3}


def test_nested_keys_are_joined_with_dots(layout: RunLayout) -> None:
    write(layout, log(1, eval={"loss": 1.0, "by_length": {"short": 2.0}}), log(2, eval=7.0))
    with refreshed(layout) as index:
        assert index.metrics() == {"eval": 1, "eval.by_length.short": 1, "eval.loss": 1}
        assert index.series("eval.by_length.short").values.tolist() == [2.0]
        assert index.series("eval").steps.tolist() == [2]


def test_of_a_name_that_occurs_twice_in_a_record_the_later_counts(layout: RunLayout) -> None:
    write_raw(
        layout,
        b'{"step":1,"data":{"a.b":1,"a":{"b":2}}}\n{"step":2,"data":{"a":{"b":3},"a.b":4}}\n',
    )
    with refreshed(layout) as index:
        assert index.series("a.b").values.tolist() == [2.0, 4.0]


def test_numbers_of_all_spellings_are_values_and_the_rest_is_not(layout: RunLayout) -> None:
    values = [
        True,
        False,
        3,
        2**70,
        math.nan,
        math.inf,
        -math.inf,
        "NaN",
        "1.5",
        None,
        [1.0],
        b"x",
        1e300,
    ]
    write(layout, *(log(step, x=value) for step, value in enumerate(values)))
    with refreshed(layout) as index:
        series = index.series("x")
        assert series.steps.tolist() == [0, 1, 2, 3, 4, 5, 6, 12]
        np.testing.assert_array_equal(
            series.values, [1.0, 0.0, 3.0, float(2**70), math.nan, math.inf, -math.inf, 1e300]
        )


def test_objects_nested_too_deeply_are_no_metrics(layout: RunLayout) -> None:
    write_raw(layout, b'{"data":{"x":1,"deep":' + b'{"a":' * 900 + b"1" + b"}" * 902 + b"\n")
    with refreshed(layout) as index:
        assert index.metrics() == {"x": 1}
        assert index.num_records() == 1


def test_lists_of_numbers_are_steps(layout: RunLayout) -> None:
    write(
        layout,
        log([0, 1], loss=1.0),
        log([0, 2, 9], loss=2.0),
        log(3, loss=3.0),
        log([1, 2, 3, 4], loss=4.0),
    )
    with refreshed(layout) as index:
        assert index.series("loss").steps.tolist() == [
            [0, 1, NO_STEP],
            [0, 2, 9],
            [3, NO_STEP, NO_STEP],
            [NO_STEP] * 3,
        ]
        assert index.records_at_step("log", [0, 1]) == [log([0, 1], loss=1.0)]
        assert index.records_at_step("log", [0, 2]) == []
        assert len(index.records_at_step("log", (0, 2, 9))) == 1
        assert len(index.records_at_step("log", 3)) == 1


@pytest.mark.usefixtures("small_chunks")
def test_steps_of_different_width_meet_in_one_series(layout: RunLayout) -> None:
    write(layout, *(log(step, loss=1.0) for step in range(4)), log([1, 5], loss=2.0))
    with refreshed(layout) as index:
        assert index.series("loss").steps.tolist() == [
            *([step, NO_STEP] for step in range(4)),
            [1, 5],
        ]
        assert index.records_at_step("log", [2, 3]) == []


def test_records_without_a_numeric_step_have_none(layout: RunLayout) -> None:
    write(
        layout,
        log(None, x=1),
        log("end", x=2),
        log(2**64, x=3),
        log(7.0, x=4),
        log(7.5, x=5),
        {"data": {"x": 6}},
    )
    with refreshed(layout) as index:
        assert index.series("x").steps.tolist() == [NO_STEP, NO_STEP, NO_STEP, 7, NO_STEP, NO_STEP]
        assert index.records_at_step("log", 7) == [log(7.0, x=4)]


@pytest.mark.parametrize(
    "steps",
    [
        [5],
        [3, 3, 3],
        [0, 10, 20, 30],
        [3, 2, 1],
        [1, 2, 4],
        [-5, 0, 5],
        [1 - 2**63, 2**63 - 1],
        [0, 1, 1, 3],
    ],
)
def test_steps_come_back_whether_they_rise_evenly_or_not(
    layout: RunLayout, steps: list[int]
) -> None:
    write(layout, *(log(step, loss=1.0) for step in steps))
    with refreshed(layout) as index:
        assert index.series("loss").steps.tolist() == steps
        assert len(index.records_at_step("log", steps[0])) == steps.count(steps[0])


def test_the_records_of_a_step_come_by_rank_and_kind(layout: RunLayout) -> None:
    write(
        layout,
        {"type": "SPIKE", "step": 7, "loss": 9.5},
        {"type": "SPIKE", "step": 9},
        {"step": 8},
        kind="spikes",
    )
    write(layout, {"type": "SPIKE", "step": 7}, kind="spikes", rank=3)
    with refreshed(layout) as index:
        first, other = index.records_at_step("spikes", 7)
        assert first == {"type": "SPIKE", "step": 7, "loss": 9.5}
        assert (
            index.records_at_step("spikes", 7, rank=3) == [other] == [{"type": "SPIKE", "step": 7}]
        )
        assert index.records_at_step("log", 7) == []


@pytest.mark.usefixtures("small_chunks")
def test_a_step_is_found_among_many_records(layout: RunLayout) -> None:
    write(
        layout, {"type": "METADATA", "metric": "loss"}, *(log(step, loss=1.0) for step in range(20))
    )
    with refreshed(layout) as index:
        assert index.records_at_step("log", 10) == [log(10, loss=1.0)]
        assert index.records_at_step("log", 2**64) == []


def test_texts_that_look_like_numbers_stay_texts(layout: RunLayout) -> None:
    write(
        layout,
        log("NaN", x=1),
        {"type": "Infinity", "step": math.nan},
        {"type": "é\ud800", "step": 1},
    )
    write(layout, {"type": "NaN", "step": "-Infinity", "data": {"$cost": 1, "x": "NaN"}})
    with refreshed(layout) as index:
        assert index.metrics() == {"$cost": 1, "x": 1}


def test_names_in_any_script_are_metrics(layout: RunLayout) -> None:
    write(layout, log(1, **{"Verlust/größe": 1.0, "損失": 2.0, 'a"b\\c': 3.0, "$cost": 4.0}))
    write_raw(layout, b'{"data":{"\\ud800":5}}\n')
    with refreshed(layout) as index:
        assert set(index.metrics()) == {"Verlust/größe", "損失", 'a"b\\c', "$cost", "\\ud800"}
        assert index.series("損失").values.tolist() == [2.0]


def test_records_of_a_file_that_is_gone_are_left_out(layout: RunLayout) -> None:
    write(layout, log(1, loss=1.0))
    with refreshed(layout) as index:
        layout.record_file("log", 0).unlink()
        assert index.records_at_step("log", 1) == []


def test_bad_lines_are_counted_and_skipped(layout: RunLayout) -> None:
    write_raw(
        layout, b"\xef\xbb\xbf" + b'{"step":1,"data":{"x":1}}\r\n{"step":2,"data":{"x"\n\n[1]\n'
    )
    write_raw(
        layout,
        b'\0\0\0\0{"step":3,"data":{"x":3}}\n{"a":"\xff","data":{"x":4}}\n{"a":"\t","data":{"x":5}}\n',
    )
    write_raw(layout, b'{"step":6,"data":{"x":NaN}}\n')
    with refreshed(layout) as index:
        np.testing.assert_array_equal(index.series("x").values, [1.0, 3.0, math.nan])
        assert index.num_records() == 3
        assert index.num_bad() == 5
        assert [len(index.records_at_step("log", step)) for step in (1, 2, 3, 6)] == [1, 0, 1, 1]


def test_a_file_of_bad_lines_only_has_no_records(layout: RunLayout) -> None:
    write_raw(layout, b"not json\nnor this\n")
    with refreshed(layout) as index:
        assert (index.num_records(), index.num_bad()) == (0, 2)
        write(layout, log(1, loss=1.0))
        index.refresh()
        assert (index.num_records(), index.num_bad()) == (1, 2)
