"""The whole road with a Hugging Face Trainer: noticed, read, replayed in a new process, diagnosed,
rolled back, resumed without it.
"""

from pathlib import Path

import pytest
from example_road import go_the_road


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_garbled_record_is_found_and_left_out_with_accumulation_workers_and_a_resume(
    tmp_path: Path,
) -> None:
    way_on = go_the_road(
        "huggingface.py", tmp_path / "run", "--accumulate", 2, "--rows", 4, "--workers", 2
    )
    assert way_on.startswith(
        f'trainer.train(resume_from_checkpoint="{tmp_path}/run-out/checkpoint-'
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_ranks_go_the_same_road(tmp_path: Path) -> None:
    way_on = go_the_road("huggingface.py", tmp_path / "run", "--rows", 4, num_ranks=2)
    assert way_on.startswith(
        f'trainer.train(resume_from_checkpoint="{tmp_path}/run-out/checkpoint-'
    )
