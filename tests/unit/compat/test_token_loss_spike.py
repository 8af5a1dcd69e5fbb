"""The manual of TokenLossSpike, word for word, and every bug of ATorch's that the facts page lists,
by its name.
"""

import logging
import math
import re
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from fault_injection import failing, faults_of

from sonde.compat.atorch.token_loss_spike import TokenLossSpike
from sonde.errors import RunError, SettingError

INFO = "20-1-1385697-14158189-2"


def make_shard(base: Path, scatter_id: int, rows: np.ndarray) -> Path:
    path = Path(f"{base}.scatter") / f"{scatter_id}.lazy" / "text"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows.astype(np.int32).tofile(path)
    return path


@pytest.fixture
def spike(tmp_path: Path) -> TokenLossSpike:
    make_shard(tmp_path / "corpus" / "base", 20, np.arange(100, 120))
    make_shard(tmp_path / "tok" / "zhihu.lazy", 20, np.arange(300, 318))
    paths = [
        ("wikipedia", tmp_path / "corpus" / "base"),
        ("zhihu", tmp_path / "tok" / "zhihu.lazy"),
    ]
    return TokenLossSpike(tmp_path / "spikes", paths, each_sample_len=4, min_iter=2000, min_loss=10)


def saved(spike: TokenLossSpike, name: str = "rank0.txt") -> str:
    path = spike.loss_spike_save_dir / name
    return path.read_text() if path.exists() else ""


def decoded(spike: TokenLossSpike, tmp_path: Path, **options: float) -> str:
    # several types in one dict
    spike.decode_loss_spike(tmp_path / "out.txt", **options)  # type: ignore[arg-type]
    return (tmp_path / "out.txt").read_text()


def write(spike: TokenLossSpike, text: str, name: str = "rank0.txt") -> None:
    (spike.loss_spike_save_dir / name).write_text(text)


def line(
    info: str = "20-0-1-1-0", losses: str = "5.0", loss: object = 15, iteration: int = 3000
) -> str:
    return f"2026-01-02 03:04:05\t{iteration}\t{loss}\t{losses}\t{info}\n"


ROW_0 = "==========wikipedia  5.0================\n[100 101 102 103]\n\n\n\n"


def test_the_example_of_the_manual_runs_as_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    spike = TokenLossSpike(
        loss_spike_save_dir="loss_spike_save_dir",
        sample_data_paths=[("wikipedia", "corpus/base"), ("zhihu", "tokenize_data/zhihu.lazy")],
        each_sample_len=4,
        min_iter=2000,
        min_loss=10,
        loss_info_splitter="\t",
        loss_sample_str_splitter=",",
    )
    spike.save_loss(
        file_name="rank0.txt",
        cur_loss=4,
        cur_iter=100,
        losses_str="2.44,2.33,4.05",
        sample_infos_str=",".join([INFO] * 3),
    )
    assert not (tmp_path / "loss_spike_save_dir" / "rank0.txt").exists()
    summary = spike.decode_loss_spike(
        result_file_path="out.txt", tokenizer=None, min_iter=None, min_loss=None
    )
    assert (summary.num_samples, summary.num_bad) == (0, 0)
    assert Path("out.txt").read_text() == ""


def test_a_line_is_exactly_atorchs(spike: TokenLossSpike) -> None:
    spike.save_loss(
        "rank0.txt", 12.5, 2001, losses_str="2.44,40.05", sample_infos_str="20-0-11-22-0,20-1-3-4-2"
    )
    pattern = (
        r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\t2001\t12\.5\t2\.44,40\.05\t20-0-11-22-0,20-1-3-4-2\n"
    )
    assert re.fullmatch(pattern, saved(spike))
    written = time.mktime(time.strptime(saved(spike)[:19], "%Y-%m-%d %H:%M:%S"))
    assert abs(written - time.time()) < 60


