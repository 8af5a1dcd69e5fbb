"""Curves in characters."""

import math

import numpy as np
import pytest

from sonde.cli.show import GUTTER, draw
from sonde.errors import SettingError
from sonde.report.curve import Curve


def drawn(
    values: list[float], events: list[int] | None = None, *, width: int, height: int = 12
) -> tuple[str, list[str], str, str]:
    """The title, the rows of the curve, the steps below them and the marks."""
    title, *rows, _, steps, marks = [
        *draw(curve(values), events or [], width=width, height=height).plain.split("\n"),
        "",
    ][: height + 4]
    return title, rows, steps, marks


def curve(values: list[float]) -> Curve:
    return Curve(name="loss", steps=np.arange(1, len(values) + 1), values=np.array(values))


def test_a_line_that_rises_goes_from_the_lower_left_to_the_upper_right() -> None:
    _, rows, _, _ = drawn([0.0, 1.0, 2.0, 3.0], width=GUTTER + 20, height=4)
    assert [len(row.rstrip()) for row in rows] == sorted((len(row) for row in rows), reverse=True)
    assert rows[0].startswith("        3 ┤")
    assert rows[-1].startswith("        0 ┤⣀⠤⠒")
    assert rows[0][GUTTER : GUTTER + 10].strip() == ""
    assert len(rows[0]) == GUTTER + 20


def test_a_single_peak_is_seen_however_long_the_curve() -> None:
    values = [1.0] * 100_000
    values[70_000] = 9.0
    _, rows, _, marks = drawn(values, [70_001], width=GUTTER + 50, height=6)
    top = rows[0][GUTTER:]
    assert top.strip()
    assert marks.index("▲") - GUTTER == pytest.approx(len(top) - 1, abs=1)


def test_events_outside_are_not_marked_and_broken_values_are() -> None:
    title, _, _, marks = drawn([1.0, math.nan, 2.0, 3.0], [-5, 99], width=GUTTER + 20)
    assert "▲" not in marks
    assert marks.count("✕") == 1
    assert title == "loss  last 3, 4 values, 1 not finite"


def test_a_constant_and_a_single_value_are_drawn() -> None:
    for values in ([2.0], [2.0, 2.0]):
        _, rows, _, _ = drawn(values, width=GUTTER + 20, height=3)
        assert any(row[GUTTER:].strip() for row in rows)


def test_the_steps_stand_under_the_ends() -> None:
    _, _, steps, _ = drawn([1.0] * 400, width=GUTTER + 40)
    assert steps.split() == ["1", "200", "400"]
    assert len(steps) == GUTTER + 40


@pytest.mark.parametrize(
    ("values", "hint"), [([], "no step lies"), ([math.nan], "none of them is finite")]
)
def test_nothing_to_show_is_refused(values: list[float], hint: str) -> None:
    with pytest.raises(SettingError, match=hint):
        draw(curve(values))
