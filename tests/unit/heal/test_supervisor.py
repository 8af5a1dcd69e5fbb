"""A run that mends itself is the run that a person would have mended: bit for bit, and told."""

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from healing_runs import BAD_STEP, CHECKPOINT, NUM_UPDATES, BadRun, bad_run, final_state
from small_corpus import prepare_corpus
from tiny_training import events

from sonde.checkpoint.folder import CheckpointFolder
from sonde.cli.main import run as sonde
from sonde.data.loader import TokenLoader
from sonde.data.skip_list import read_skip_list
from sonde.errors import SettingError
from sonde.forensics.verdict import Cause, Verdict
from sonde.heal.decision import ENDED, Heal, describe, read_history
from sonde.heal.supervisor import train_healing
from sonde.records.journal import read_steps
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.report.facts import gather
from sonde.report.html.page import render_html
from sonde.report.markdown import render_markdown
from sonde.run import Run
from sonde.train.recipe import build
from sonde.train.session import train_run
from sonde.train.trainer import Trainer

pytestmark = pytest.mark.slow


def verdict_of(
    blames: str,
    cause: str = "corrupted_weights",
    setting: str | None = None,
    bad: int | None = None,
) -> Verdict:
    first = Cause(
        cause=cause,
        title="It is so.",
        confidence=0.9,
        blames=blames,
        setting=setting,
        bad_checkpoint=bad,
        advice=("Do it.",),
    )
    return Verdict(run_id="", step=BAD_STEP, causes=(first,))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("corpus"), num=120)


@pytest.fixture
def bad(tmp_path: Path, data: Path, monkeypatch: pytest.MonkeyPatch) -> BadRun:
    return bad_run(tmp_path, data, monkeypatch)


def test_blamed_samples_are_left_out_and_the_run_is_the_one_mended_by_hand(
    bad: BadRun, capsys: pytest.CaptureFixture[str]
) -> None:
    reason = train_healing(bad.settings, bad.directory, Heal(max_times=3, diagnose=bad.blame))
    assert reason == f"max_updates: {NUM_UPDATES} steps were made"
    assert final_state(bad.directory) == final_state(bad.by_hand())
    (act,) = read_history(bad.directory).acts
    assert (act.kind, act.checkpoint, act.call.first_step) == ("skip samples", CHECKPOINT, BAD_STEP)
    assert len(read_skip_list(RunLayout(bad.directory).skip_list)) == 1
    assert all(
        math.isfinite(record.loss) for record in read_steps(bad.directory).by_number.values()
    )
    assert describe(bad.directory)[0][0] == f"Step {BAD_STEP}: the loss was not finite."
    assert "1 sample skipped, 1 step repeated" in describe(bad.directory)[-1][0]
    assert sonde(["show", str(bad.directory), "--all"]) == 0
    shown = [
        capsys.readouterr().out,
        render_markdown(gather(bad.directory)),
        render_html(gather(bad.directory)),
    ]
    for words in (
        "the loss was not finite.",
        "It is garbled.",
        "Rolled back to the state after step 16",
    ):
        assert all(words in shown_ for shown_ in shown), words


def test_a_run_that_nothing_happens_to_is_the_one_without_healing(bad: BadRun) -> None:
    settings = replace(bad.settings, max_updates=BAD_STEP - 1)
    train_healing(settings, bad.directory, Heal(max_times=3))
    train_run(settings, bad.folder / "plain")
    assert final_state(bad.directory) == final_state(bad.folder / "plain")
    assert read_history(bad.directory).acts == ()
    assert describe(bad.directory) == []


def test_what_comes_back_after_going_back_costs_the_batch_and_then_the_run_ends_well(
    bad: BadRun,
) -> None:
    train_healing(
        bad.settings, bad.directory, Heal(max_times=3, diagnose=lambda *_: verdict_of("machine"))
    )
    acts = read_history(bad.directory).acts
    assert [act.kind for act in acts] == ["go back", "skip batch"]
    assert bad.bad in acts[1].skip["train"]
    assert final_state(bad.directory) == final_state(bad.by_hand(list(acts[1].skip["train"])))


def test_the_budget_ends_the_run_and_counts_over_restarts(bad: BadRun) -> None:
    def unknown(run: Path, step: int) -> Verdict:
        return verdict_of("machine")

    for _ in range(2):
        reason = train_healing(bad.settings, bad.directory, Heal(max_times=1, diagnose=unknown))
        assert reason == "healing ended: the budget of 1 times is spent"
    assert [act.kind for act in read_history(bad.directory).acts] == ["go back", "stop", "stop"]
    assert read_manifest(bad.directory).status == "stopped"


