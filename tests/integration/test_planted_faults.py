"""Faults planted into a real training are named by the diagnosis: a subset of
benchmarks/diagnosis.py.
"""

import json
from pathlib import Path

import pytest
import torch
from benchmarks.planted_faults import plant
from benchmarks.planted_tasks import TRANSLATION, BaseRun, train_base

from sonde.cli.main import run as sonde
from sonde.forensics.diagnose import diagnose
from sonde.forensics.rollback import apply_rollback, plan_rollback
from sonde.forensics.verdict import NOTHING, Verdict, read_verdict, write_verdict
from sonde.records.journal import read_steps
from sonde.spikes.spike_log import read_spikes

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseRun:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return train_base(TRANSLATION, tmp_path_factory.mktemp("base"), num_updates=350)
    finally:
        torch.set_num_threads(threads)


def verdict_of(run: Path, step: int) -> Verdict:
    """The verdict about what the recorder noticed, or else about the step itself."""
    noticed = [
        spike.event.first_step
        for spike in read_spikes(run).spikes
        if spike.event.first_step >= step
    ]
    return diagnose(run, noticed[0] if noticed else step)


@pytest.mark.parametrize(
    "kind", ["garbled document", "shuffled labels", "repeated token", "wrong language"]
)
def test_a_fault_in_the_data_is_named_with_its_sample(
    base: BaseRun, tmp_path: Path, kind: str
) -> None:
    planted = plant(kind, base, tmp_path, seed=0)
    first = verdict_of(tmp_path / "run", planted.step).causes[0]
    assert first.cause == planted.cause
    assert first.confidence > 0.5
    assert first.suspects[0].sample in planted.samples
    assert first.suspects[0].file.endswith("text.de")
    assert first.suspects[0].text


def test_an_event_is_told_with_weights_and_moments_in_numbers(
    base: BaseRun, tmp_path: Path
) -> None:
    planted = plant("blown moment", base, tmp_path, seed=0)
    (told,) = [
        experiment
        for experiment in verdict_of(tmp_path / "run", planted.step).experiments
        if "moments like" in experiment.question
    ]
    assert told.numbers["moments_ratio"] > 3
    assert 0 < told.numbers["weights_rms"] < told.numbers["weights_max"]


@pytest.mark.parametrize("seed", [0, 2], ids=["in the checkpoint", "in memory"])
@pytest.mark.parametrize("kind", ["corrupted weight", "blown moment"])
def test_a_fault_in_a_tensor_is_named_with_its_parameter(
    base: BaseRun, tmp_path: Path, kind: str, seed: int
) -> None:
    planted = plant(kind, base, tmp_path, seed=seed)
    first = verdict_of(tmp_path / "run", planted.step).causes[0]
    assert (first.cause, first.module in planted.modules) == (planted.cause, True)


@pytest.mark.parametrize(
    "kind", ["learning-rate jump", "bit flip in an activation", "changed tokenizer"]
)
def test_a_setting_the_machine_and_the_tokenizer_are_named(
    base: BaseRun, tmp_path: Path, kind: str
) -> None:
    planted = plant(kind, base, tmp_path, seed=0)
    verdict = verdict_of(tmp_path / "run", planted.step)
    assert verdict.causes[0].cause in planted.accepted
    assert verdict.replay is not None
    assert verdict.replay.reproduced is (kind != "bit flip in an activation")


@pytest.mark.parametrize(
    "kind",
    [
        *("corrupted weight", "earlier weights put back", "blown moment", "moments lost"),
        *("learning-rate jump", "learning rate creeping up"),
        *("dropout changed at a restart", "bit flip in an activation"),
    ],
)
def test_after_the_rollback_that_the_verdict_asks_for_the_run_passes_the_step(
    base: BaseRun, tmp_path: Path, kind: str
) -> None:
    run = tmp_path / "run"
    usual = max(record.loss for record in list(read_steps(base.directory).by_number.values())[-60:])
    planted = plant(kind, base, tmp_path, seed=0)
    verdict = verdict_of(run, planted.step)
    write_verdict(run, verdict)
    plan = plan_rollback(run, verdict.step)
    assert len(plan.skip) == 0
    assert plan.checkpoint <= base.last
    apply_rollback(plan)
    assert sonde([*plan.command[1:], "--max-updates", str(base.last + 20)]) == 0
    losses = [
        record.loss
        for step, record in read_steps(run).by_number.items()
        if base.last < step <= base.last + 20
    ]
    assert max(losses) < 1.5 * usual


def test_a_rank_that_was_fed_another_ranks_batch_is_named(base: BaseRun, tmp_path: Path) -> None:
    planted = plant("data order on one rank", base, tmp_path, seed=0)
    first = verdict_of(tmp_path / "run", planted.step).causes[0]
    assert (first.cause, first.rank) == (planted.cause, 1)


def test_a_calm_step_is_told_to_be_one_and_the_verdict_is_kept(
    base: BaseRun, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sonde(["diagnose", str(base.directory), "--step", "313", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    kept = read_verdict(base.directory, 313)
    assert printed["causes"][0]["cause"] == kept.causes[0].cause == NOTHING
    assert kept.replay is not None
    assert kept.replay.reproduced


def test_the_command_tells_evidence_experiments_and_advice(
    base: BaseRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    planted = plant("garbled document", base, tmp_path, seed=0)
    monkeypatch.setenv("COLUMNS", "80")
    assert sonde(["diagnose", str(tmp_path / "run"), "--step", str(planted.step)]) == 0
    told = capsys.readouterr().out
    verdict = read_verdict(tmp_path / "run", planted.step)
    lines = told.splitlines()
    assert " ".join(lines[:2]).startswith(verdict.causes[0].title)  # the answer comes first
    too_wide = [line for line in lines if len(line) > 80]
    assert [line for line in too_wide if str(tmp_path) not in line] == []
    assert lines[1].startswith("garbled text") or lines[2].startswith("garbled text")
    for words in (
        "does it happen again?",
        "which samples?",
        "What to do",
        "sonde rollback",
        "text.de:",
    ):
        assert words in told
