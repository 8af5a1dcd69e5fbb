"""`sonde spikes` and `sonde skip`: tables, coloured tokens, JSON, files, and ATorch's
directories.
"""

import json
from pathlib import Path

import pytest

from sonde.cli.main import run
from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.datasets import open_pairs
from sonde.forensics.verdict import Cause, Verdict, write_verdict
from sonde.run import Run
from sonde.spikes.detectors import ThresholdRule
from sonde.spikes.recorder import SpikeRecorder, SpikeSettings

GOLDEN = Path(__file__).parents[2] / "golden" / "data" / "loss-spikes"


@pytest.fixture
def spiked(tmp_path: Path) -> Path:
    for name, word in (("t.en", "source"), ("t.de", "target")):
        (tmp_path / name).write_text("".join(f"{word} of line {line}\n" for line in range(1, 6)))
    splits = {"train": {"en": tmp_path / "t.en", "de": tmp_path / "t.de"}}
    prepare(
        PrepareSettings(splits=splits, out=tmp_path / "data", tokenizer="word", vocab_size=None)
    )
    settings = SpikeSettings(rule=ThresholdRule(above=5.0))
    with Run(tmp_path / "run") as a_run:
        datasets = {"train": open_pairs(tmp_path / "data")}
        with SpikeRecorder(
            a_run.records("spikes"), settings=settings, datasets=datasets
        ) as recorder:
            for step, loss in ((3, 2.0), (4, 9.0)):
                recorder.observe(
                    step,
                    loss,
                    sample_ids=[("train", 0), ("train", 3)],
                    sample_losses=[1.0, 17.0],
                    token_losses=[[1.0] * 5, [0.5, 0.5, 80.0, 1.0, 3.0]],
                    token_counts=[5, 5],
                )
    return tmp_path / "run"


def test_an_event_has_step_loss_expected_file_line_and_text(
    spiked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["spikes", str(spiked)]) == 0
    event, *rest = capsys.readouterr().out.splitlines()
    assert event.startswith("step 4  spike  loss 9, expected 2 ")
    assert rest[0].strip().startswith("train 3, ")
    place = next(number for number, line in enumerate(rest) if line.endswith("t.de:4"))
    assert rest[place + 1].strip() == "target of line 4"
    assert f"    sonde spikes {spiked} --step 4" in rest


