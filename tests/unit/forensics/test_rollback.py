"""Rollback: the plan names checkpoint, samples and command; applied and trained on, the run passes
the spike without the sample.
"""

import json
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from small_corpus import TINY

from sonde.checkpoint.folder import About, CheckpointFolder
from sonde.checkpoint.store import CheckpointStore
from sonde.cli.main import run as sonde
from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.skip_list import read_skip_list
from sonde.errors import RunError, RunLocked, SettingError
from sonde.forensics.history import read_skip_history
from sonde.forensics.replay import Replay
from sonde.forensics.rollback import apply_rollback, plan_rollback
from sonde.forensics.verdict import (
    NOTHING,
    UNKNOWN,
    Cause,
    Suspect,
    Verdict,
    write_verdict,
)
from sonde.records.append import RecordFile
from sonde.records.journal import read_steps
from sonde.records.layout import EVENTS, RunLayout
from sonde.records.manifest import read_manifest, write_manifest
from sonde.spikes.spike_log import read_spikes
from sonde.train.recipe import build
from sonde.train.session import train_run
from sonde.train.settings import RecipeSettings

BAD_STEP = 110
_WORDS = ("one", "two", "three", "four", "five", "six", "seven", "eight")


def settings(data: Path) -> RecipeSettings:
    return RecipeSettings(
        data=str(data),
        **TINY,
        max_tokens=None,
        max_sentences=8,
        max_updates=130,
        warmup=10,
        lr=1e-2,
        save_every_updates=20,
        keep_checkpoints=0,
        num_workers=0,
    )


