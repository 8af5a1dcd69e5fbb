"""Names that users give stay in their folder and apart from one another."""

import itertools

import pytest

from sonde.probe.debugger import Calls
from sonde.probe.dump import (
    MAX_FILE_BYTES,
    file_name_of,
    pass_key,
    recompute_key,
    safe_name,
    value_key,
)


def test_ordinary_names_are_written_as_in_the_manual() -> None:
    assert file_name_of(value_key("x", 0), (), "pt") == "x.0.tensor.pt"
    assert (
        file_name_of(value_key("dict_variable", 3), ("key2", "0"), "npy")
        == "dict_variable.3.tensor.key2.0.npy"
    )
    assert (
        file_name_of(value_key("layers.0.mlp_grad", 1), (), "pt") == "layers.0.mlp_grad.1.tensor.pt"
    )
    assert (
        file_name_of(pass_key(value_key("x_grad", 0), 1), ("a",), "pt")
        == "x_grad.0.pass1.tensor.a.pt"
    )


def test_the_mark_of_newer_versions_of_msprobe_is_written_on_request() -> None:
    assert file_name_of(value_key("x", 0), ("a",), "pt", "debug") == "x.0.debug.a.pt"


@pytest.mark.parametrize(
    "name",
    ["../x", "a/b", "/etc/passwd", "..", ".", "", "a\\b", "a\0b", "a\nb", "~", "%2F", "\ud800"],
)
def test_no_name_becomes_a_path(name: str) -> None:
    for quoted in (
        file_name_of(value_key(name, 0), (), "pt"),
        file_name_of(value_key("x", 0), (name,), "pt"),
    ):
        assert "/" not in quoted
        assert "\\" not in quoted
        assert "\0" not in quoted
        assert not quoted.startswith(".") or quoted.startswith(".0.tensor")
        quoted.encode()


def test_letters_of_all_languages_stay_readable() -> None:
    assert safe_name("名字_é") == "名字_é"


@pytest.mark.parametrize("mark", ["tensor", "debug"])
def test_different_names_and_ways_have_different_files(mark: str) -> None:
    words = [
        "a",
        "b",
        "a.b",
        "a/b",
        "a%2Fb",
        mark,
        f"0.{mark}",
        f"a.0.{mark}",
        "a.0.debug",
        "0",
        ".",
        "",
        "pass1",
        "a_grad",
        f"x.0.{mark}",
    ]
    words = list(dict.fromkeys(words))
    seen: dict[str, object] = {}
    for name, count, num_passes in itertools.product(words, (0, 1), (0, 1)):
        for indexes in [(), *((word,) for word in words), *itertools.product(words, words)]:
            what = (name, count, num_passes, indexes)
            key = pass_key(value_key(name, count), num_passes)
            quoted = file_name_of(key, indexes, "pt", mark)
            assert seen.setdefault(quoted, what) == what
    for name in words:
        assert file_name_of(recompute_key(value_key(name, 0)), (), "pt", mark) not in seen


def test_long_names_are_cut_and_stay_different() -> None:
    a, b = (file_name_of(value_key("é" * 300 + end, 0), (), "pt") for end in "ab")
    assert a != b
    assert max(len(a.encode()), len(b.encode())) <= MAX_FILE_BYTES + 3


def test_a_base_belongs_to_whoever_came_first() -> None:
    calls = Calls()
    assert calls.base("y") == "y"
    assert calls.base("y", "_grad") == "y_grad"
    assert calls.base("y_grad") == "y_grad~"
    assert calls.base("y_grad~") == "y_grad~~"
    assert [calls.base("y_grad"), calls.base("y", "_grad")] == ["y_grad~", "y_grad"]
    assert calls.base("z_grad") == "z_grad"
    assert calls.base("z", "_grad") == "z_grad~"
