from typing import Any

import numpy as np
import pytest

from sonde.log.backends.stdout import line_parts, value_text


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def line(step: Any, data: dict[Any, Any], **metadata: dict[str, Any]) -> str:
    record = {"datetime": "2026-11-15 19:46:47.226705+00:00", "step": step, "data": data}
    return "".join(line_parts(record, metadata))


def test_line_is_tcaps() -> None:
    expected = (
        "TCAPPDLL 2026-11-15 19:46:47.226705 - Epoch: 0 Iteration: 1  loss : 0.01  ips : 3.000"
        " imgs/s"
    )
    assert (
        line((0, 1), {"loss": 0.01, "ips": 3.0}, ips={"unit": "imgs/s", "format": ":.3f"})
        == expected
    )


@pytest.mark.parametrize(
    ("value", "spec", "text"),
    [
        (3.0, ":.3f", "3.000"),
        (3.0, None, "3.0"),
        (3.0, "{", "3.0"),
        (3.0, ":.3q", "3.0"),
        (3.0, 7, "3.0"),
        ("x", ":.3f", "x"),
        ((1, 2), None, "(1, 2)"),
        ([np.float32(0.5)], None, "[0.5]"),
        (np.float32(0.1), None, "0.1"),
        (np.float32(0.1), ":.2f", "0.10"),
        (np.array([[1, 2], [3, 4]]), None, "[[1, 2], [3, 4]]"),
        ({"a": None}, None, "{'a': None}"),
        ("a\r\nb", None, "a\\r\\nb"),
    ],
)
def test_value_text(value: object, spec: object, text: str) -> None:
    assert value_text(value, spec) == text


def test_a_value_that_cannot_be_shown_is_named() -> None:
    assert "Hostile" in value_text(Hostile())


def test_keys_may_be_anything() -> None:
    assert line(1, {1: 2, ("a", 1): 3}).endswith("Iteration: 1  1 : 2  ('a', 1) : 3 ")