@pytest.mark.parametrize(
    ("loss", "iteration", "is_written"),
    [
        (10.0, 2001, False),
        (10.001, 2000, False),
        (10.001, 2001, True),
        (math.inf, 2001, True),
        (-5, 3000, False),
    ],
)
def test_only_what_is_greater_than_both_minima_is_saved(
    spike: TokenLossSpike, loss: float, iteration: int, is_written: bool
) -> None:
    spike.save_loss("rank0.txt", loss, iteration, losses_str="1", sample_infos_str="20-0-1-1-0")
    assert bool(saved(spike)) == is_written


def test_saving_needs_no_data_paths_and_decoding_names_what_is_missing(tmp_path: Path) -> None:
    spike = TokenLossSpike(tmp_path, None, None, 0, 0)
    spike.save_loss("r.txt", 1.0, 1, "1.0", "20-0-1-1-0")
    with pytest.raises(SettingError, match="sample_data_paths and each_sample_len"):
        spike.decode_loss_spike(tmp_path / "out.txt")
    with pytest.raises(SettingError, match="each_sample_len"):
        TokenLossSpike(tmp_path, [("a", "b")], None, 0, 0).decode_loss_spike(tmp_path / "out.txt")
    assert not (tmp_path / "out.txt").exists()


def test_lists_and_tensors_are_saved_as_text(spike: TokenLossSpike) -> None:
    spike.save_loss(
        "a", 11.0, 2001, losses_str=[1.5, 2], sample_infos_str=["20-0-1-1-0", "20-0-1-1-1"]
    )
    spike.save_loss(
        "b",
        11.0,
        2001,
        losses_str=torch.tensor([1.5, 2.0]),
        sample_infos_str=("20-0-1-1-0", "20-0-1-1-1"),
    )
    spike.save_loss(
        "c", 11.0, 2001, losses_str=[torch.tensor(1.5), np.float32(2)], sample_infos_str=None
    )
    assert saved(spike, "a").endswith("\t1.5,2\t20-0-1-1-0,20-0-1-1-1\n")
    assert saved(spike, "b").endswith("\t1.5,2.0\t20-0-1-1-0,20-0-1-1-1\n")
    assert saved(spike, "c").endswith("\t1.5,2.0\t\n")


def test_other_splitters_are_used_and_read_back(tmp_path: Path) -> None:
    make_shard(tmp_path / "c", 0, np.arange(8))
    spike = TokenLossSpike(tmp_path / "s", [("c", tmp_path / "c")], 4, 0, 0, "|", ";")
    spike.save_loss("r", 9.0, 1, losses_str=[1.0, 2.0], sample_infos_str=["0-0-1-1-0", "0-0-1-1-1"])
    assert saved(spike, "r").count("|") == 4
    assert decoded(spike, tmp_path) == "==========c  2.0================\n[4 5 6 7]\n\n\n\n"


@pytest.mark.parametrize(
    "arguments", [{"loss_info_splitter": ","}, {"loss_info_splitter": ""}, {"each_sample_len": 0}]
)
def test_settings_that_cannot_work_are_refused(
    tmp_path: Path, arguments: dict[str, object]
) -> None:
    with pytest.raises(SettingError):
        TokenLossSpike(tmp_path, **arguments)  # type: ignore[arg-type]  # wrong on purpose


def test_details_add_what_atorch_drops_and_every_sample_worst_first(
    spike: TokenLossSpike, tmp_path: Path
) -> None:
    write(spike, line("20-0-1-1-0,20-0-1-1-1,20-1-1-1-0", "1.0,nan,7.0"))
    spike.decode_loss_spike(tmp_path / "out.txt", details=True)
    headers = [
        row for row in (tmp_path / "out.txt").read_text().split("\n") if row.startswith("==")
    ]
    rest = "3000  2026-01-02 03:04:05  15.0"
    assert headers == [
        f"==========wikipedia  nan  {rest}  20-0-1-1-1  rank0.txt================",
        f"==========zhihu  7.0  {rest}  20-1-1-1-0  rank0.txt================",
        f"==========wikipedia  1.0  {rest}  20-0-1-1-0  rank0.txt================",
    ]


