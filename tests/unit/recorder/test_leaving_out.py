from pathlib import Path

import pytest
import torch
from recorder_loops import NUM_TOKENS, Training, batches

from sonde.data.skip_list import SkipList, write_skip_list
from sonde.errors import SettingError
from sonde.forensics.rollback import apply_rollback, plan_rollback
from sonde.recorder.batch_tree import sample_names
from sonde.recorder.options import RecorderOptions
from sonde.recorder.samples import without
from sonde.run import Run


def test_samples_are_left_out_by_number(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        dataset = list("abcdef")
        assert without(dataset, run) is dataset
        write_skip_list(run.layout.skip_list, SkipList({"train": [1, 4], "other": [0]}))
        left = without(dataset, run)
    assert [left[at] for at in range(len(left))] == ["a", "c", "d", "f"]


@pytest.mark.parametrize("padding", [0, 3])
def test_samples_are_left_out_by_content_also_when_the_batch_padded_them(
    tmp_path: Path, padding: int
) -> None:
    samples = [torch.randint(5, 200, (length,)) for length in (6, 9, 7)]
    longest = 9 + padding
    rows = torch.stack(
        [torch.nn.functional.pad(sample, (0, longest - len(sample))) for sample in samples]
    )
    write_skip_list(tmp_path / "skip-list.txt", SkipList({"content": [sample_names(rows)[0][1]]}))
    left = without([{"input_ids": sample} for sample in samples], tmp_path)
    assert [len(left[at]["input_ids"]) for at in range(len(left))] == [9, 7]


def test_what_has_no_numbers_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="generator has no __len__"):
        without((letter for letter in "ab"), tmp_path)


def test_after_a_rollback_the_script_goes_on_from_the_kept_state_without_the_sample(
    tmp_path: Path,
) -> None:
    run = tmp_path / "run"
    Training(run, settings=RecorderOptions(state_every=20)).train(100, garbled=90)
    plan = plan_rollback(run, 90)
    assert plan.checkpoint == 89  # kept just before the event
    apply_rollback(plan)
    rows = torch.cat(list(batches(90, garbled=90))[-1], dim=1)[:, :NUM_TOKENS]
    left = without(list(rows), run)
    assert len(left) == len(rows) - 1
    training = Training(run)
    assert training.recorder is not None
    assert training.recorder.restore() == 89
    before = training.everything()
    for batch in batches(2):
        training.make(batch)
    training.close()
    again = Training(run)
    assert again.recorder is not None
    assert again.recorder.restore() == 89
    assert all(torch.equal(before[name], tensor) for name, tensor in again.everything().items())
    assert again.scheduler.last_epoch == 89
    again.close()
