"""Curves in characters."""

import math

import numpy as np
import pytest

from sonde.errors import SettingError
from sonde.report.curve import Curve
from sonde.report.terminal_plot import GUTTER, plot


def curve(values: list[float]) -> Curve:
    return Curve(name="loss", steps=np.arange(1, len(values) + 1), values=np.array(values))


def test_a_line_that_rises_goes_from_the_lower_left_to_the_upper_right() -> None:
    picture = plot(curve([0.0, 1.0, 2.0, 3.0]), width=GUTTER + 20, height=4)
    assert [len(row.rstrip()) for row in picture.rows] == sorted((len(row) for row in picture.rows), reverse=True)
    assert picture.rows[0].startswith("        3 ┤")
    assert picture.rows[-1].startswith("        0 ┤⣀⠤⠒")
    assert picture.rows[0][GUTTER : GUTTER + 10].strip() == ""
    assert len(picture.rows[0]) == GUTTER + 20


def test_a_single_peak_is_seen_however_long_the_curve() -> None:
    values = [1.0] * 100_000
    values[70_000] = 9.0
    picture = plot(curve(values), [70_001], width=GUTTER + 50, height=6)
    top = picture.rows[0][GUTTER:]
    assert top.strip()
    assert picture.marks.index("▲") - GUTTER == pytest.approx(len(top) - 1, abs=1)


def test_events_outside_are_not_marked_and_broken_values_are() -> None:
    picture = plot(curve([1.0, math.nan, 2.0, 3.0]), [-5, 99], width=GUTTER + 20)
    assert "▲" not in picture.marks
    assert picture.marks.count("✕") == 1
    assert picture.title == "loss  last 3, 4 values, 1 not finite"


def test_a_logarithmic_scale_leaves_out_what_has_no_logarithm() -> None:
    picture = plot(curve([0.0, 1.0, 10.0, 100.0]), width=GUTTER + 20, height=5, log=True)
    assert picture.rows[0].startswith("      100 ┤")
    assert picture.rows[2].startswith("       10 ┤")
    assert picture.rows[4].startswith("        1 ┤")


def test_a_constant_and_a_single_value_are_drawn() -> None:
    for values in ([2.0], [2.0, 2.0]):
        picture = plot(curve(values), width=GUTTER + 20, height=3)
        assert any(row[GUTTER:].strip() for row in picture.rows)


def test_the_steps_stand_under_the_ends() -> None:
    picture = plot(curve([1.0] * 400), width=GUTTER + 40)
    assert picture.steps.split() == ["1", "200", "400"]
    assert len(picture.steps) == GUTTER + 40


@pytest.mark.parametrize(
    ("values", "log", "hint"),
    [([], False, "no step lies"), ([math.nan], False, "none of them is finite"), ([-1.0], True, "leave out --log")],
)
def test_nothing_to_show_is_refused(values: list[float], log: bool, hint: str) -> None:
    with pytest.raises(SettingError, match=hint):
        plot(curve(values), log=log)


def test_a_plot_needs_room() -> None:
    with pytest.raises(SettingError, match="too small"):
        plot(curve([1.0]), width=12)
