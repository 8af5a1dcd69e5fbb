"""The report of a check: its order, its width, and the way through JSON and back."""

from sonde.forensics.checks.check_report import CheckReport, RowPicture, report_of
from sonde.forensics.checks.check_rule import CheckResult, Status
from sonde.records.values import decode, encode


def result(name: str, status: Status, text: str = "It was measured.") -> CheckResult:
    advice = "Mend it." if status == "wrong" else ""
    return CheckResult(name=name, title=name, status=status, text=text, advice=advice)


def report() -> CheckReport:
    return CheckReport(
        results=(
            result("good", "fine"),
            result("bad", "wrong", "word " * 60),
            result("open", "cannot tell"),
            result("also open", "cannot tell"),
            result("foreign", "does not apply"),
        ),
        rows=(RowPicture(inputs=("a", "new\nline"), targets=("", "b")),),
        num_updates=8,
        seconds=1.5,
    )


def test_what_is_wrong_comes_first_and_what_is_fine_last() -> None:
    text = report().text()

    places = [text.index(word) for word in ("bad", "open, also open", "foreign", "good")]
    assert places == sorted(places)


def test_no_line_is_longer_than_80_columns_and_tokens_break_none() -> None:
    lines = report().text().splitlines()

    assert max(map(len, lines)) <= 80
    assert any("new⏎line" in line for line in lines)


def test_a_report_comes_back_from_json_as_it_was() -> None:
    document = decode(encode(report().document()))
    assert isinstance(document, dict)

    assert report_of(document) == report()
    assert document["format"] == "sonde-check"
    assert document["version"] == 1
