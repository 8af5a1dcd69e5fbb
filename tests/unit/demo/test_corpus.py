"""The corpus of docstrings, on a library of a few files."""

import sysconfig
from pathlib import Path

import pytest

from sonde.demo.corpus import read_docstrings

FIRST = "Return the first of all words that a sentence has, or nothing."
SECOND = "Raised when there are more words in a sentence than can be said."


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    return tmp_path


def write(path: Path, *docstrings: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(f'def f{number}():\n    """{text}"""\n' for number, text in enumerate(docstrings))
    )


def test_docstrings_are_found_once_each_and_on_one_line(library: Path) -> None:
    write(library / "a.py", FIRST.replace("words that", "words\n    that"), SECOND)
    write(library / "package" / "b.py", FIRST)
    assert sorted(read_docstrings(seed=1)) == [SECOND, FIRST]


def test_docstrings_of_classes_and_modules_count_too(library: Path) -> None:
    (library / "a.py").write_text(f'"""{FIRST}"""\nclass A:\n    """{SECOND}"""\n')
    assert len(read_docstrings(seed=1)) == 2


def test_what_is_no_prose_is_left_out(library: Path) -> None:
    write(
        library / "a.py",
        "Too short.",
        f">>> f(1)  {FIRST}",
        f"-------- {FIRST}",
        "1 2 3 4 5 6 7 8 9 " * 5,
        f"ü{FIRST}",
    )
    assert read_docstrings(seed=1) == []


def test_what_was_installed_beside_the_library_is_left_out(library: Path) -> None:
    write(library / "site-packages" / "a.py", FIRST)
    write(library / "test" / "b.py", FIRST)
    write(library / "json" / "c.py", SECOND)
    assert read_docstrings(seed=1) == [SECOND]


def test_sources_are_never_run_and_unreadable_ones_are_passed_over(library: Path) -> None:
    (library / "a.py").write_text(f'"""{FIRST}"""\nraise SystemExit\n')
    (library / "b.py").write_text("def (:\n")
    (library / "c.py").write_bytes(b"# \xff\n")
    assert read_docstrings(seed=1) == [FIRST]


def test_the_order_depends_on_the_seed(library: Path) -> None:
    write(library / "a.py", *(f"{FIRST} {'Again. ' * number}" for number in range(20)))
    assert read_docstrings(seed=1) == read_docstrings(seed=1)
    assert read_docstrings(seed=1) != read_docstrings(seed=2)