def test_a_failing_disk_loses_lines_and_says_so_once(
    spike: TokenLossSpike, caplog: pytest.LogCaptureFixture
) -> None:
    with faults_of("write", failing(28)), caplog.at_level(logging.WARNING):
        for step in range(3):
            spike.save_loss("rank0.txt", 11.0, 2001 + step, "1.0", "20-0-1-1-0")
    file = spike._files["rank0.txt"]
    assert file is not None
    file._next_retry = 0.0
    spike.save_loss("rank0.txt", 11.0, 2010, "1.0", "20-0-1-1-0")
    assert [text.split("\t")[1] for text in saved(spike).splitlines()] == ["2010"]
    assert len(caplog.records) == 1
    assert file.num_lost == 3


def test_a_file_that_was_moved_away_is_begun_again(spike: TokenLossSpike) -> None:
    spike.save_loss("rank0.txt", 11.0, 2001, "1.0", "20-0-1-1-0")
    (spike.loss_spike_save_dir / "rank0.txt").rename(spike.loss_spike_save_dir / "old.txt")
    file = spike._files["rank0.txt"]
    assert file is not None
    file._next_check = 0.0
    spike.save_loss("rank0.txt", 11.0, 2002, "1.0", "20-0-1-1-0")
    assert saved(spike).count("\n") == 1


# The bugs of ATorch.


def test_bug_losses_str_missing_below_threshold_raised_keyerror(spike: TokenLossSpike) -> None:
    spike.save_loss("rank0.txt", 4, 100)
    assert saved(spike) == ""


def test_bug_positional_losses_str_was_ignored(spike: TokenLossSpike) -> None:
    spike.save_loss("rank0.txt", 11, 2001, "1.5", "20-0-1-1-0")
    assert saved(spike).endswith("\t1.5\t20-0-1-1-0\n")


def test_bug_none_for_losses_str_above_threshold_raised_typeerror(
    spike: TokenLossSpike, tmp_path: Path
) -> None:
    spike.save_loss("rank0.txt", 11, 2001, losses_str=None, sample_infos_str=None)
    assert saved(spike).endswith("\t2001\t11\t\t\n")
    summary = spike.decode_loss_spike(tmp_path / "out.txt")
    assert [bad.reason for bad in summary.bad] == ["no samples"]


def test_bug_nan_loss_was_never_recorded(spike: TokenLossSpike, tmp_path: Path) -> None:
    spike.save_loss("rank0.txt", math.nan, 2001, "5.0", "20-0-1-1-0")
    assert saved(spike).split("\t")[2] == "nan"
    assert decoded(spike, tmp_path) == ROW_0


def test_bug_a_tensor_loss_was_written_as_tensor(spike: TokenLossSpike, tmp_path: Path) -> None:
    spike.save_loss("rank0.txt", torch.tensor(12.5, requires_grad=True), 2001, "5.0", "20-0-1-1-0")
    assert saved(spike).split("\t")[2] == "12.5"
    write(
        spike,
        line(loss="tensor(12.3000)")
        + line(loss="tensor(12.3, device='cuda:0', grad_fn=<NllLossBackward0>)"),
    )
    assert decoded(spike, tmp_path) == ROW_0 * 2


def test_bug_an_empty_file_name_raised_isadirectoryerror(
    spike: TokenLossSpike, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "3")
    spike.save_loss("", 11.0, 2001, "1.0", "20-0-1-1-0")
    spike.save_loss(None, 11.0, 2002, "1.0", "20-0-1-1-0")
    assert saved(spike, "rank3.txt").count("\n") == 2


