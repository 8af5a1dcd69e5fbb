"""`sonde train`: flags, TOML and defaults in order of rank; an existing run goes on; what cannot be
done is said.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from small_corpus import TINY, prepare_corpus

from sonde.cli.main import run
from sonde.cli.train import field_docstrings
from sonde.train.settings import RecipeSettings, settings_of_run

SIZES = [word for name, size in TINY.items() for word in (f"--{name.replace('_', '-')}", str(size))]
QUICK = [*SIZES, "--max-tokens", "64", "--log-interval", "2", "--warmup", "2"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(prepare_corpus(tmp_path_factory.mktemp("pairs")))


def events(directory: Path) -> list[dict[str, Any]]:
    return [
        json.loads(line)
        for line in (directory / "records" / "events.rank0.jsonl").read_text().splitlines()
    ]


def test_training_prints_a_line_per_interval_and_saves_its_settings(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    assert run(["train", corpus, "--run", str(directory), *QUICK, "--max-updates", "5"]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    printed = shown.err.splitlines()
    assert printed[0].startswith("encoder-decoder of 0.0 M parameters")
    steps = [line for line in printed if line.startswith("step ")]
    assert [line.split("  ")[0] for line in steps] == [
        "step 1/5",
        "step 2/5",
        "step 4/5",
        "step 5/5",
    ]
    assert re.fullmatch(
        r"step 2/5  epoch 1  loss \d\.\d{1,3}  lr 0\.0005  [\d,]+ tokens/s", steps[1]
    )
    assert (
        sum(
            bool(re.fullmatch(r"evaluation after step 5: loss \d\.\d{1,3}", line))
            for line in printed
        )
        == 1
    )
    assert printed[-1] == "stopped: max_updates: 5 steps were made"
    settings = settings_of_run(directory)
    assert (settings.model_dim, settings.max_updates, settings.data) == (16, 5, corpus)
    manifest = json.loads((directory / "run.json").read_text())
    assert manifest["status"] == "finished"
    assert manifest["reason"] == "max_updates: 5 steps were made"
    assert manifest["data"].keys() >= {"train.en", "train.de", "tokenizer"}
    assert "determinism" in {event["event"] for event in events(directory)}


def test_a_run_that_exists_goes_on_with_its_own_settings_and_says_what_changed(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    run(["train", corpus, "--run", str(directory), *QUICK, "--max-updates", "3"])
    capsys.readouterr()
    assert run(["train", "--run", str(directory), "--max-updates", "4"]) == 0
    assert "changed: max_updates was 3 and is now 4" in capsys.readouterr().out
    assert [event["step"] for event in events(directory) if event["event"] == "resume"] == [3]
    assert settings_of_run(directory).max_tokens == 64


def test_a_run_does_not_go_on_with_another_model_or_other_batches(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    run(["train", corpus, "--run", str(directory), *QUICK, "--max-updates", "1"])
    assert run(["train", "--run", str(directory), "--model-dim", "32", "--max-tokens", "99"]) == 1
    message = capsys.readouterr().err
    assert "model_dim was 16 and is now 32" in message
    assert "max_tokens was 64 and is now 99" in message


def test_a_run_does_not_go_on_with_other_data(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = tmp_path / "run"
    run(["train", corpus, "--run", str(directory), *QUICK, "--max-updates", "1"])
    other = prepare_corpus(tmp_path, num=56)
    assert run(["train", str(other), "--run", str(directory), "--max-updates", "2"]) == 1
    assert "was trained on other data: train.en, train.de, " in capsys.readouterr().err


def test_flags_go_before_the_file_and_the_file_before_defaults(corpus: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(
        'arch = "tiny"\nmax_updates = 9\nwarmup = 3\nmax_tokens = 64\n'
    )
    config = ["--config", str(tmp_path / "run.toml")]
    assert (
        run(["train", corpus, "--run", str(tmp_path / "run"), *config, "--max-updates", "1"]) == 0
    )
    settings = settings_of_run(tmp_path / "run")
    assert (settings.model_dim, settings.max_updates, settings.warmup, settings.lr) == (
        64,
        1,
        3,
        5e-4,
    )


def test_an_unknown_key_in_the_file_is_refused_with_the_nearest_name(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run.toml").write_text("max_udpates = 9\n")
    assert (
        run(
            [
                "train",
                corpus,
                "--run",
                str(tmp_path / "run"),
                "--config",
                str(tmp_path / "run.toml"),
            ]
        )
        == 1
    )
    assert "did you mean 'max_updates'?" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_dry_run_says_what_would_happen_and_writes_nothing(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(tmp_path.rglob("*"))
    assert (
        run(
            [
                "train",
                corpus,
                "--run",
                str(tmp_path / "run"),
                *QUICK,
                "--max-updates",
                "5",
                "--dry-run",
            ]
        )
        == 0
    )
    printed = capsys.readouterr().out
    assert "starts anew" in printed
    assert "en-de, 48 samples" in printed
    assert re.search(r"model_dim +16", printed)
    assert sorted(tmp_path.rglob("*")) == before


def test_ranks_other_than_0_are_silent_about_settings(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "1")
    assert (
        run(
            [
                "train",
                corpus,
                "--run",
                str(tmp_path / "run"),
                "--num-heads",
                "7",
                "--max-updates",
                "1",
            ]
        )
        == 1
    )
    assert capsys.readouterr() == ("", "")


def test_every_setting_is_a_flag_with_its_docstring_as_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "300")
    assert run(["train", "--help"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    helps = field_docstrings(RecipeSettings)
    assert helps.keys() == RecipeSettings.__dataclass_fields__.keys()
    for name, text in helps.items():
        if name != "data":
            assert f"--{name.replace('_', '-')} " in printed
            assert text.rstrip(".") in printed


def test_tcaps_lines_are_printed_where_they_were_asked_for(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        "train",
        corpus,
        "--run",
        str(tmp_path / "run"),
        *QUICK,
        "--max-updates",
        "4",
        "--output",
        "tcap",
    ]
    assert run(asked) == 0
    printed = capsys.readouterr().out.splitlines()
    assert [line.partition("Iteration: ")[2][:1] for line in printed if "train.loss" in line] == [
        "2",
        "4",
    ]
    assert printed[-1] == "stopped: max_updates: 4 steps were made"


def test_a_data_directory_that_is_not_there_is_what_is_complained_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["train", str(tmp_path / "NODIR"), "--run", str(tmp_path / "run")]) == 1
    assert f"error: there is no directory {tmp_path}/NODIR" in capsys.readouterr().err.replace(
        "\n", ""
    )


@pytest.mark.slow
def test_bleu_in_training_is_logged_and_stops_the_run(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sacrebleu")
    bleu = [
        "--evaluate",
        "bleu",
        "--evaluate-beam",
        "1",
        "--evaluate-sentences",
        "4",
        "--metric",
        "bleu",
    ]
    often = ["--validate-every-updates", "2", "--max-updates", "9"]
    directory = tmp_path / "run"
    assert (
        run(["train", corpus, "--run", str(directory), *QUICK, *bleu, *often, "--patience", "2"])
        == 0
    )
    printed = capsys.readouterr().err
    assert re.search(r"evaluation after step 2: loss \S+, bleu \S+, chrf \S+", printed)
    assert "stopped: patience: 2 evaluations without a better bleu than" in printed
    log = [
        json.loads(line)
        for line in (directory / "records" / "log.rank0.jsonl").read_text().splitlines()
    ]
    found = [record["data"] for record in log if "val.bleu" in record.get("data", {})]
    assert len(found) >= 3
    assert all(data.keys() >= {"val.loss", "val.chrf"} for data in found)


def test_a_metric_that_no_evaluation_gives_ends_the_run_at_the_first_one(
    corpus: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = [
        *QUICK,
        "--metric",
        "bleu",
        "--target",
        "30",
        "--patience",
        "2",
        "--validate-every-updates",
        "1",
    ]
    assert run(["train", corpus, "--run", str(tmp_path / "run"), *asked]) == 1
    printed = capsys.readouterr().err.replace("\n", " ")
    assert "patience and target look at 'bleu', which the evaluation does not give" in printed
