"""ATorch's files and layout of data in detail: what its source and manual say, tried literally."""

import logging
import re
from pathlib import Path

import numpy as np
import pytest

from sonde.compat.atorch import TokenLossSpike

TWO = [("wikipedia", "a"), ("zhihu", "zhihu.lazy")]


@pytest.fixture
def spike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TokenLossSpike:
    """Two datasets with a shard each; a row has four tokens."""
    monkeypatch.chdir(tmp_path)
    for base, first, num in (("a", 100, 20), ("zhihu.lazy", 300, 18)):
        path = Path(f"{base}.scatter/20.lazy/text")
        path.parent.mkdir(parents=True)
        np.arange(first, first + num, dtype=np.int32).tofile(path)
    return TokenLossSpike("spikes", TWO, each_sample_len=4, min_iter=2000, min_loss=10)


def save(spike: TokenLossSpike, loss: float, step: int, losses: str, infos: str) -> None:
    spike.save_loss("rank0.txt", loss, step, losses_str=losses, sample_infos_str=infos)


def lines() -> list[str]:
    return Path("spikes/rank0.txt").read_text().splitlines()


def decoded(spike: TokenLossSpike, **limits: float) -> str:
    spike.decode_loss_spike("out.txt", None, **limits)  # type: ignore[arg-type]  # two types
    return Path("out.txt").read_text()


def test_an_infinite_loss_is_recorded_as_inf(spike: TokenLossSpike) -> None:
    save(spike, float("inf"), 3000, "inf", "20-0-1-1-0")
    assert lines()[0].split("\t")[2] == "inf"


def test_the_time_of_a_line_has_seconds_and_no_zone(spike: TokenLossSpike) -> None:
    save(spike, 15, 3000, "15", "20-0-1-1-0")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", lines()[0].split("\t")[0])


def test_a_record_is_added_to_what_the_file_has(spike: TokenLossSpike) -> None:
    for step in (3000, 3001):
        save(spike, 15, step, "15", "20-0-1-1-0")
    assert [line.split("\t")[1] for line in lines()] == ["3000", "3001"]


def test_the_second_number_counts_datasets_from_0(spike: TokenLossSpike) -> None:
    assert [spike.fetch(f"20-{number}-1-1-0")[0] for number in (0, 1)] == ["wikipedia", "zhihu"]


def test_the_last_number_counts_rows_from_0(spike: TokenLossSpike) -> None:
    assert spike.fetch("20-0-1-1-0")[1].tolist() == [100, 101, 102, 103]
    assert spike.fetch("20-0-1-1-2")[1].tolist() == [108, 109, 110, 111]


def test_the_third_and_fourth_number_are_not_used(spike: TokenLossSpike) -> None:
    assert spike.fetch("20-0-7-9-1")[1].tolist() == spike.fetch("20-0-1-1-1")[1].tolist()


def test_tokens_after_the_last_whole_row_are_out_of_reach(spike: TokenLossSpike) -> None:
    assert spike.fetch("20-1-1-1-3")[1].tolist() == [312, 313, 314, 315]
    assert spike.fetch("20-1-1-1-4") == (None, None)  # 18 tokens are four rows and a half


def test_what_equals_the_limits_is_decoded_though_it_was_not_saved(spike: TokenLossSpike) -> None:
    save(spike, 15, 3000, "15", "20-0-1-1-0")
    assert "wikipedia" in decoded(spike, min_iter=3000, min_loss=15)
    assert decoded(spike, min_iter=3001, min_loss=15) == ""


def test_a_limit_of_0_is_a_limit_and_not_a_default(spike: TokenLossSpike) -> None:
    line = "2026-01-02 03:04:05\t5\t0.5\t0.5\t20-0-1-1-0\n"
    Path("spikes/rank0.txt").write_text(line)
    assert decoded(spike) == ""
    assert "wikipedia" in decoded(spike, min_iter=0, min_loss=0)


def test_the_sample_with_the_highest_loss_is_written_the_first_of_equal_ones(
    spike: TokenLossSpike,
) -> None:
    save(spike, 15, 3000, "3,40,40", "20-0-1-1-0,20-1-1-1-1,20-0-1-1-2")
    assert "zhihu  40.0" in decoded(spike)
    assert "[304 305 306 307]" in decoded(spike)


def test_a_decoded_sample_has_its_rule_its_text_and_three_empty_lines(
    spike: TokenLossSpike,
) -> None:
    save(spike, 15, 3000, "15.5", "20-0-1-1-0")
    assert decoded(spike) == (f"{'=' * 10}wikipedia  15.5{'=' * 16}\n[100 101 102 103]\n\n\n\n")


def test_a_shard_that_is_missing_is_left_out_with_a_warning(
    spike: TokenLossSpike, caplog: pytest.LogCaptureFixture
) -> None:
    save(spike, 15, 3000, "15", "99-0-1-1-0")
    save(spike, 16, 3001, "16", "20-0-1-1-0")
    with caplog.at_level(logging.WARNING):
        assert decoded(spike).count("wikipedia") == 1
    assert "99" in caplog.text


def test_the_result_is_begun_anew(spike: TokenLossSpike) -> None:
    Path("out.txt").write_text("old")
    assert decoded(spike) == ""
