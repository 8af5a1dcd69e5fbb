"""The report as Markdown, read back by a Markdown parser: hostile text stays text there too."""

import pytest
from eventful_run import HOSTILE
from markdown_it import MarkdownIt
from markdown_it.token import Token

from sonde.report.facts import RunFacts
from sonde.report.markdown import escape, fenced, render_markdown, table_lines


def parse(text: str) -> list[Token]:
    return (
        MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough").parse(text)
    )


def inline_types(tokens: list[Token]) -> set[str]:
    return {child.type for token in tokens for child in token.children or ()}


@pytest.fixture(scope="module")
def tokens(facts: RunFacts) -> list[Token]:
    return parse(render_markdown(facts))


def test_the_document_has_only_what_we_put_there(tokens: list[Token]) -> None:
    assert "html_block" not in {token.type for token in tokens}
    assert inline_types(tokens) <= {"text", "strong_open", "strong_close", "text_special"}
    headings = [
        tokens[at + 1].content
        for at, token in enumerate(tokens)
        if (token.type, token.tag) == ("heading_open", "h2")
    ]
    assert headings == [
        "Not everything could be read",
        "What happened at step 300",
        "Loss",
        "Events",
        "Tensors at step 300",
        "Time",
        "Checkpoints",
        "Samples left out",
        "Settings and versions",
    ]


def test_hostile_text_is_there_as_text(tokens: list[Token]) -> None:
    text = "".join(child.content for token in tokens for child in token.children or ())
    for hostile in HOSTILE[:5]:
        assert hostile in text


@pytest.mark.parametrize(
    "text",
    [
        "# head",
        "- item",
        "+ item",
        "1. item",
        "12) item",
        "> quote",
        "=====",
        "---",
        "a | b",
        "`code`",
        "~~gone~~",
        "![x](y)",
    ],
)
def test_no_beginning_of_a_line_means_anything(text: str) -> None:
    tokens = parse(escape(text))
    assert [token.type for token in tokens] == ["paragraph_open", "inline", "paragraph_close"]
    assert "".join(child.content for child in tokens[1].children or ()) == text
    (cell,) = [
        token
        for token in parse(table_lines([["a"], [escape(text)]], has_head=True))
        if token.type == "inline" and token.content != "a"
    ]
    assert "".join(child.content for child in cell.children or ()) == text


def test_text_of_several_lines_becomes_one() -> None:
    assert escape("a\n\n\tb") == "a b"


@pytest.mark.parametrize("text", ["```\nx\n```", "``````", "~~~\n</details>", "plain"])
def test_a_fence_cannot_be_closed_from_inside(text: str) -> None:
    (token,) = parse(fenced(text))
    assert token.type == "fence"
    assert token.content == text + "\n"
