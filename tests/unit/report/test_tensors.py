"""Tensors around the step of a verdict: which stand out, and what is shown of many."""

import math
from dataclasses import replace

import pytest

from sonde.forensics.verdict import UNKNOWN, Cause, ModuleStatistics, Verdict
from sonde.report.html.verdicts import is_outlying, ratio_text, summary, tensors


def tensor(
    norm: float, calm: float | None = 1.0, *, name: str = "layer", nonfinite: int = 0
) -> ModuleStatistics:
    return ModuleStatistics(
        module=name,
        kind="activation",
        norm=norm,
        max_abs=1.0,
        num_nonfinite=nonfinite,
        calm_norm=calm,
    )


@pytest.mark.parametrize(
    ("one", "outlying", "text"),
    [
        (tensor(1.234), False, "1.23×"),
        (tensor(4.5), True, "4.5×"),
        (tensor(0.2), True, "0.2×"),
        (tensor(math.inf), True, "∞"),
        (tensor(math.nan), True, "NaN"),
        (tensor(9.0, None), False, ""),
        (tensor(9.0, 0.0), False, ""),
        (tensor(1.0, nonfinite=2), True, "1×"),
    ],
)
def test_a_tensor_stands_out_by_its_ratio_or_by_what_is_not_finite(
    one: ModuleStatistics, outlying: bool, text: str
) -> None:
    assert (is_outlying(one), ratio_text(one)) == (outlying, text)


def test_the_summary_counts() -> None:
    assert summary((tensor(1.0), tensor(9.0))).startswith(
        "2 tensors in the order of execution; 1 of them not finite, or"
    )
    assert "all of them finite, and none beyond 4 times" in summary((tensor(1.0),))


def test_of_many_tensors_those_that_stand_out_are_shown_first_and_the_rest_folded_away() -> None:
    many = tuple(tensor(9.0 if place == 70 else 1.0, name=f"layer.{place}") for place in range(100))
    verdict = Verdict(
        run_id="x", step=3, causes=(Cause(cause=UNKNOWN, title="", confidence=0.1),), modules=many
    )
    made = tensors(verdict)
    assert made is not None
    before, _, folded = made.partition("<details>")
    assert before.count("<code") == 1
    assert "layer.70" in before
    assert folded.count("<code") == 100
    assert tensors(replace(verdict, modules=())) is None
