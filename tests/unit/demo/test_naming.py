"""A verdict is right when it names the document and what was done to it; nothing else counts."""

from sonde.demo.scenario import Planted
from sonde.forensics.verdict import UNKNOWN, Cause, Suspect, Verdict
from sonde.texts.signs import GARBLED_TEXT

PLANTED = Planted(line=7, update=3, before="abc", after="ÃÐ", file="demo/corpus/train.text")


def verdict(cause: str, *suspects: Suspect) -> Verdict:
    return Verdict(
        run_id="r",
        step=3,
        causes=(Cause(cause=cause, title="So.", confidence=0.9, suspects=suspects),),
    )


def suspect(line: int, file: str = "/elsewhere/demo/corpus/train.text") -> Suspect:
    return Suspect(dataset="train", sample=2, line=line, file=file, text="ÃÐ")


def equal(found: Verdict) -> bool:
    return bool(PLANTED.beside(found)["equal"])


def test_document_and_cause_must_both_be_right() -> None:
    assert equal(verdict(GARBLED_TEXT, suspect(7)))
    assert not equal(verdict(GARBLED_TEXT, suspect(8)))
    assert not equal(verdict("hard_sample", suspect(7)))
    assert not equal(verdict(GARBLED_TEXT, suspect(7, "valid.text")))


def test_only_the_worst_suspect_counts_as_named() -> None:
    assert not equal(verdict(GARBLED_TEXT, suspect(8), suspect(7)))


def test_a_verdict_without_suspects_names_nothing() -> None:
    document = PLANTED.beside(verdict(UNKNOWN))
    assert (document["named"]["line"], document["named"]["sample"], document["equal"]) == (
        None,
        None,
        False,
    )


def test_planted_and_named_stand_side_by_side() -> None:
    document = PLANTED.beside(verdict(GARBLED_TEXT, suspect(8)))
    assert (document["planted"]["line"], document["named"]["line"]) == (7, 8)
