"""What a result depends on beside state and batch, then and now."""

from pathlib import Path

import pytest
from replayed_runs import recorded_loss, train_small
from small_corpus import prepare_corpus

from sonde.forensics.replay import Replay
from sonde.forensics.surroundings import Surroundings, differences, settings_changes, surroundings_of_run
from sonde.records.manifest import read_manifest
from sonde.run import Run

HERE = Surroundings(
    determinism={"num_threads": 1}, versions={"torch": "2.13"}, world_size=2, git={"commit": "a"}, data={"train": "x"}
)


def test_the_same_surroundings_have_no_differences_and_what_is_unknown_has_none_either() -> None:
    assert differences(HERE, HERE) == ()
    assert differences(Surroundings(world_size=2), HERE) == ()
    assert differences(HERE, HERE._replace(versions={"numpy": "2"}, git={})) == ()


def test_every_difference_is_a_sentence_with_both_values() -> None:
    there = Surroundings(
        determinism={"num_threads": 4},
        versions={"torch": "2.12"},
        world_size=1,
        git={"commit": "b"},
        data={"train": "y"},
    )
    assert differences(HERE, there) == (
        "the num_threads was 1 and is now 4",
        "the version of torch was '2.13' and is now '2.12'",
        "the code's commit was 'a' and is now 'b'",
        "the data of train was 'x' and is now 'y'",
        "there were 2 ranks, now there are 1",
    )


def test_a_bare_run_tells_what_its_manifest_tells(tmp_path: Path) -> None:
    Run(tmp_path).close()
    found = surroundings_of_run(tmp_path, read_manifest(tmp_path))
    assert found.determinism == {}
    assert "python" in found.versions


def test_settings_of_an_earlier_start_are_told_for_its_steps_only(tmp_path: Path) -> None:
    def start(settings: dict[str, int | None], resumed: int | None) -> None:
        with Run(tmp_path, settings=settings) as run:
            if resumed is not None:
                run.event("resume", step=resumed)

    start({"clip": 1, "log_interval": 1}, None)
    start({"clip": 1, "log_interval": 2}, 10)
    start({"clip": 2, "log_interval": 2}, 20)
    manifest = read_manifest(tmp_path)
    assert settings_changes(tmp_path, manifest, 21) == ()
    assert settings_changes(tmp_path, manifest, 20) == ("the setting clip was 1 then, and was 2 later",)
    start({"clip": 2, "log_interval": 2}, 5)
    assert settings_changes(tmp_path, manifest, 20) == ()
    assert settings_changes(tmp_path, manifest, 5) != ()


@pytest.mark.slow
def test_a_replay_across_changed_settings_says_so(tmp_path: Path) -> None:
    data = prepare_corpus(tmp_path / "corpus")
    run = train_small(data, tmp_path / "run", max_updates=8)
    train_small(data, run, max_updates=12, label_smoothing=0.3, lr=3e-2)
    replay = Replay(run)
    replay.go_to(11)
    assert replay.update().loss == recorded_loss(replay, 11)
    assert replay.deviations == []
    replay.go_to(7)
    assert replay.update().loss != recorded_loss(replay, 7)
    assert "the setting label_smoothing was 0.1 then, and was 0.3 later" in replay.differences()
