"""A verdict is right when it names the document and what was done to it; nothing else counts."""

import json
from dataclasses import replace
from pathlib import Path

from sonde.demo.naming import is_planted, named_by, write_naming
from sonde.demo.plant import Planted
from sonde.forensics.verdict import UNKNOWN, Cause, Suspect, Verdict
from sonde.texts.signs import GARBLED_TEXT

PLANTED = Planted(line=7, update=3, seed=1, before="abc", after="ÃÐ", file="demo/corpus/train.text")


def verdict(cause: str, *suspects: Suspect) -> Verdict:
    return Verdict(run_id="r", step=3, causes=(Cause(cause=cause, title="So.", confidence=0.9, suspects=suspects),))


def suspect(line: int, file: str = "/elsewhere/demo/corpus/train.text") -> Suspect:
    return Suspect(dataset="train", sample=2, line=line, file=file, text="ÃÐ")


def test_document_and_cause_must_both_be_right() -> None:
    assert is_planted(PLANTED, named_by(verdict(GARBLED_TEXT, suspect(7))))
    assert not is_planted(PLANTED, named_by(verdict(GARBLED_TEXT, suspect(8))))
    assert not is_planted(PLANTED, named_by(verdict("hard_sample", suspect(7))))
    assert not is_planted(PLANTED, named_by(verdict(GARBLED_TEXT, suspect(7, "valid.text"))))


def test_only_the_worst_suspect_counts_as_named() -> None:
    assert not is_planted(PLANTED, named_by(verdict(GARBLED_TEXT, suspect(8), suspect(7))))


def test_a_verdict_without_suspects_names_nothing() -> None:
    named = named_by(verdict(UNKNOWN))
    assert (named.line, named.sample, named.file) == (None, None, "")
    assert not is_planted(PLANTED, named)


def test_the_file_holds_both_and_whether_they_are_equal(tmp_path: Path) -> None:
    for line, equal in ((7, True), (8, False)):
        write_naming(tmp_path / "verdict.json", PLANTED, named_by(verdict(GARBLED_TEXT, suspect(line))))
        document = json.loads((tmp_path / "verdict.json").read_text())
        assert document["equal"] is equal
        assert (document["planted"]["line"], document["named"]["line"]) == (7, line)


def test_what_was_planted_is_written_as_it_is(tmp_path: Path) -> None:
    replace(PLANTED, line=9).write(tmp_path / "planted.json")
    assert json.loads((tmp_path / "planted.json").read_text())["line"] == 9
