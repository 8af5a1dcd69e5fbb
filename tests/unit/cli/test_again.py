"""`--again` finds the newest checkpoint of the script before the step, or says what to type."""

from pathlib import Path

import pytest

from sonde.checkpoint.digest_log import StateDigest, as_record
from sonde.cli.again import from_checkpoint
from sonde.errors import SettingError
from sonde.records.layout import DIGESTS
from sonde.run import Run

WORDS = ["python", "train.py"]


def recorded(folder: Path, *checkpoints: StateDigest) -> Path:
    with Run(folder / "run") as run:
        for checkpoint in checkpoints:
            run.records(DIGESTS).append(as_record(checkpoint))
            (folder / checkpoint.path).touch()
    return folder / "run"


def saved(step: int, *, says_how: bool = True) -> StateDigest:
    path = f"{step}.pt"
    resume = ["--resume", path] if says_how else []
    return StateDigest(step=step, reason="checkpoint", path=path, resume=resume)


def test_the_newest_checkpoint_before_the_step_that_is_there_is_taken(tmp_path: Path) -> None:
    run = recorded(tmp_path, saved(10), saved(20), saved(30))
    words, origin = from_checkpoint(run, WORDS, tmp_path, 25)
    assert words == [*WORDS, "--resume", "20.pt"]
    assert origin == "20.pt (after 20 steps)"
    (tmp_path / "20.pt").unlink()
    words, _ = from_checkpoint(run, WORDS, tmp_path, 25)
    assert words == [*WORDS, "--resume", "10.pt"]


def test_a_step_before_all_checkpoints_is_replayed_from_the_beginning(tmp_path: Path) -> None:
    run = recorded(tmp_path, saved(10))
    assert from_checkpoint(run, WORDS, tmp_path, 7) == (WORDS, "")


def test_what_to_type_is_said_if_the_script_does_not_say_how_it_resumes(tmp_path: Path) -> None:
    run = recorded(tmp_path, saved(10, says_how=False))
    with pytest.raises(SettingError) as refused:
        from_checkpoint(run, WORDS, tmp_path, 12)
    assert "10.pt (after 10 steps)" in refused.value.message
    assert f"sonde replay {run} --step 12 -- python train.py" in str(refused.value.hint)