def test_bug_an_empty_result_path_raised_filenotfounderror(
    spike: TokenLossSpike, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(spike, line())
    assert spike.decode_loss_spike("").result == tmp_path / "loss_spike_decoded.txt"
    assert (tmp_path / "loss_spike_decoded.txt").read_text() == ROW_0


def test_bug_a_missing_save_dir_was_refused_and_a_plain_file_was_not(tmp_path: Path) -> None:
    TokenLossSpike(tmp_path / "a" / "b", None, None, 0, 0)
    assert (tmp_path / "a" / "b").is_dir()
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="loss_spike_save_dir"):
        TokenLossSpike(tmp_path / "file", None, None, 0, 0)


def test_bug_read_only_data_raised_permissionerror(spike: TokenLossSpike, tmp_path: Path) -> None:
    write(spike, line() * 3)
    path = tmp_path / "corpus" / "base.scatter" / "20.lazy" / "text"
    path.chmod(0o444)  # root may write it all the same, so the map is looked at too
    assert decoded(spike, tmp_path) == ROW_0 * 3
    ((_, shard),) = spike._shards.values()
    assert not shard.flags.writeable


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        ("\n", "blank"),
        ("2026-01-02 03:04:05\t30", "torn off"),
        ("some other file\n", "1 fields instead of 5"),
        (line("20-0-1-1-5"), "there is no row 5: the shard has 5"),
        (line(f"20-0-1-1-{10**30}"), "there is no row 1000"),
        (line("20-1-1-1-4"), "there is no row 4: the shard has 4"),
        (line("20-7-1-1-0"), "there is no dataset 7"),
        (line("20-0-1-1"), "4 numbers instead of 5"),
        (line("20-0-1-1-0-0"), "6 numbers instead of 5"),
        (line("20-0-1"), "not five numbers"),
        (line("20-0-1-1-x"), "not five numbers"),
        (line("../../etc-0-1-1-0"), "is no number of a shard"),
        (line("999-0-1-1-0"), "No such file"),
        (line("20-0-1-1-0", ""), "no samples"),
        (line("20-0-1-1-0", "x"), "could not convert"),
        (line("20-0-1-1-0", "true"), "could not convert"),
        (line(",".join(["20-0-1-1-0"] * 40), ",".join(["true"] * 40)), "could not convert"),
        (line("77-0-1-1-x"), "not five numbers"),
        (line("20-0-1-1-0", "5.0,6.0"), "2 losses but 1 samples"),
        (line(loss="tensor(oops"), "could not convert"),
        (line(iteration="x"), "invalid literal"),  # type: ignore[arg-type]  # wrong on purpose
    ],
)
def test_bug_one_bad_line_aborted_the_whole_decode(
    spike: TokenLossSpike, tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: str, reason: str
) -> None:
    write(spike, line() + bad + ("" if bad.endswith("\n") else "\n") + line())
    if "torn" in reason:
        write(spike, line() + line() + bad)
    with caplog.at_level(logging.WARNING):
        summary = spike.decode_loss_spike(tmp_path / "out.txt")
    assert (tmp_path / "out.txt").read_text() == ROW_0 * 2
    assert summary.num_bad == 1
    assert reason in summary.bad[0].reason
    assert reason in caplog.text


def test_bug_a_subdirectory_in_the_save_dir_raised_isadirectoryerror(
    spike: TokenLossSpike, tmp_path: Path
) -> None:
    (spike.loss_spike_save_dir / "folder").mkdir()
    write(spike, line())
    assert decoded(spike, tmp_path) == ROW_0


def test_bug_a_result_inside_the_save_dir_broke_the_next_decode(spike: TokenLossSpike) -> None:
    write(spike, line())
    for _ in range(2):
        summary = spike.decode_loss_spike(spike.loss_spike_save_dir / "a-result.txt")
        assert (summary.num_samples, summary.num_bad) == (1, 0)


