"""The causes about a resume: what its report says, and how far it reaches."""

from pathlib import Path

from resume_loops import first_start, resume

from sonde.forensics.causes import rules
from sonde.forensics.causes.resume_part import RULES, find, last_report


def test_causes_name_what_a_restart_lost_and_nothing_else(tmp_path: Path) -> None:
    first_start(tmp_path)
    resume(tmp_path, lambda loop: loop.load(without=("scaler",)))
    run = tmp_path / "run"
    report = last_report(run, 22)
    assert [name for name in RULES if find(name, report, 22)] == ["resume_scaler"]
    assert last_report(run, 20) is None
    near = find("resume_scaler", report, 30)
    far = find("resume_scaler", report, 3000)
    assert near is not None
    assert far is not None
    assert far.score < near.score
    order = list(rules())
    assert max(order.index(name) for name in RULES) < order.index("garbled_text")
