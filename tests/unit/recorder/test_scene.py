"""What is concluded at the scene from the rows of a batch."""

import pytest

from sonde.forensics.verdict import Suspect
from sonde.recorder.scene import SceneFacts, SuspectRow
from sonde.recorder.scene_verdict import judge
from sonde.texts.signs import KINDS, OVER_LONG, Sign


@pytest.mark.parametrize("kind", [*KINDS, ""])
def test_a_row_is_blamed_for_its_sign_if_that_is_a_cause_and_for_being_hard_otherwise(
    kind: str,
) -> None:
    row = SuspectRow(Suspect(dataset="train", sample=7, loss=9.0), (), Sign(kind, 0.9))
    others = [(3.0, 3.0)] * 4
    facts = SceneFacts(
        5,
        4.5,
        True,
        3.0,
        others,
        rows=[row],
        row_losses=[9.0, 3.0, 3.1],
        rates=[(4, 0.1), (5, 0.1)],
    )
    first, *_ = judge(facts)
    assert first.cause == ("hard_sample" if kind in ("", OVER_LONG) else kind)
    assert [suspect.sample for suspect in first.suspects] == [7]
