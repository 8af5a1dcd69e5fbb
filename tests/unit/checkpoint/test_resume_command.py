"""The recorded command of a script, changed so that it resumes from another checkpoint."""

from pathlib import Path

from sonde.checkpoint.digest_log import StateDigest
from sonde.checkpoint.resume_command import newest_existing, resumed_command, script_checkpoints

HERE = Path("/work/project")


def saved(step: int, path: str, *resume: str) -> StateDigest:
    return StateDigest(step=step, reason="checkpoint", path=path, resume=resume)


def test_a_checkpoint_that_was_written_over_is_of_its_last_step() -> None:
    states = [saved(10, "last.pt"), saved(20, "last.pt"), saved(15, "other.pt")]
    assert list(map(str, script_checkpoints(states))) == [
        "other.pt (after 15 steps)",
        "last.pt (after 20 steps)",
    ]
    assert list(map(str, script_checkpoints(states, before=20))) == ["other.pt (after 15 steps)"]


def test_another_checkpoint_takes_the_place_of_the_recorded_one() -> None:
    known = script_checkpoints([saved(10, "out/10"), saved(20, "out/20")])
    words = ["torchrun", "train.py", "--resume=out/10", "--lr=0.1"]
    assert resumed_command(words, known[-1], known, HERE) == [
        "torchrun",
        "train.py",
        "--resume=out/20",
        "--lr=0.1",
    ]
    words = ["python", "train.py", "--resume", "/work/project/out/20"]
    assert resumed_command(words, known[0], known, HERE) == [*words[:-1], "out/10"]
    known = script_checkpoints([saved(10, "step=10.ckpt")])
    words = ["python", "train.py", "step=10.ckpt"]
    assert resumed_command(words, known[0], known, HERE) == words


def test_the_words_of_the_script_are_added_to_a_command_that_did_not_resume() -> None:
    # torch.save was noticed first, and then the script said more about the same checkpoint.
    known = script_checkpoints([saved(20, "out/20"), saved(20, "out/20", "--resume", "out/20")])
    words = ["python", "train.py"]
    assert resumed_command(words, known[0], known, HERE) == [*words, "--resume", "out/20"]


def test_without_either_it_is_not_known_how_the_script_resumes() -> None:
    known = script_checkpoints([saved(20, "out/20")])
    assert resumed_command(["python", "train.py"], known[0], known, HERE) is None


def test_the_newest_checkpoint_is_one_that_is_still_there(tmp_path: Path) -> None:
    known = script_checkpoints([saved(10, "a.pt"), saved(20, "b.pt"), saved(30, "c.pt")])
    (tmp_path / "a.pt").touch()
    (tmp_path / "c.pt").touch()
    newest = newest_existing(known, tmp_path, before=30)
    assert newest is not None
    assert newest.path == "a.pt"
    assert newest_existing(known, tmp_path, before=10) is None
