"""What every update did, read back."""

from pathlib import Path

from sonde.records.append import RecordFile
from sonde.records.journal import read_steps
from sonde.records.layout import STEPS, RunLayout


def test_steps_come_back_in_order_and_the_last_record_of_a_step_counts(tmp_path: Path) -> None:
    with RecordFile(RunLayout(tmp_path).record_file(STEPS, 0)) as file:
        for step, loss in [(1, 0.1), (2, 0.2), (2, float("nan")), (3, 1e-323)]:
            file.append(
                {
                    "type": "STEP",
                    "step": step,
                    "epoch": 1,
                    "loss": loss,
                    "weight": 8.0,
                    "grad_norm": None,
                    "lr": 0.5,
                }
            )
    steps = read_steps(tmp_path)
    assert list(steps.by_number) == [1, 2, 3]
    assert steps.by_number[2].loss != steps.by_number[2].loss
    assert steps.by_number[3].loss == 1e-323
    assert steps.by_number[1].grad_norm is None
    assert steps.num_bad == 0


def test_what_is_no_step_is_counted_and_passed_over(tmp_path: Path) -> None:
    path = RunLayout(tmp_path).record_file(STEPS, 0)
    path.parent.mkdir()
    path.write_text('{"type":"STEP","step":"x"}\nnoise\n{"type":"OTHER"}\n')
    steps = read_steps(tmp_path)
    assert not steps.by_number
    assert steps.num_bad == 2


def test_a_run_without_steps_has_none(tmp_path: Path) -> None:
    assert not read_steps(tmp_path).by_number