def prepare_text(folder: Path, lines: list[str]) -> Path:
    folder.mkdir(parents=True)
    path = folder / "train.en"
    path.write_text("".join(f"{line}\n" for line in lines))
    prepare(
        PrepareSettings(
            splits={"train": {"en": path}}, out=folder / "data", tokenizer="word", vocab_size=None
        )
    )
    return folder / "data"


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A run whose update BAD_STEP saw a block of words that stand nowhere else, and that block's
    number.
    """
    folder = tmp_path_factory.mktemp("planted")
    lines = [
        " ".join(_WORDS[(number + place) % 8] for place in range(15)) for number in range(1200)
    ]
    own = replace(settings(prepare_text(folder / "clean", lines)), block_size=16)
    sampler = build(own).data.sampler
    bad = sampler.batches[int(sampler.global_order(1)[BAD_STEP - 1])].tolist()[3]
    lines[bad] = " ".join(["falsch", "quer", "krumm"] * 5)
    own = replace(own, data=str(prepare_text(folder / "spoilt", lines)))
    train_run(own, folder / "run")
    return folder / "run", bad


@pytest.fixture
def spoilt(planted: tuple[Path, int], tmp_path: Path) -> tuple[Path, int]:
    """A copy that a test may change."""
    shutil.copytree(planted[0], tmp_path / "run")
    return tmp_path / "run", planted[1]


def verdict(run: Path, *causes: Cause) -> Verdict:
    return Verdict(run_id=read_manifest(run).run_id, step=BAD_STEP, causes=causes)


def test_the_plan_changes_nothing_and_names_checkpoint_samples_and_command(
    planted: tuple[Path, int],
) -> None:
    run, bad = planted
    before = sorted(path.relative_to(run) for path in run.rglob("*"))
    plan = plan_rollback(run, BAD_STEP, worst=1)
    assert plan.first_step == BAD_STEP
    assert plan.checkpoint == 100
    assert plan.set_aside == (120, 130)
    assert plan.skip.samples("train").tolist() == [bad]
    assert plan.command == (
        "sonde",
        "train",
        "--run",
        str(run),
        "--skip-list",
        str(run / "skip-list.txt"),
    )
    assert sorted(path.relative_to(run) for path in run.rglob("*")) == before
    assert len(plan_rollback(run, BAD_STEP, worst=8).skip) == 8
    assert not len(plan_rollback(run, BAD_STEP).skip)


def test_no_sample_is_skipped_when_something_else_is_to_blame(spoilt: tuple[Path, int]) -> None:
    run, _ = spoilt
    write_verdict(
        run, verdict(run, Cause(cause="learning_rate", title="the rate jumped", confidence=0.6))
    )
    plan = plan_rollback(run, BAD_STEP)
    assert len(plan.skip) == 0
    assert plan.reason == "no sample is to blame: the rate jumped"
    assert plan.command == ("sonde", "train", "--run", str(run))
    apply_rollback(plan)
    assert not plan.skip_list.exists()
    assert len(plan_rollback(run, BAD_STEP, worst=2).skip) == 2


def test_a_checkpoint_whose_state_is_bad_is_not_gone_back_to(spoilt: tuple[Path, int]) -> None:
    run, _ = spoilt
    broken = Cause(
        cause="corrupted_weights", title="a weight is broken", confidence=0.9, bad_checkpoint=100
    )
    write_verdict(run, verdict(run, broken))
    assert plan_rollback(run, BAD_STEP).checkpoint == 80


def test_the_samples_of_a_verdict_go_before_those_of_the_spike(spoilt: tuple[Path, int]) -> None:
    run, bad = spoilt
    suspects = tuple(Suspect(dataset="train", sample=number) for number in range(bad, bad + 22))
    garbled = Cause(
        cause="garbled_text",
        title="it is\ngarbled",
        confidence=0.8,
        suspects=suspects,
        blames="samples",
    )
    other = Suspect(dataset="train", sample=bad + 30)
    markup = Cause(
        cause="markup", title="tags", confidence=0.7, suspects=(other,), blames="samples"
    )
    unsure = Cause(
        cause="hard_sample",
        title="hard",
        confidence=0.6,
        suspects=(Suspect(dataset="train", sample=1),),
        blames="samples",
    )
    write_verdict(run, verdict(run, garbled, markup, unsure))
    plan = plan_rollback(run, BAD_STEP)
    assert plan.skip.samples("train").tolist() == [*range(bad, bad + 22), bad + 30]
    assert plan.reason.endswith("it is garbled")
    assert len(plan_rollback(run, BAD_STEP, worst=2).skip) == 2


@pytest.mark.parametrize("name", [UNKNOWN, NOTHING])
def test_defect_05_nothing_is_rolled_back_when_the_verdict_blames_nothing(
    spoilt: tuple[Path, int], capsys: pytest.CaptureFixture[str], name: str
) -> None:
    run, _ = spoilt
    write_verdict(
        run, verdict(run, Cause(cause=name, title="as ever", confidence=0.6, blames="nothing"))
    )
    with pytest.raises(RunError, match="nothing to roll back"):
        plan_rollback(run, BAD_STEP)
    assert sonde(["rollback", str(run), "--step", str(BAD_STEP), "--apply"]) != 0
    assert "nothing to roll back" in capsys.readouterr().err
    assert len(plan_rollback(run, BAD_STEP, worst=2).skip) == 2


def test_defect_04_a_changed_setting_is_set_back_in_the_command(
    spoilt: tuple[Path, int], tmp_path: Path
) -> None:
    run, _ = spoilt
    manifest = read_manifest(run)
    write_manifest(run, replace(manifest, settings=manifest.settings | {"dropout": 0.7}))
    with RecordFile(RunLayout(run).record_file(EVENTS, 0)) as file:
        for event in (
            {"event": "start", "settings_before": manifest.settings},
            {"event": "resume", "step": 100},
        ):
            file.append({"type": "EVENT", "time": 0.0, "rank": 0, **event})
    changed = Cause(
        cause="changed_settings",
        title="dropout",
        confidence=0.9,
        bad_checkpoint=101,
        blames="setting",
        setting="dropout",
    )
    write_verdict(run, verdict(run, changed))
    plan = plan_rollback(run, BAD_STEP, data=tmp_path)
    assert plan.checkpoint == 100
    assert len(plan.skip) == 0
    assert plan.command == (
        "sonde",
        "train",
        str(tmp_path),
        "--run",
        str(run),
        "--dropout",
        str(manifest.settings["dropout"]),
    )
    assert "set back" in plan.notes[-1]


def test_a_rate_that_is_too_high_is_lowered_in_the_command(spoilt: tuple[Path, int]) -> None:
    run, _ = spoilt
    high = Cause(
        cause="learning_rate", title="too high", confidence=0.9, blames="setting", setting="lr"
    )
    write_verdict(run, verdict(run, high))
    command = plan_rollback(run, BAD_STEP).command
    assert float(command[command.index("--lr") + 1]) == pytest.approx(2e-3)


def test_a_damaged_or_distrusted_checkpoint_is_passed_over(spoilt: tuple[Path, int]) -> None:
    run, _ = spoilt
    folder = CheckpointFolder(RunLayout(run).checkpoints)
    CheckpointStore(folder.directory).save(
        105, {"model": {}}, About(distrusted="its weights hold NaN")
    )
    plan = plan_rollback(run, BAD_STEP)
    assert (plan.checkpoint, plan.set_aside) == (100, (105, 120, 130))
    assert "passed over: its weights hold NaN" in plan.notes[0]
    tensors = Path(folder.at(100).where) / "tensors.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-1])
    plan = plan_rollback(run, BAD_STEP)
    assert plan.checkpoint == 80
    assert "passed over: tensors.safetensors" in plan.notes[1]
    for step in folder.steps():
        shutil.rmtree(Path(folder.at(step).where))
    plan = plan_rollback(run, BAD_STEP)
    assert plan.checkpoint == 0
    assert "first weights" in plan.notes[-1]


def test_a_step_without_spike_and_verdict_is_refused(planted: tuple[Path, int]) -> None:
    with pytest.raises(SettingError, match="no spike was recorded at step 3"):
        plan_rollback(planted[0], 3)


def test_an_earlier_skip_list_elsewhere_is_taken_over(
    spoilt: tuple[Path, int], tmp_path: Path
) -> None:
    run, bad = spoilt
    (tmp_path / "old.txt").write_text("train 5\n")
    manifest = read_manifest(run)
    write_manifest(
        run,
        replace(manifest, settings={**manifest.settings, "skip_list": str(tmp_path / "old.txt")}),
    )
    plan = plan_rollback(run, BAD_STEP, worst=1)
    assert plan.skip.samples("train").tolist() == sorted([5, bad])


def test_ranks_are_started_again_by_torchrun_and_scripts_by_their_own_command(
    spoilt: tuple[Path, int],
) -> None:
    run, _ = spoilt
    manifest = read_manifest(run)
    write_manifest(run, replace(manifest, world_size=2))
    assert plan_rollback(run, BAD_STEP).command[:5] == (
        "torchrun",
        "--standalone",
        "--nproc-per-node",
        "2",
        "-m",
    )
    write_manifest(run, replace(manifest, settings={}, command=["python", "mine.py"]))
    plan = plan_rollback(run, BAD_STEP)
    assert plan.command == ("python", "mine.py")
    assert "must read the skip list" in plan.notes[-1]


@pytest.mark.slow
def test_a_live_run_is_left_alone(spoilt: tuple[Path, int]) -> None:
    run, _ = spoilt
    plan = plan_rollback(run, BAD_STEP, worst=1)
    code = (
        "import sys\nfrom sonde.run import Run\nrun = Run(sys.argv[1])\nprint('open',"
        " flush=True)\nsys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == b"open\n"
        with pytest.raises(RunLocked, match="still going"):
            apply_rollback(plan)
        assert not plan.skip_list.exists()
        owner.communicate()
    assert CheckpointFolder(RunLayout(run).checkpoints).steps()[-1] == 130


def test_checkpoints_of_another_run_are_not_moved(spoilt: tuple[Path, int]) -> None:
    run, _ = spoilt
    write_manifest(run, replace(read_manifest(run), run_id="another"))
    plan = plan_rollback(run, BAD_STEP, worst=1)
    with pytest.raises(RunError, match="later checkpoints of another run: 120, 130"):
        apply_rollback(plan)
    assert CheckpointFolder(RunLayout(run).checkpoints).steps()[-1] == 130


@pytest.mark.slow
def test_a_run_that_was_rolled_back_passes_the_spike_and_never_sees_the_sample(
    spoilt: tuple[Path, int], capsys: pytest.CaptureFixture[str]
) -> None:
    run, bad = spoilt
    before = read_steps(run).by_number
    capsys.readouterr()
    assert (
        sonde(["rollback", str(run), "--step", str(BAD_STEP), "--worst", "1", "--apply", "--json"])
        == 0
    )
    plan = json.loads(capsys.readouterr().out)
    assert plan["applied"] is True
    aside = CheckpointFolder(Path(plan["set_aside_in"]))
    assert aside.steps() == [120, 130]
    assert [aside.problems(step) for step in aside.steps()] == [[], []]
    assert read_skip_list(run / "skip-list.txt").samples("train").tolist() == [bad]
    assert [entry.first_step for entry in read_skip_history(run)] == [None]

    assert sonde(plan["command"][1:]) == 0

    after = read_steps(run).by_number
    assert [after[step] for step in range(1, BAD_STEP)] == [
        before[step] for step in range(1, BAD_STEP)
    ]
    assert after[BAD_STEP].loss < after[BAD_STEP - 1].loss * 1.2 < before[BAD_STEP].loss
    assert after[BAD_STEP].weight == before[BAD_STEP].weight - 16
    (spike,) = [spike for spike in read_spikes(run).spikes if spike.event.first_step == BAD_STEP]
    assert spike.num_seen == 1
    assert [entry.first_step for entry in read_skip_history(run)] == [101]
    events = [
        json.loads(line)
        for line in (run / "records" / "events.rank0.jsonl").read_text().splitlines()
    ]
    (told,) = [event for event in events if event["event"] == "rollback"]
    assert (told["step"], told["checkpoint"], told["set_aside"]) == (BAD_STEP, 100, [120, 130])
    replay = Replay(run)
    assert ("train", bad) not in [
        name for batch in replay.batches(BAD_STEP) for name in batch.provenance
    ]
    for step in (BAD_STEP, 95):  # with the sample skipped, and from before that
        replay.go_to(step)
        assert replay.update().loss == after[step].loss
