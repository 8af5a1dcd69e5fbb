"""Numbers, times and foreign text as they are shown."""

import math

import pytest

from sonde.report import wording


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, ""),
        (0.1 + 0.2, "0.3"),
        (1234567, "1,234,567"),
        (18465.0, "18,465"),
        (2.0, "2"),
        (1e-7, "1e-07"),
        (math.nan, "NaN"),
        (math.inf, "∞"),
        (-math.inf, "−∞"),
        (True, "True"),
        ("text", "text"),
    ],
)
def test_numbers(value: object, text: str) -> None:
    assert wording.number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 s"),
        (0.0021, "2.1 ms"),
        (3.24, "3.2 s"),
        (250, "4 min 10 s"),
        (7500, "2 h 5 min"),
        (math.nan, "nan s"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert wording.duration(seconds) == text


def test_moments_are_in_universal_time_and_never_fail() -> None:
    assert wording.moment(0) == "1970-01-01 00:00:00 UTC"
    assert wording.moment(1e300) == "1e+300"
    assert wording.moment(math.nan) == "nan"


def test_sizes_and_shares() -> None:
    assert [wording.size(num) for num in (17, 1_400_000, 3 * 10**15)] == [
        "17 bytes",
        "1.4 MB",
        "3.0 PB",
    ]
    assert [wording.percent(share) for share in (0, 0.004, 0.93, 1, math.nan)] == [
        "0%",
        "0.4%",
        "93%",
        "100%",
        "NaN",
    ]


def test_what_cannot_be_seen_is_named() -> None:
    assert wording.visible("a\tb\nc ä 漢") == "a\tb\nc ä 漢"
    assert wording.visible("\x1b[31m\u202e\ud800\x00") == r"\x1b[31m\u202e\ud800\x00"


def test_long_text_says_what_is_missing() -> None:
    assert wording.shortened("abcdef", 6) == "abcdef"
    assert wording.shortened("abcdef", 2) == "ab… (4 more characters)"


def test_settings_are_rows_with_dotted_names() -> None:
    settings = {"a": 1, "b": {"c": [1, 2], "d": {"e": math.nan}}, "f": {}, "g": "text", "h": None}
    assert wording.setting_rows(settings) == [
        ("a", "1"),
        ("b.c", "[1,2]"),
        ("b.d.e", '"NaN"'),
        ("f", "{}"),
        ("g", "text"),
        ("h", "null"),
    ]
    assert wording.setting_rows(None) == []
    assert wording.setting_rows([1]) == [("settings", "[1]")]
