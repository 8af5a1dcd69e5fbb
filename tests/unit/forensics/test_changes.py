"""What changed from one start of a run to the next, and until now."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from replayed_runs import recorded_loss, train_small
from small_corpus import prepare_corpus

from sonde.errors import SettingError
from sonde.forensics.changes import (
    data_change,
    differences,
    environment_of_run,
    settings_changes,
    start_changes,
)
from sonde.forensics.history import HARMLESS
from sonde.forensics.replay import Replay
from sonde.records.layout import EVENTS, RunLayout
from sonde.records.manifest import Manifest, read_manifest
from sonde.run import Run
from sonde.train.settings import RecipeSettings


def write_events(run: Path, *events: dict[str, Any]) -> Path:
    path = RunLayout(run).record_file(EVENTS, 0)
    path.parent.mkdir(parents=True)
    path.write_text(
        "".join(json.dumps({"type": "EVENT", "rank": 0, **event}) + "\n" for event in events)
    )
    return run


def start(**details: Any) -> dict[str, Any]:
    usual = {
        "versions": {"torch": "2.12"},
        "git": {"commit": "a" * 40},
        "world_size": 1,
        "command": ["sonde", "train"],
    }
    return {"event": "start", **usual, **details}


def test_a_restart_with_other_packages_code_and_ranks_is_told(tmp_path: Path) -> None:
    other = start(
        versions={"torch": "2.13"},
        git={"commit": "b" * 40},
        world_size=2,
        command=["sonde", "train", "--lr=1"],
    )
    run = write_events(tmp_path, start(), other, {"event": "resume", "step": 40})
    (change,) = start_changes(run, None)
    assert change.step == 40
    assert change.what == (
        "the version of torch was '2.12' and became '2.13'",
        f"the code's commit was {'a' * 40!r} and became {'b' * 40!r}",
        "there were 1 ranks, then 2",
        "the command line is another",
    )


def test_a_restart_like_the_start_before_it_is_no_change(tmp_path: Path) -> None:
    run = write_events(tmp_path, start(), start(), {"event": "resume", "step": 40})
    assert start_changes(run, {}) == []


def test_each_restart_tells_the_settings_that_it_changed_and_not_those_of_a_newer_version(
    tmp_path: Path,
) -> None:
    first = {"dropout": 0.1, "max_updates": 50}
    second = {"dropout": 0.9, "max_updates": 90, "clip_norm": 0.5}
    run = write_events(
        tmp_path,
        start(),
        start(settings_before=first),
        {"event": "resume", "step": 40},
        start(settings_before=second),
        {"event": "resume", "step": 60},
    )
    one, other = start_changes(run, {"dropout": 0.9, "max_updates": 90, "clip_norm": 1.0})
    assert (one.step, one.settings, one.what) == (
        40,
        ("dropout",),
        ("dropout was 0.1 and became 0.9",),
    )
    assert (other.step, other.settings) == (60, ("clip_norm",))


def test_the_settings_that_cannot_matter_are_settings_of_the_recipe() -> None:
    assert set(HARMLESS) - {"recipe"} <= {field.name for field in fields(RecipeSettings)}


def test_a_run_that_fingerprinted_nothing_cannot_have_changed(tmp_path: Path) -> None:
    assert data_change(Manifest(run_id="r", created=1.0, settings={"data": str(tmp_path)})) is None


def test_data_that_is_not_where_it_was_is_asked_for(tmp_path: Path) -> None:
    manifest = Manifest(
        run_id="r", created=1.0, settings={"data": str(tmp_path / "gone")}, data={"train.en": "0"}
    )
    with pytest.raises(SettingError, match="gone"):
        data_change(manifest)


HERE: dict[str, Any] = {
    "determinism": {"num_threads": 1},
    "versions": {"torch": "2.13"},
    "world_size": 2,
    "git": {"commit": "a"},
    "data": {"train": "x"},
}


def test_the_same_surroundings_have_no_differences_and_what_is_unknown_has_none_either() -> None:
    assert differences(HERE, HERE) == ()
    assert differences({"world_size": 2}, HERE) == ()
    assert differences(HERE, {**HERE, "versions": {"numpy": "2"}, "git": {}}) == ()


def test_every_difference_is_a_sentence_with_both_values() -> None:
    there = {
        "determinism": {"num_threads": 4},
        "versions": {"torch": "2.12"},
        "world_size": 1,
        "git": {"commit": "b"},
        "data": {"train": "y"},
    }
    assert differences(HERE, there) == (
        "the num_threads was 1 and became 4",
        "the version of torch was '2.13' and became '2.12'",
        "the code's commit was 'a' and became 'b'",
        "the data of train was 'x' and became 'y'",
        "there were 2 ranks, then 1",
    )


def test_a_bare_run_tells_what_its_manifest_tells(tmp_path: Path) -> None:
    Run(tmp_path).close()
    found = environment_of_run(tmp_path, read_manifest(tmp_path))
    assert not found["determinism"]
    assert "python" in found["versions"]


def test_settings_of_an_earlier_start_are_told_for_its_steps_only(tmp_path: Path) -> None:
    def start(settings: dict[str, int | None], resumed: int | None) -> None:
        with Run(tmp_path, config=settings) as run:
            if resumed is not None:
                run.event("resume", step=resumed)

    start({"clip": 1, "log_interval": 1}, None)
    start({"clip": 1, "log_interval": 2}, 10)
    start({"clip": 2, "log_interval": 2}, 20)
    manifest = read_manifest(tmp_path)
    assert settings_changes(tmp_path, manifest, 21) == ()
    assert settings_changes(tmp_path, manifest, 20) == (
        "the setting clip was 1 then, and was 2 later",
    )
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
