"""From a spike to a skip list, recorded in the run."""

import dataclasses
from pathlib import Path

import pytest

from sonde.data.skip_list import read_skip_list
from sonde.errors import SettingError
from sonde.records.layout import RunLayout
from sonde.records.manifest import RUNNING, read_manifest, write_manifest
from sonde.records.reader import read_records
from sonde.run import Run
from sonde.spikes.detectors import ThresholdRule
from sonde.spikes.recorder import SpikeRecorder, SpikeSettings
from sonde.spikes.spike_log import skip_step


def test_all_samples_of_a_step_or_the_worst_few_go_onto_the_list(spiked_run: Path) -> None:
    first = skip_step(spiked_run, 8, worst=1)
    assert first.path == spiked_run / "skip-list.txt"
    assert first.added.samples("train").tolist() == [5]
    second = skip_step(spiked_run, 8)
    assert second.added.samples("train").tolist() == [1, 8]
    assert second.num_known == 1
    assert read_skip_list(first.path).samples("train").tolist() == [1, 5, 8]
    assert "worst 1 samples of step 8" in first.path.read_text()


def test_the_samples_of_a_step_before_the_spike_can_be_skipped_too(spiked_run: Path) -> None:
    assert skip_step(spiked_run, 7).added.samples("train").tolist() == [1, 5, 7]


def test_the_run_tells_what_it_was_told_to_skip(spiked_run: Path) -> None:
    skipped = skip_step(spiked_run, 8, worst=1)
    (note,) = read_manifest(spiked_run).other["skip_lists"]
    assert (note["path"], note["step"], note["num_samples"]) == (str(skipped.path), 8, 1)
    *_, event = read_records(RunLayout(spiked_run).record_file("events", 0))
    assert (event["event"], event["samples"], event["sha256"]) == (
        "skip",
        {"train": [5]},
        note["sha256"],
    )
    # A second time nothing is new, and nothing is noted.
    skip_step(spiked_run, 8, worst=1)
    assert len(read_manifest(spiked_run).other["skip_lists"]) == 1
    with Run(spiked_run) as resumed:
        assert resumed.manifest.other["skip_lists"] == [note]


def test_the_manifest_of_a_live_run_is_left_to_it(spiked_run: Path) -> None:
    with Run(spiked_run):
        skip_step(spiked_run, 8)
        assert "skip_lists" not in read_manifest(spiked_run).other
    *_, event, _ = read_records(RunLayout(spiked_run).record_file("events", 0))
    assert event["event"] == "skip"
    (note,) = read_manifest(spiked_run).other["skip_lists"]
    assert (note["step"], note["sha256"]) == (8, event["sha256"])


def test_a_list_of_ones_own_is_added_to_and_keeps_its_lines(
    spiked_run: Path, tmp_path: Path
) -> None:
    path = tmp_path / "mine.txt"
    path.write_text("wiki 7  by hand\n")
    skip_step(spiked_run, 8, path=path)
    assert path.read_text().startswith("wiki 7  by hand\n")
    assert [*read_skip_list(path).entries] == ["wiki", "train"]


def test_what_a_list_cannot_name_is_refused(tmp_path: Path, spiked_run: Path) -> None:
    with pytest.raises(SettingError, match="worst"):
        skip_step(spiked_run, 8, worst=0)
    with pytest.raises(SettingError, match="no spike was recorded"):
        skip_step(spiked_run, 1000)
    for name, ids, reason in (
        ("plain", [1, 2], "cannot stand in a skip list"),
        ("none", None, "recorded no samples"),
    ):
        with Run(tmp_path / name) as run:
            settings = SpikeSettings(rule=ThresholdRule(above=5.0))
            with SpikeRecorder(run.records("spikes"), settings=settings) as recorder:
                recorder.observe(1, 9.0, sample_ids=ids)
        with pytest.raises(SettingError, match=reason):
            skip_step(tmp_path / name, 1)


def test_a_run_that_was_killed_is_noted_in_its_manifest(spiked_run: Path) -> None:
    write_manifest(spiked_run, dataclasses.replace(read_manifest(spiked_run), status=RUNNING))
    skip_step(spiked_run, 8)
    assert len(read_manifest(spiked_run).other["skip_lists"]) == 1
