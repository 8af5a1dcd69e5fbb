"""What all pages share."""

import re

import numpy as np

from sonde.dashboard.frame import spark
from sonde.report.curve import Curve


def points_of(picture: str) -> list[tuple[float, float]]:
    path = re.search(r' d="M([^"]+)"', picture)
    assert path is not None
    return [
        (float(point.split(" ")[0]), float(point.split(" ")[1])) for point in path[1].split("L")
    ]


def test_a_small_picture_fills_its_width_and_its_height() -> None:
    curve = Curve(name="loss", steps=np.array([10, 20, 50]), values=np.array([4.0, 2.0, 3.0]))
    picture = str(spark(curve))
    assert points_of(picture) == [(0.0, 1.0), (30.0, 25.0), (120.0, 13.0)]
    assert "loss from 4 to 3" in picture


def test_a_loss_that_stands_still_is_a_line_and_one_point_is_nothing() -> None:
    flat = Curve(name="loss", steps=np.array([1, 2]), values=np.array([2.0, 2.0]))
    assert points_of(str(spark(flat))) == [(0.0, 25.0), (120.0, 25.0)]
    single = Curve(name="loss", steps=np.array([1]), values=np.array([2.0]))
    assert "<path" not in str(spark(single))
    assert "<path" not in str(spark(None))
