"""docs/questions.md: every question of the notes is there, and every test that an answer names
exists.
"""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "questions.md").read_text()
SECTIONS = {section.partition("\n")[0]: section for section in PAGE.split("\n## ")[1:]}
TEST = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def test_each_question_is_answered_with_a_test() -> None:
    assert len(SECTIONS) == 22
    assert [title for title, section in SECTIONS.items() if not TEST.search(section)] == []


def test_every_test_that_is_named_exists() -> None:
    named = TEST.findall(PAGE)
    missing = [test for path, test in named if f"\ndef {test}(" not in (ROOT / path).read_text()]
    assert named
    assert missing == []
