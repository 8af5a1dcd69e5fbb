"""Any text at all inside a report: a parser gives back that text and nothing else."""

from html.parser import HTMLParser

from hypothesis import example, given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from sonde.report.html.markup import tag
from sonde.report.markdown import escape, fenced, table_lines
from sonde.report.wording import visible

ANY_TEXT = st.text(st.characters(), max_size=60) | st.text(
    "<>&'\"/!-#*_`[]()|\\:. \n1aw", max_size=40
)
PARSER = MarkdownIt("commonmark", {"html": True}).enable("table").enable("strikethrough")


class Seen(HTMLParser):
    """The elements and the text of a document."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.titles: list[str | None] = []
        self.text = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.titles += [value for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


@given(ANY_TEXT)
def test_html_gives_back_the_text_and_no_element(text: str) -> None:
    seen = Seen(tag("p", text, title=text))
    assert seen.tags == ["p"]
    assert seen.text == visible(text)
    assert seen.titles == [visible(text)]


@given(ANY_TEXT)
@example("1.")
@example("a\\")
@example("&amp;")
def test_markdown_gives_back_the_text_on_one_line(text: str) -> None:
    line = " ".join(visible(text).split())
    inline = [token for token in PARSER.parse(escape(text)) if token.type == "inline"]
    assert "".join(child.content for token in inline for child in token.children or ()) == line
    assert {child.type for token in inline for child in token.children or ()} <= {
        "text",
        "text_special",
    }
    cells = [
        token
        for token in PARSER.parse(table_lines([["head"], [escape(text)]], has_head=True))
        if token.type == "inline"
    ]
    assert ["".join(child.content for child in cell.children or ()) for cell in cells] == [
        "head",
        line,
    ]


@given(ANY_TEXT)
def test_a_fence_holds_any_text(text: str) -> None:
    (token,) = PARSER.parse(fenced(text))
    assert token.type == "fence"
    assert token.content == visible(text) + "\n"
