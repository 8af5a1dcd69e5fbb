"""How the verbs speak."""

import pytest

from sonde.cli.terminal import plain_table, screen


def test_a_piped_table_has_no_spaces_at_the_ends_of_its_lines(capsys: pytest.CaptureFixture[str]) -> None:
    table = plain_table("step", "loss", "note", right=("loss",))
    table.add_row("1", "2.5", "a long note")
    table.add_row("1000", "11.25", "")
    screen().print(table)
    assert capsys.readouterr().out == "step   loss  note\n1       2.5  a long note\n1000  11.25\n"