def test_bug_files_were_read_in_the_order_of_the_directory(
    spike: TokenLossSpike, tmp_path: Path
) -> None:
    for name in ("c", "a", "b"):
        write(spike, line(losses=f"{ord(name)}.0"), name)
    headers = [
        row.split()[1] for row in decoded(spike, tmp_path).split("\n") if row.startswith("==")
    ]
    assert headers == [f"{loss}.0================" for loss in (97, 98, 99)]


def test_bug_each_sample_len_larger_than_the_shard_raised(tmp_path: Path) -> None:
    make_shard(tmp_path / "c", 0, np.arange(8))
    spike = TokenLossSpike(tmp_path / "s", [("c", tmp_path / "c")], 100, 0, 0)
    spike.save_loss("r", 9.0, 1, "1.0", "0-0-1-1-0")
    assert "the shard has 0" in spike.decode_loss_spike(tmp_path / "out.txt").bad[0].reason


def test_bug_a_tokenizer_that_fails_on_one_row_aborted_the_rest(
    spike: TokenLossSpike, tmp_path: Path
) -> None:
    class Picky:
        def decode(self, ids: list[int]) -> str:
            if 104 in ids:
                raise OverflowError("out of range")
            return "fine"

    write(spike, line("20-0-1-1-1") + line("20-0-1-1-0"))
    summary = spike.decode_loss_spike(tmp_path / "out.txt", Picky())
    assert (
        tmp_path / "out.txt"
    ).read_text() == "==========wikipedia  5.0================\nfine\n\n\n\n"
    assert "out of range" in summary.bad[0].reason


def test_a_torn_last_line_is_not_continued(spike: TokenLossSpike) -> None:
    write(spike, "2026-01-02 03:04:05\t30")
    spike.save_loss("rank0.txt", 11.0, 2001, "1.0", "20-0-1-1-0")
    assert saved(spike).split("\n")[0] == "2026-01-02 03:04:05\t30"
    assert saved(spike).count("\n") == 2


def test_a_subclass_that_overrides_fetch_is_used(tmp_path: Path) -> None:
    """ATorch's comment at `fetch`: different application scenarios can build different
    subclasses.
    """

    class Mine(TokenLossSpike):
        def fetch(self, each_sample_info: str) -> tuple[str | None, list[int] | None]:
            return (
                (None, None)
                if each_sample_info == "gone"
                else ("mine", [ord(letter) for letter in each_sample_info])
            )

    class Letters:
        def decode(self, ids: list[int]) -> str:
            return "".join(map(chr, ids))

    spike = Mine(tmp_path / "spikes", [], 2, 0, 0)
    spike.save_loss("a.txt", 5.0, 3, losses_str="1.0,9.0", sample_infos_str="good,bad")
    spike.save_loss("a.txt", 5.0, 4, losses_str="1.0,9.0", sample_infos_str="good,gone")
    summary = spike.decode_loss_spike(tmp_path / "out.txt", Letters())
    assert (tmp_path / "out.txt").read_text() == "==========mine  9.0================\nbad\n\n\n\n"
    assert (summary.num_samples, summary.num_bad) == (1, 1)


def test_a_subclass_that_overrides_parse_sample_content_is_used(
    spike: TokenLossSpike, tmp_path: Path
) -> None:
    class Both(TokenLossSpike):
        # a plain attribute of torch's
        def parse_sample_content(  # type: ignore[override]
            self, losses_str: str, sample_infos_str: str, tokenizer: object
        ) -> tuple[object, ...]:
            if "skip" in sample_infos_str:
                return None, None, None
            dataset, text, loss = super().parse_sample_content(losses_str, sample_infos_str, None)
            return f"<{dataset}>", f"{text} {tokenizer}", loss

    both = Both(spike.loss_spike_save_dir, spike.sample_data_paths, 4, 0, 0)
    both.save_loss(
        "a.txt", 11.0, 2001, losses_str="2.44,40.05", sample_infos_str=f"20-0-1-2-0,{INFO}"
    )
    both.save_loss("a.txt", 11.0, 2002, losses_str="1", sample_infos_str="skip")
    both.save_loss("a.txt", 11.0, 2003, losses_str="x", sample_infos_str="1-2")
    # a stand-in for a tokenizer
    summary = both.decode_loss_spike(tmp_path / "out.txt", "tok", min_iter=2001)  # type: ignore[arg-type]
    assert (tmp_path / "out.txt").read_text() == (
        "==========<zhihu>  40.05================\n[308 309 310 311] tok\n\n\n\n"
    )
    assert summary.num_bad == 1