def test_a_setting_ends_the_run_with_the_advice(
    bad: BadRun, caplog: pytest.LogCaptureFixture
) -> None:
    found = verdict_of("setting", "learning_rate", "lr")
    reason = train_healing(
        bad.settings, bad.directory, Heal(max_times=3, diagnose=lambda *_: found)
    )
    assert reason.startswith("healing ended: the verdict blames lr")
    assert "Do it." in caplog.text


def test_a_rate_that_may_be_halved_is_and_the_run_is_the_one_with_that_setting(
    bad: BadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = verdict_of("setting", "learning_rate", "lr", bad=13)
    healed = replace(bad.settings, lr=1e-2)
    verdicts = iter([found])

    def diagnose(run: Path, step: int) -> Verdict:
        return next(verdicts, bad.blame(run, step))

    train_healing(healed, bad.directory, Heal(max_times=3, halve_rate=6, diagnose=diagnose))
    acts = read_history(bad.directory).acts
    assert [(act.kind, act.checkpoint) for act in acts] == [
        ("lower rate", 12),
        ("skip samples", CHECKPOINT),
    ]
    rates = [record.lr for record in read_steps(bad.directory).by_number.values()]
    assert acts[0].rate == healed.learning_rate.rate(BAD_STEP - 1) / 2
    assert rates[12:18] == [acts[0].rate] * 6
    assert rates[18] == healed.learning_rate.rate(18)
    assert read_manifest(bad.directory).settings["lr_limit"] == acts[0].rate


def test_going_back_to_the_beginning_starts_over(bad: BadRun) -> None:
    train_healing(
        replace(bad.settings, save_every_updates=None),
        bad.directory,
        Heal(max_times=2, diagnose=bad.blame),
    )
    (act,) = read_history(bad.directory).acts
    assert (act.checkpoint, act.num_repeated) == (0, BAD_STEP)
    assert CheckpointFolder(RunLayout(bad.directory).checkpoints).steps() == [NUM_UPDATES]


def test_a_dry_run_trains_on_and_says_what_it_would_have_done(bad: BadRun) -> None:
    train_healing(bad.settings, bad.directory, Heal(max_times=1, dry_run=True, diagnose=bad.blame))
    train_run(bad.settings, bad.folder / "plain")
    assert final_state(bad.directory) == final_state(bad.folder / "plain")
    history = read_history(bad.directory)
    assert (history.acts, [act.kind for act in history.would]) == ((), ["skip samples"])
    assert describe(bad.directory)[0][2].startswith(
        "Would have rolled back to the state after step 16"
    )


def test_a_start_in_between_makes_an_open_call_void(bad: BadRun) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_healing(bad.settings, bad.directory, Heal(max_times=1, diagnose=_interrupted))
    assert read_history(bad.directory).call is not None
    train_run(bad.settings, bad.directory)
    assert read_history(bad.directory).call is None


def test_an_interrupted_diagnosis_is_made_again_by_the_next_start(bad: BadRun) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_healing(bad.settings, bad.directory, Heal(max_times=1, diagnose=_interrupted))
    train_healing(bad.settings, bad.directory, Heal(max_times=1, diagnose=bad.blame))
    assert final_state(bad.directory) == final_state(bad.by_hand())
    assert len(events(bad.directory, "start")) == 2


def _interrupted(run: Path, step: int) -> Verdict:
    raise KeyboardInterrupt


def test_flags_of_healing_need_healing(capsys: pytest.CaptureFixture[str], bad: BadRun) -> None:
    data = str(bad.settings.data)
    assert (
        sonde(
            [
                "train",
                data,
                "--run",
                str(bad.directory),
                "--max-updates",
                "1",
                "--heal-patience",
                "3",
            ]
        )
        != 0
    )
    assert "--heal N" in capsys.readouterr().err


def test_the_command_diagnoses_in_a_process_of_its_own(bad: BadRun) -> None:
    """Here the fault is one of this very process, so the diagnosis says: not reproduced, the
    machine. It comes back, and costs the batch.
    """
    words = ["train", bad.settings.data, "--run", str(bad.directory), "--heal", "3"]
    for name in (
        "max_updates",
        "warmup",
        "lr",
        "save_every_updates",
        "max_sentences",
        "model_dim",
        "num_heads",
        "ffn_dim",
    ):
        words += [f"--{name.replace('_', '-')}", str(getattr(bad.settings, name))]
    words += ["--max-tokens", "none", "--encoder-layers", "1", "--decoder-layers", "1"]
    assert sonde(words) == 0
    acts = read_history(bad.directory).acts
    assert [act.kind for act in acts] == ["go back", "skip batch"]
    assert acts[0].cause == "not_reproduced"
    assert json.loads((bad.directory / "run.json").read_text())["status"] == "finished"


def train_in_place(bad: BadRun, heal: Heal, **others: Any) -> str:
    """As a script of one's own does it: one run, one trainer, and the trainer is told to heal."""
    pieces = build(replace(bad.settings, **others))
    with Run(bad.directory, config=bad.settings.as_saved(), recipe=None) as run:
        trainer = Trainer(
            pieces.task,
            pieces.data,
            pieces.optimizer,
            schedule=pieces.schedule,
            run=run,
            valid_data=pieces.valid_data,
            settings=pieces.settings,
            heal=heal,
        )
        return trainer.train(stop=pieces.settings)


def test_a_trainer_that_heals_is_the_run_mended_by_hand(bad: BadRun) -> None:
    reason = train_in_place(bad, Heal(max_times=3, diagnose=bad.blame))
    assert reason == f"max_updates: {NUM_UPDATES} steps were made"
    (act,) = read_history(bad.directory).acts
    assert (act.kind, act.checkpoint, act.call.first_step) == ("skip samples", CHECKPOINT, BAD_STEP)
    assert final_state(bad.directory) == final_state(bad.by_hand())
    folder = CheckpointFolder(RunLayout(bad.directory).checkpoints)
    assert folder.document(folder.steps()[-1]).get("distrusted") is None
    assert all(
        math.isfinite(record.loss) for record in read_steps(bad.directory).by_number.values()
    )
    assert len(events(bad.directory, "start")) == 1


def test_a_trainer_goes_back_to_its_first_weights(bad: BadRun) -> None:
    train_in_place(bad, Heal(max_times=2, diagnose=bad.blame), save_every_updates=None)
    (act,) = read_history(bad.directory).acts
    assert act.checkpoint == 0
    train_healing(
        replace(bad.settings, save_every_updates=None),
        bad.folder / "anew",
        Heal(max_times=2, diagnose=bad.blame),
    )
    assert final_state(bad.directory) == final_state(bad.folder / "anew")


def test_a_trainer_killed_in_the_diagnosis_completes_it_at_the_next_start(bad: BadRun) -> None:
    with pytest.raises(KeyboardInterrupt):
        train_in_place(bad, Heal(max_times=1, diagnose=_interrupted))
    train_in_place(bad, Heal(max_times=1, diagnose=bad.blame))
    assert [act.kind for act in read_history(bad.directory).acts] == ["skip samples"]
    assert final_state(bad.directory) == final_state(bad.by_hand())


def test_a_trainer_halves_its_rate(bad: BadRun) -> None:
    found = verdict_of("setting", "learning_rate", "lr", bad=13)
    verdicts = iter([found])
    heal = Heal(
        max_times=3, halve_rate=6, diagnose=lambda run, step: next(verdicts, bad.blame(run, step))
    )
    train_in_place(bad, heal)
    acts = read_history(bad.directory).acts
    rates = [record.lr for record in read_steps(bad.directory).by_number.values()]
    assert [act.kind for act in acts] == ["lower rate", "skip samples"]
    assert rates[12:18] == [acts[0].rate] * 6


def test_data_that_cannot_leave_samples_out_ends_the_run_when_it_would_have_to(
    bad: BadRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(TokenLoader, "leave_out")
    reason = train_in_place(bad, Heal(max_times=3, diagnose=bad.blame))
    assert reason.startswith(ENDED)
    assert "cannot leave them out" in reason
    assert read_history(bad.directory).acts[-1].kind == "stop"


def test_a_trainer_diagnoses_beside_itself_while_its_run_is_open(bad: BadRun) -> None:
    train_in_place(bad, Heal(max_times=3))
    acts = read_history(bad.directory).acts
    assert [(act.kind, act.cause) for act in acts] == [
        ("go back", "not_reproduced"),
        ("skip batch", "not_reproduced"),
    ]


def test_a_trainer_without_a_run_cannot_heal(bad: BadRun) -> None:
    pieces = build(bad.settings)
    with pytest.raises(SettingError, match="heal needs a run"):
        Trainer(
            pieces.task,
            pieces.data,
            pieces.optimizer,
            schedule=pieces.schedule,
            heal=Heal(max_times=1),
        )
    with (
        Run(bad.directory) as run,
        pytest.raises(SettingError, match="halve_rate needs a Schedule, not a function"),
    ):
        Trainer(
            *(pieces.task, pieces.data, pieces.optimizer),
            schedule=lambda _: 0.1,
            run=run,
            heal=Heal(max_times=1, halve_rate=5),
        ).train(stop=pieces.settings)
