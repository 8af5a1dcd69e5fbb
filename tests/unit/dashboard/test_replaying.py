"""The commands that a page offers: those that work, as they work."""

from pathlib import Path

from sonde.dashboard.replaying import how_to_replay, next_commands
from sonde.forensics.verdict import UNKNOWN, Cause, Verdict, write_verdict
from sonde.records.manifest import read_manifest
from sonde.run import Run
from sonde.train.settings import RECIPE


def make(directory: Path, **more: object) -> Path:
    with Run(directory, **more):  # type: ignore[arg-type]
        pass
    return directory


def keep_states(run: Path, *steps: int) -> None:
    for step in steps:
        (run / "flight" / "states" / f"step-{step:012d}").mkdir(parents=True)


def test_a_run_of_sonde_train_needs_no_flag(tmp_path: Path) -> None:
    run = make(tmp_path / "run", config={"recipe": RECIPE})
    found = how_to_replay(run, read_manifest(run), 5)
    assert (found.flags, found.problem, found.script) == ((), "", "")


def test_a_run_of_ones_own_loop_is_replayed_by_its_script(tmp_path: Path) -> None:
    run = make(tmp_path / "my run")
    keep_states(run, 200, 300)
    found = how_to_replay(run, read_manifest(run), 301)
    assert (found.flags, found.problem) == (("--again",), "")
    assert "(in " in found.script
    lines = dict(next_commands(run, 301, found, has_verdict=True, has_samples=True))
    assert lines["find the cause again"] == f"sonde diagnose '{run}' --step 301 --again"
    assert "find the cause" not in lines
    assert lines["replay the step, bit for bit"] == f"sonde replay '{run}' --step 301 --again"
    assert lines["skip its worst sample"] == f"sonde skip '{run}' --step 301 --worst 1"


def test_without_a_verdict_the_cause_is_to_be_found_for_the_first_time(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    keep_states(run, 200, 300)
    found = how_to_replay(run, read_manifest(run), 301)
    lines = dict(next_commands(run, 301, found, has_verdict=False, has_samples=True))
    assert lines["find the cause"] == f"sonde diagnose {run} --step 301 --again"
    assert "find the cause again" not in lines


def test_a_step_before_every_kept_state_is_not_offered(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    keep_states(run, 200, 300)
    found = how_to_replay(run, read_manifest(run), 200)
    assert "Step 200 can no longer be replayed" in found.problem
    assert "the oldest kept state is after step 200" in found.problem
    lines = dict(next_commands(run, 200, found, has_verdict=False, has_samples=False))
    assert "find the cause" not in lines


def test_a_run_that_kept_nothing_or_cannot_be_read_says_so(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    assert "kept no states and batches" in how_to_replay(run, read_manifest(run), 5).problem
    assert "manifest of the run cannot be read" in how_to_replay(run, None, 5).problem


def test_a_recipe_is_named_before_it_is_trusted(tmp_path: Path) -> None:
    run = make(tmp_path / "run", recipe="mine:build")
    found = how_to_replay(run, read_manifest(run), 5)
    assert (found.flags, found.script) == (("--trust-recipe",), "mine:build")


def test_a_rollback_that_would_be_refused_is_not_offered(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    keep_states(run, 200)
    found = how_to_replay(run, read_manifest(run), 301)
    for cause, is_offered in ((UNKNOWN, False), ("garbled_text", True)):
        first = Cause(cause=cause, title="x", confidence=0.5)
        write_verdict(run, Verdict(run_id="x", step=301, causes=(first,), time=1.0))
        lines = dict(next_commands(run, 301, found, has_verdict=True, has_samples=False))
        assert ("plan a rollback" in lines) is is_offered


def test_a_run_that_cannot_be_replayed_is_read_off_its_curve(tmp_path: Path) -> None:
    run = make(tmp_path / "run")
    found = how_to_replay(run, read_manifest(run), 5)
    lines = next_commands(run, 5, found, has_verdict=False, has_samples=False)
    assert lines == [("read the cause off the curve", f"sonde why {run}")]
