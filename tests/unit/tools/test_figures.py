"""The page and the picture of the benchmarks say what the results say."""

from xml.etree import ElementTree

import figures
import pytest


def test_page_and_picture_are_those_of_the_results() -> None:
    found, _ = figures.measured(figures.RESULTS.read_text(encoding="utf-8"))
    hint = "run tools/figures.py"
    assert figures.PAGE.read_text(encoding="utf-8") == figures.page(found), hint
    assert figures.PICTURE.read_text(encoding="utf-8") == figures.picture(found), hint


def test_a_rate_is_better_when_higher_and_a_cost_when_lower() -> None:
    results = """# Benchmarks

## metrics

| sonde | 0.5 | 1.0 |
| torchmetrics MeanMetric | 200.00 | 400 |

## generate

sonde float32                  1,200  2x
Hugging Face float32           600  1x
"""
    found, missing = figures.measured(results)
    assert [(measured.figure.peer, measured.ratio) for measured in found] == [
        ("torchmetrics", 400.0),
        ("Hugging Face generate", 2.0),
    ]
    assert len(missing) == len(figures.FIGURES) - 2


@pytest.mark.parametrize("ratio", [0.01, 0.5, 1.0, 3.0, 5000.0])
def test_every_bar_lies_in_the_picture(ratio: float) -> None:
    one = figures.Measured(figures.FIGURES[-1], ours=1.0, theirs=ratio)
    tree = ElementTree.fromstring(figures.picture([one]))
    (bar,) = tree.iter("{http://www.w3.org/2000/svg}rect")
    left = float(bar.attrib["x"])
    width = float(bar.attrib["width"])
    assert 0 < left <= left + width <= 800
    assert bar.attrib["class"] == ("bar" if ratio >= 1 else "slow")
