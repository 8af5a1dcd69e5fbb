"""What changed from one start of a run to the next."""

import json
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sonde.errors import SettingError
from sonde.forensics.changes import HARMLESS, data_change, start_changes
from sonde.records.layout import EVENTS, RunLayout
from sonde.records.manifest import Manifest
from sonde.train.settings import RecipeSettings


def write_events(run: Path, *events: dict[str, Any]) -> Path:
    path = RunLayout(run).record_file(EVENTS, 0)
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps({"type": "EVENT", "rank": 0, **event}) + "\n" for event in events))
    return run


def start(**details: Any) -> dict[str, Any]:
    usual = {"versions": {"torch": "2.12"}, "git": {"commit": "a" * 40}, "world_size": 1, "command": ["sonde", "train"]}
    return {"event": "start", **usual, **details}


def test_a_restart_with_other_packages_code_and_ranks_is_told(tmp_path: Path) -> None:
    other = start(
        versions={"torch": "2.13"}, git={"commit": "b" * 40}, world_size=2, command=["sonde", "train", "--lr=1"]
    )
    run = write_events(tmp_path, start(), other, {"event": "resume", "step": 40})
    (change,) = start_changes(run, None)
    assert change.step == 40
    assert change.what == (
        "torch was 2.12 and became 2.13",
        "the code went from commit aaaaaaaaaaaa to bbbbbbbbbbbb",
        "there were 1 ranks and then 2",
        "the command line is another",
    )


def test_a_restart_like_the_start_before_it_is_no_change(tmp_path: Path) -> None:
    run = write_events(tmp_path, start(), start(), {"event": "resume", "step": 40})
    assert start_changes(run, {}) == []


def test_each_restart_tells_the_settings_that_it_changed_and_not_those_of_a_newer_version(tmp_path: Path) -> None:
    first, second = {"dropout": 0.1, "max_updates": 50}, {"dropout": 0.9, "max_updates": 90, "clip_norm": 0.5}
    run = write_events(
        tmp_path,
        start(),
        start(settings_before=first),
        {"event": "resume", "step": 40},
        start(settings_before=second),
        {"event": "resume", "step": 60},
    )
    one, other = start_changes(run, {"dropout": 0.9, "max_updates": 90, "clip_norm": 1.0})
    assert (one.step, one.settings, one.what) == (40, ("dropout",), ("dropout was 0.1 and became 0.9",))
    assert (other.step, other.settings) == (60, ("clip_norm",))


def test_the_settings_that_cannot_matter_are_settings_of_the_recipe() -> None:
    assert set(HARMLESS) - {"recipe"} <= {field.name for field in fields(RecipeSettings)}


def test_a_run_that_fingerprinted_nothing_cannot_have_changed(tmp_path: Path) -> None:
    assert data_change(Manifest(run_id="r", created=1.0, settings={"data": str(tmp_path)})) is None


def test_data_that_is_not_where_it_was_is_asked_for(tmp_path: Path) -> None:
    manifest = Manifest(run_id="r", created=1.0, settings={"data": str(tmp_path / "gone")}, data={"train.en": "0"})
    with pytest.raises(SettingError, match="gone"):
        data_change(manifest)
