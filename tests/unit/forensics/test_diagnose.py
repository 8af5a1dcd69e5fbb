"""The verdict about a step: of a short run, of data that is gone, of a run that nobody may build.
The faults are in test_planted_faults.
"""

import shutil
from pathlib import Path

import pytest
from replayed_runs import train_small
from small_corpus import prepare_corpus

from sonde.errors import SettingError
from sonde.forensics.diagnose import diagnose
from sonde.forensics.verdict import NOTHING, read_verdict, write_verdict
from sonde.records.manifest import Manifest, read_manifest, write_manifest
from sonde.records.replay_order import ReplayOptions
from sonde.run import Run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepare_corpus(tmp_path_factory.mktemp("pairs"))


@pytest.fixture(scope="module")
def run(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_small(data, tmp_path_factory.mktemp("runs") / "a")


def changed(run: Path, folder: Path, **values: object) -> Path:
    """A copy of the run whose manifest says something else."""
    shutil.copytree(run, folder)
    manifest = read_manifest(run)
    fields = {name: getattr(manifest, name) for name in Manifest.__dataclass_fields__}
    write_manifest(folder, Manifest(**(fields | values)))
    return folder


def test_a_step_of_a_short_run_is_reproduced_and_nothing_is_made_up(run: Path) -> None:
    verdict = diagnose(run, 11)
    assert verdict.causes[0].cause == NOTHING
    assert verdict.replay is not None
    assert verdict.replay.reproduced
    assert verdict.experiments[0].question == "does it happen again?"
    write_verdict(run, verdict)
    assert read_verdict(run, 11) == verdict


def test_a_run_without_an_event_has_nothing_to_diagnose_and_says_how_to_ask_all_the_same(
    run: Path,
) -> None:
    with pytest.raises(SettingError, match="recorded no event") as raised:
        diagnose(run)
    assert "--step" in str(raised.value.hint)


def test_nothing_in_the_run_changes_by_a_diagnosis(run: Path) -> None:
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    diagnose(run, 9)
    assert {path: path.read_bytes() for path in run.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("name", "cause"), [("tokenizer", "changed_tokenizer"), ("train.de", "changed_data")]
)
def test_a_fingerprint_that_is_not_the_manifests_is_named(
    run: Path, tmp_path: Path, name: str, cause: str
) -> None:
    other = changed(run, tmp_path / "other", data=read_manifest(run).data | {name: "0" * 64})
    found = next(candidate for candidate in diagnose(other, 11).causes if candidate.cause == cause)
    assert name in found.evidence[0]


def test_data_that_is_elsewhere_is_asked_for(run: Path, data: Path, tmp_path: Path) -> None:
    settings = read_manifest(run).settings | {"data": str(tmp_path / "nowhere")}
    moved = changed(run, tmp_path / "moved", settings=settings)
    with pytest.raises(SettingError, match="nowhere") as raised:
        diagnose(moved, 11)
    assert "--data" in str(raised.value.hint)
    assert diagnose(moved, 11, options=ReplayOptions(data=data)).causes[0].cause == NOTHING


def test_data_that_was_written_over_still_gives_a_verdict_that_says_so(
    run: Path, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(data, tmp_path / "data")
    tokens = tmp_path / "data" / "train.de.bin"
    tokens.write_bytes(tokens.read_bytes()[::-1])
    settings = read_manifest(run).settings | {"data": str(tmp_path / "data")}
    verdict = diagnose(changed(run, tmp_path / "lost", settings=settings), 11)
    assert verdict.replay is None
    assert "cannot be" in verdict.experiments[0].found
    assert "changed_data" in [cause.cause for cause in verdict.causes]


def test_a_run_that_nobody_may_build_is_refused_with_the_flag_to_give(tmp_path: Path) -> None:
    with Run(tmp_path / "own", config={"width": 3}, recipe="my_script:pieces") as own:
        step = {
            "type": "STEP",
            "step": 1,
            "epoch": 1,
            "loss": 1.0,
            "weight": 1.0,
            "grad_norm": 1.0,
            "lr": 0.1,
        }
        own.records("steps").append(step)
    with pytest.raises(SettingError, match="was not imported"):
        diagnose(tmp_path / "own", 1)


def test_the_newest_event_that_can_be_made_again_is_chosen(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.forensics.diagnose.steps_in_question", lambda _: [99, 4, 2])
    assert diagnose(run).step == 4


def test_events_that_cannot_be_made_again_are_told(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sonde.forensics.diagnose.steps_in_question", lambda _: [99, 98])
    with pytest.raises(SettingError, match="none of the 2 events") as raised:
        diagnose(run)
    assert "--step" in str(raised.value.hint)