def test_a_fetch_written_for_atorch_may_ask_for_the_length_of_a_file(
    tmp_path: Path, spike: TokenLossSpike
) -> None:
    (tmp_path / "text").write_bytes(np.arange(6, dtype=np.int32).tobytes())
    assert spike.get_data_file_len(str(tmp_path / "text"), np.dtype(np.int32)) == 6


def test_fetch_gives_the_dataset_and_the_tokens(spike: TokenLossSpike) -> None:
    dataset, tokens = spike.fetch(INFO)
    assert (dataset, tokens.tolist()) == ("zhihu", [308, 309, 310, 311])
    assert spike.fetch("999-1-0-0-0") == (None, None)


def test_a_file_name_may_have_folders_in_it(spike: TokenLossSpike, tmp_path: Path) -> None:
    spike.save_loss("sub/x.txt", 11.0, 2001, losses_str="40.05", sample_infos_str=INFO)
    assert saved(spike, "sub/x.txt").count("\n") == 1
    assert "[308 309 310 311]" in decoded(spike, tmp_path)


@pytest.mark.parametrize("name", ["../x", "/tmp/x", "a/../../x", "x/", "a\0b"])
def test_a_file_name_that_leaves_the_directory_is_refused_before_the_first_spike(
    spike: TokenLossSpike, name: str
) -> None:
    with pytest.raises(SettingError, match="no file inside loss_spike_save_dir"):
        spike.save_loss(name, 0.0, 0)


def test_a_numpy_number_is_written_as_it_prints_itself(spike: TokenLossSpike) -> None:
    """ATorch writes `str(cur_loss)`."""
    for loss in (np.float32(12.3), np.float64(12.3), np.int32(12)):
        spike.save_loss("rank0.txt", loss, 2001, losses_str="40.05", sample_infos_str=INFO)
    assert [line.split("\t")[2] for line in saved(spike).splitlines()] == ["12.3", "12.3", "12"]


def test_further_arguments_of_save_loss_are_ignored_as_in_atorch(spike: TokenLossSpike) -> None:
    told = {"losses_str": "1.5", "sample_infos_str": "20-0-1-1-0"}
    spike.save_loss("rank0.txt", 11, 2001, "1.5", "20-0-1-1-0", "more", 7)
    spike.save_loss("rank0.txt", 12, 2002, "something", "else", **told, learning_rate=0.1)
    lines = saved(spike).splitlines()
    assert [text.split("\t")[1:] for text in lines] == [
        ["2001", "11", "1.5", "20-0-1-1-0"],
        ["2002", "12", "1.5", "20-0-1-1-0"],
    ]


def test_parse_sample_content_leaves_out_a_line_with_unequal_counts(
    spike: TokenLossSpike, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = spike.parse_sample_content("1.5,2.5", "20-0-1-1-0", None)
    assert found == (None, None, None)
    assert caplog.messages == ["a line is left out: number of losses 2, number of samples 1"]


def test_the_classes_are_where_the_manual_says() -> None:
    from sonde import spikes
    from sonde.compat import atorch

    for name in ("LossSpike", "DatasetLossSpike", "TokenLossSpike"):
        assert getattr(spikes, name) is getattr(atorch, name)
    assert issubclass(atorch.TokenLossSpike, atorch.LossSpike)
