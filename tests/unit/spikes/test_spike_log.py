"""Spikes read back: merged over ranks, once whatever restarts there were, ranked by share, tolerant
of damage.
"""

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from sonde.errors import RunNotFound, SettingError
from sonde.records.layout import RunLayout
from sonde.spikes.spike_log import rank_samples, read_spikes

Record = Callable[[Path, int, float], None]


def test_a_spike_comes_back_with_its_samples_ranked_by_their_share(spiked_run: Path) -> None:
    log = read_spikes(spiked_run)
    (spike,) = log.spikes
    assert (spike.event.first_step, spike.ranks, spike.num_seen, spike.is_over) == (
        8,
        (0,),
        1,
        True,
    )
    assert sorted(spike.steps) == [6, 7, 8]
    worst, *rest = spike.samples()
    assert (worst.dataset, worst.sample, worst.loss, worst.num_tokens) == ("train", 5, 20.0, 5)
    assert worst.share == pytest.approx(20 / 27)
    assert worst.token_losses == (1.0, 1.0, 1.0, 60.0, 1.0)
    assert sum(sample.share for sample in (worst, *rest)) == pytest.approx(1)
    assert {sample.sample for sample in spike.samples(7)} == {1, 5, 7}
    assert log.num_bad == 0


def test_ranks_are_merged_into_one_event(tmp_path: Path, record_on: Record) -> None:
    for rank, loss in enumerate((3.0, 1.0, 6.0, 2.0)):
        record_on(tmp_path, rank, loss)
    (spike,) = read_spikes(tmp_path).spikes
    assert spike.ranks == (0, 1, 2, 3)
    assert [(sample.rank, sample.sample) for sample in spike.samples()] == [
        (2, 12),
        (0, 10),
        (3, 13),
        (1, 11),
    ]
    assert [sample.share for sample in spike.samples()] == pytest.approx(
        [6 / 12, 3 / 12, 2 / 12, 1 / 12]
    )


def test_a_step_that_spiked_again_after_a_restart_counts_once(
    tmp_path: Path, record_on: Record
) -> None:
    record_on(tmp_path, 0, 3.0)
    record_on(tmp_path, 0, 4.0)
    (spike,) = read_spikes(tmp_path).spikes
    assert spike.num_seen == 2
    assert [sample.loss for sample in spike.samples()] == [4.0]


def test_damaged_lines_and_foreign_records_are_counted_and_passed_over(spiked_run: Path) -> None:
    path = RunLayout(spiked_run).record_file("spikes", 0)
    path.write_bytes(
        b'not json\n{"type":"SPIKE","step":1}\n{"type":"OTHER"}\n'
        + path.read_bytes()
        + b'{"type":"SP'
    )
    log = read_spikes(spiked_run)
    assert [spike.event.first_step for spike in log.spikes] == [8]
    assert log.num_bad == 2


def test_a_step_is_found_by_its_event_by_its_span_and_by_what_was_kept(spiked_run: Path) -> None:
    log = read_spikes(spiked_run)
    assert log.at(8) is log.at(6) is log.spikes[0]
    with pytest.raises(SettingError, match="no spike was recorded at step 99"):
        log.at(99)
    with pytest.raises(SettingError, match="step 1 was not kept"):
        log.spikes[0].samples(1)


def test_a_recorder_used_without_a_run_is_read_and_an_empty_place_is_refused(
    tmp_path: Path, spiked_run: Path
) -> None:
    (spiked_run / "run.json").unlink()
    assert len(read_spikes(spiked_run).spikes) == 1
    with pytest.raises(RunNotFound):
        read_spikes(tmp_path / "nothing")


def test_samples_that_are_not_finite_share_all_of_the_loss() -> None:
    entry = {
        "rank": 0,
        "sample_ids": [1, 2, 3],
        "sample_losses": [math.nan, 5.0, math.inf],
        "token_counts": [1, 9, 1],
    }
    ranked = rank_samples([entry])
    assert [(sample.sample, sample.share) for sample in ranked[2:]] == [(2, 0.0)]
    assert [sample.share for sample in ranked[:2]] == [0.5, 0.5]


def test_the_greatest_losses_are_shared_out_like_any_other() -> None:
    entry = {
        "rank": 0,
        "sample_ids": [1, 2],
        "sample_losses": [1e308, 1e308],
        "token_counts": [300, 100],
    }
    assert [sample.share for sample in rank_samples([entry])] == pytest.approx([0.75, 0.25])


def test_samples_without_losses_are_listed_without_a_share() -> None:
    assert [
        (sample.dataset, sample.sample, sample.loss, sample.share)
        for sample in rank_samples([{"rank": 0, "sample_ids": ["x", 4]}])
    ] == [
        ("", "x", None, 0.0),
        ("", 4, None, 0.0),
    ]