def test_an_event_has_the_cause_that_a_verdict_names(
    spiked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cause = Cause(cause="garbled_text", confidence=0.9, title="It is garbled.")
    write_verdict(spiked, Verdict(run_id="x", step=4, causes=(cause,)))
    assert run(["spikes", str(spiked)]) == 0
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert "cause: It is garbled. (90%)" in lines
    assert f"sonde rollback {spiked} --step 4" in lines


def test_a_path_stays_whole_on_a_narrow_terminal(
    spiked: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert run(["spikes", str(spiked)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert f"{spiked.parent / 't.de'}:4" in [line.split()[-1] for line in lines if line.strip()]


def test_of_many_events_the_farthest_are_listed_unless_all_are_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = SpikeSettings(rule=ThresholdRule(above=5.0))
    with (
        Run(tmp_path / "run") as a_run,
        SpikeRecorder(a_run.records("spikes"), settings=settings) as recorder,
    ):
        for step in range(1, 901):
            recorder.observe(step, 1.0 if step % 30 else 9.0)
    assert run(["spikes", str(tmp_path / "run")]) == 0
    brief = capsys.readouterr().out
    assert run(["spikes", str(tmp_path / "run"), "--all"]) == 0
    full = capsys.readouterr().out
    assert brief.count("  spike  ") == 20
    assert full.count("  spike  ") == 30
    assert "10 more" in brief


def test_what_belongs_to_atorch_stands_under_its_name_in_the_help(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["spikes", "--help"]) == 0
    before, _, after = capsys.readouterr().out.partition("ATorch")
    for option in ("--dataset", "--sample-len", "--min-iter", "--min-loss", "--details"):
        assert option not in before
        assert option in after


def test_a_step_shows_its_samples_worst_first_with_their_lines(
    spiked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["spikes", str(spiked), "--step", "4"]) == 0
    printed = capsys.readouterr().out
    first, second, *after = printed.split("\n\n")[1:]
    assert first.startswith("1. loss 17, 94.4% of the step, train 3, document 3, ")
    assert "t.de:4, rank 0\nsource of line 4\ntarget of line 4" in first
    assert second.startswith("2. loss 1, 5.6% of the step, train 0")
    assert all(part.startswith("What to do next") for part in after)


def test_tokens_are_coloured_by_their_loss(
    spiked: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert run(["spikes", str(spiked), "--step", "4"]) == 0
    (marked,) = [line for line in capsys.readouterr().out.splitlines() if "41m" in line]
    assert "41m line\x1b[0m" in marked


def test_json_has_events_and_ranked_samples(
    spiked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["spikes", str(spiked), "--json"]) == 0
    (event,) = json.loads(capsys.readouterr().out)
    assert (event["first_step"], event["kind"], event["worst"]["sample"]) == (4, "spike", 3)
    assert run(["spikes", str(spiked), "--step", "3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["steps_kept"] == [3, 4]
    assert [sample["text"] for sample in document["samples"]] == [
        "target of line 4",
        "target of line 1",
    ]
    assert document["samples"][0]["line"] == 4


@pytest.mark.parametrize("json_flag", [[], ["--json"]])
def test_out_writes_a_file_without_colours(
    spiked: Path, tmp_path: Path, json_flag: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.txt"
    assert run(["spikes", str(spiked), "--step", "4", "--out", str(out), *json_flag]) == 0
    assert capsys.readouterr().out == ""
    assert "target of line 4" in out.read_text()
    assert "\x1b" not in out.read_text()
    if json_flag:
        assert json.loads(out.read_text())["first_step"] == 4


def test_moved_data_and_another_tokenizer_can_be_named(
    spiked: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    assert run(["spikes", str(spiked)]) == 0
    assert "there is no data at" in capsys.readouterr().out
    arguments = [
        "--data",
        str(tmp_path / "elsewhere"),
        "--tokenizer",
        str(tmp_path / "elsewhere" / "dict.txt"),
    ]
    assert run(["spikes", str(spiked), *arguments]) == 0
    assert "target of line 4" in capsys.readouterr().out


def test_a_run_without_spikes_says_so_and_no_run_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with Run(tmp_path / "calm"):
        pass
    assert run(["spikes", str(tmp_path / "calm")]) == 0
    assert capsys.readouterr().out.startswith("no spikes in ")
    assert run(["spikes"]) == 1
    assert run(["spikes", str(tmp_path / "none")]) == 1
    assert run(["spikes", str(tmp_path / "calm"), "--step", "4"]) == 1
    assert "no spike was recorded at step 4" in capsys.readouterr().err


def test_files_of_atorch_are_decoded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "spikes",
        "--atorch",
        str(GOLDEN / "in/spikes_single"),
        "--out",
        str(tmp_path / "out.txt"),
    ]
    arguments += [
        "--dataset",
        f"wikipedia={GOLDEN}/in/corpus/base",
        "--dataset",
        f"zhihu={GOLDEN}/in/tok/zhihu.lazy",
    ]
    arguments += ["--sample-len", "4", "--min-iter", "2000", "--min-loss", "10"]
    assert run(arguments) == 0
    assert capsys.readouterr().out.startswith("4 samples of 6 lines in ")
    assert (tmp_path / "out.txt").read_bytes() == (GOLDEN / "out/single_ids.txt").read_bytes()
    assert run([*arguments, "--details", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["num_bad"] == 2
    assert run(["spikes", "--atorch", str(GOLDEN / "in/spikes_single")]) == 1
    assert "sample_data_paths and each_sample_len" in capsys.readouterr().err
    assert run([*arguments, "--dataset", "nonsense"]) == 1
    assert run(["spikes", "--atorch", str(tmp_path / "none"), "--out", str(tmp_path / "x")]) == 1


def test_skip_writes_the_list_and_says_what_is_on_it(
    spiked: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["skip", str(spiked), "--step", "4", "--worst", "1"]) == 0
    assert capsys.readouterr().out == f"1 sample added to {spiked}/skip-list.txt\n  train 3\n"
    assert run(["skip", str(spiked), "--step", "4"]) == 0
    assert "1 was in it already" in capsys.readouterr().out
    assert run(["skip", str(spiked), "--step", "4", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "path": f"{spiked}/skip-list.txt",
        "added": {"train": []},
        "num_known": 2,
    }
    assert run(["skip", str(spiked)]) == 2
