"""The records of updates as columns, taken in as they are appended."""

from pathlib import Path

import numpy as np
import pytest

from sonde.report.run_curves import Updates


def record(step: int, loss: float | str, **more: object) -> bytes:
    written = '"NaN"' if loss == "NaN" else str(loss)
    rest = "".join(f',"{name}":{value}' for name, value in more.items())
    numbers = f'"loss":{written},"weight":8.0,"lr":0.1{rest}'
    return f'{{"type":"STEP","step":{step},"epoch":1,{numbers}}}\n'.encode()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "steps.rank0.jsonl"


def test_what_is_appended_is_taken_in_once(path: Path) -> None:
    updates = Updates(path)
    updates.refresh()
    assert len(updates.steps) == 0
    path.write_bytes(record(1, 5.0) + record(2, 4.0)[:20])
    updates.refresh()
    assert updates.steps.tolist() == [1]
    path.write_bytes(record(1, 5.0) + record(2, 4.0) + record(3, 3.0, grad_norm=0.5))
    updates.refresh()
    updates.refresh()
    assert updates.steps.tolist() == [1, 2, 3]
    assert updates.columns["loss"].tolist() == [5.0, 4.0, 3.0]
    assert np.isnan(updates.columns["grad_norm"][:2]).all()
    assert updates.columns["grad_norm"][2] == 0.5


def test_an_array_that_was_handed_out_stays_as_it_was(path: Path) -> None:
    path.write_bytes(record(1, 5.0))
    updates = Updates(path)
    updates.refresh()
    before = updates.columns["loss"]
    with path.open("ab") as file:
        file.write(record(2, 4.0))
    updates.refresh()
    assert (len(before), len(updates.columns["loss"])) == (1, 2)


def test_a_restart_inside_a_block_and_between_blocks_replaces_what_followed(path: Path) -> None:
    path.write_bytes(b"".join(record(step, 5.0) for step in range(1, 11)) + record(8, 1.0))
    updates = Updates(path)
    updates.refresh()
    with path.open("ab") as file:
        file.write(record(4, 2.0) + record(5, 2.0))
    updates.refresh()
    assert updates.steps.tolist() == [1, 2, 3, 4, 5]
    assert updates.columns["loss"].tolist() == [5.0, 5.0, 5.0, 2.0, 2.0]
    assert [columns["step"].tolist() for columns in updates.replaced] == [
        [8, 9, 10],
        [4, 5, 6, 7, 8],
    ]


def test_a_loss_that_is_not_a_number_is_one_among_the_others(path: Path) -> None:
    path.write_bytes(record(1, 5.0) + record(2, "NaN") + record(3, 4.0, skipped='"not finite"'))
    updates = Updates(path)
    updates.refresh()
    assert np.isnan(updates.columns["loss"][1])
    assert updates.num_skipped == 1
    assert "loss" in updates.filled
    assert "grad_norm" not in updates.filled


def test_a_file_that_was_replaced_is_read_anew(path: Path) -> None:
    path.write_bytes(record(1, 5.0) + record(2, 4.0))
    updates = Updates(path)
    updates.refresh()
    path.with_name("other").write_bytes(record(7, 1.0))
    path.with_name("other").replace(path)
    updates.refresh()
    assert updates.steps.tolist() == [7]
    path.unlink()
    updates.refresh()
    assert len(updates.steps) == 0


@pytest.mark.parametrize(
    "odd",
    [b"\0\0\0\n", b"{torn\n", b"x" * 3_000_000 + b"\n", b'{"type":"EVENT"}\n', b"\n\r\n", b"[1]\n"],
)
def test_odd_lines_hide_no_others(path: Path, odd: bytes) -> None:
    path.write_bytes(record(1, 5.0) + odd + record(2, 4.0))
    updates = Updates(path)
    updates.refresh()
    assert updates.steps.tolist() == [1, 2]
    assert updates.num_bad == 0


def test_what_is_no_file_has_no_updates(tmp_path: Path) -> None:
    updates = Updates(tmp_path)
    updates.refresh()
    assert len(updates.steps) == 0
