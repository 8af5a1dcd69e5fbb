"""Elements of HTML: what is not one is text."""

import math

import pytest

from sonde.report.html.markup import Markup, bar, group, pairs, table, tag


def test_text_is_escaped_and_elements_are_not() -> None:
    assert (
        tag("p", "a < b", tag("b", "&"), class_="note")
        == '<p class="note">a &lt; b<b>&amp;</b></p>'
    )


def test_attributes_are_escaped_renamed_and_left_out() -> None:
    made = tag("details", 7, open=True, hidden=False, title='"><x', data_from=3, id=None)
    assert made == '<details open title="&quot;&gt;&lt;x" data-from="3">7</details>'


def test_children_may_be_nested_and_nothing() -> None:
    assert tag("ul", [tag("li", "a"), None, ["b", ["c"]]]) == "<ul><li>a</li>bc</ul>"
    assert group(None) == ""


def test_elements_without_content_have_no_end() -> None:
    assert tag("meta", charset="utf-8") == '<meta charset="utf-8">'
    assert tag("rect", width="1") == '<rect width="1"/>'


def test_text_made_of_markup_is_text_again() -> None:
    bold = tag("b", "x")
    assert isinstance(bold, Markup)
    assert tag("p", bold.upper()) == "<p>&lt;B&gt;X&lt;/B&gt;</p>"
    assert tag("p", f"{bold}") == "<p>&lt;b&gt;x&lt;/b&gt;</p>"


def test_tables_and_pairs_escape_their_cells() -> None:
    assert '<td class="n">&lt;</td>' in table(("a",), [["<"]], right=("a",))
    assert table(("a", "b"), [["", "x"], [None, "y"]]).count("<td>") == 2
    assert pairs([("n", "<"), ("empty", ""), ("none", None)]).count("<dt>") == 1


@pytest.mark.parametrize(
    ("share", "width"), [(0.5, "50"), (7, "100"), (-1, "0"), (math.nan, "0"), (math.inf, "100")]
)
def test_a_bar_is_never_fuller_than_full(share: float, width: str) -> None:
    assert f'class="fill" width="{width}"' in bar(share)
