"""What the recorder says at the first step after a restart: every loss that can be planted in a
loop of one's own, an exact resume, and changes made on purpose.
"""

import copy
import logging
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from resume_loops import NUM_ROWS, OLDER, SAVED, Loop, first_start, resume

from sonde.checkpoint.digest_log import read_digests
from sonde.checkpoint.resume_report import read_reports
from sonde.errors import SettingError, TrainingStopped
from sonde.recorder.options import RecorderOptions
from sonde.records.journal import read_events


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that went past its checkpoint."""
    folder = tmp_path_factory.mktemp("trained")
    first_start(folder)
    return folder


@pytest.fixture
def folder(trained: Path, tmp_path: Path) -> Path:
    """A copy of it to resume in."""
    shutil.copytree(trained, tmp_path / "copy")
    return tmp_path / "copy"


def without(*parts: str) -> Callable[[Loop], None]:
    return lambda loop: loop.load(without=parts)


def load_older_weights(loop: Loop) -> None:
    loop.load()
    older = torch.load(loop.folder / f"{OLDER}.pt", weights_only=True)
    loop.model.load_state_dict(older["model"])


def load_older_moments(loop: Loop) -> None:
    loop.load()
    older = torch.load(loop.folder / f"{OLDER}.pt", weights_only=True)
    loop.optimizer.load_state_dict(older["optimizer"])


def leave_out_the_head(loop: Loop) -> None:
    fresh = copy.deepcopy(loop.model.head.state_dict())
    loop.load()
    loop.model.head.load_state_dict(fresh)


def empty_the_moments(loop: Loop) -> None:
    loop.load()
    for state in loop.optimizer.state.values():
        state["exp_avg"].zero_()
        state["exp_avg_sq"].zero_()


def begin_the_schedule_again(loop: Loop) -> None:
    first = loop.optimizer.param_groups[0]["lr"]
    loop.load(without=("scheduler",))
    loop.optimizer.param_groups[0]["lr"] = first


def move_the_schedule(loop: Loop) -> None:
    loop.load()
    loop.scheduler.step()


def evaluate(loop: Loop) -> None:
    loop.load()
    loop.model.eval()


LOSSES = {
    "no weights": (without("model"), "weights"),
    "weights of another step": (load_older_weights, "weights"),
    "a layer's weights": (leave_out_the_head, "weights"),
    "no optimizer": (without("optimizer"), "moments"),
    "no step count": (without("optimizer"), "step count"),
    "moments of another step": (load_older_moments, "moments"),
    "empty moments": (empty_the_moments, "moments"),
    "schedule begun again": (begin_the_schedule_again, "schedule"),
    "rate of the beginning": (begin_the_schedule_again, "rate"),
    "schedule a step off": (move_the_schedule, "schedule"),
    "no scaler": (without("scaler"), "scaler"),
    "no generator": (without("generator"), "generators"),
    "eval mode": (evaluate, "mode"),
}


@pytest.mark.parametrize("loss", LOSSES)
def test_what_was_not_restored_is_named(folder: Path, loss: str) -> None:
    spoil, part = LOSSES[loss]
    report = resume(folder, spoil)
    assert part in [finding.what for finding in report.lost]
    allowed = {"moments", "step count", "rate"} if part in ("moments", "step count") else {part}
    allowed |= {"rate", "schedule"} if part in ("rate", "schedule") else set()
    assert {finding.what for finding in report.lost} <= allowed


@pytest.mark.parametrize("with_ids", [True, False])
@pytest.mark.parametrize("data_from", [0, SAVED + 9, SAVED - 1])
def test_data_at_another_place_are_named(tmp_path: Path, with_ids: bool, data_from: int) -> None:
    first_start(tmp_path, with_ids=with_ids)
    report = resume(tmp_path, data_from=data_from, with_ids=with_ids)
    found = report.finding("data")
    assert found is not None
    assert found.status == ("changed" if data_from > SAVED and not with_ids else "lost")


@pytest.mark.parametrize("end", [SAVED, SAVED + 4])
@pytest.mark.parametrize("with_ids", [True, False])
def test_an_exact_resume_raises_no_alarm(tmp_path: Path, end: int, with_ids: bool) -> None:
    first_start(tmp_path, end=end, with_ids=with_ids)
    report = resume(tmp_path, with_ids=with_ids)
    assert {finding.status for finding in report.findings} <= {"same", "unknown"}
    unknown = [finding.what for finding in report.findings if finding.status == "unknown"]
    assert unknown == ([] if end > SAVED or with_ids else ["data"])
    assert len(report.lines()) == 1


def test_nothing_moves_before_a_bad_resume_stops(folder: Path) -> None:
    loop = Loop(folder, options=RecorderOptions(on_resume="stop"))
    loop.load(without=("optimizer",))
    before = copy.deepcopy(loop.model.head.weight)
    with pytest.raises(TrainingStopped):
        loop.train(SAVED, SAVED + 1)
    loop.recorder.close()
    assert torch.equal(before, loop.model.head.weight)


def test_a_change_is_a_fact_and_does_not_stop(folder: Path) -> None:
    def change(loop: Loop) -> None:
        loop.load()
        loop.optimizer.param_groups[0]["lr"] = 0.123
        loop.scheduler.base_lrs = [0.123]
        loop.model.embedding.weight.requires_grad_(False)

    report = resume(folder, change, on_resume="stop")
    assert not report.lost
    changed = {finding.what for finding in report.findings if finding.status == "changed"}
    assert changed == {"rate", "schedule", "trainable"}


def test_a_declared_change_is_expected(folder: Path) -> None:
    report = resume(folder, without("optimizer"), expect=("moments", "rate"))
    assert not report.lost
    found = report.finding("moments")
    assert found is not None
    assert found.status == "expected"


def test_an_unknown_part_cannot_be_expected(tmp_path: Path) -> None:
    with pytest.raises(SettingError):
        RecorderOptions(expect=("wheels",))
    loop = Loop(tmp_path)
    with pytest.raises(SettingError):
        loop.recorder.expect("wheels")
    loop.recorder.close()


@pytest.mark.parametrize("part", ["model", "optimizer"])
def test_a_resume_is_recognised_without_its_number(folder: Path, part: str) -> None:
    def load(loop: Loop) -> None:
        loop.load(without=(part,))
        loop.recorder.num_updates = 0

    report = resume(folder, load)
    assert report.from_step == SAVED
    assert report.step == 0
    lost = {"model": "weights", "optimizer": "moments"}[part]
    assert lost in [finding.what for finding in report.lost]


def test_a_fresh_start_is_a_new_attempt_and_no_resume(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "sonde"):
        loop = Loop(folder)
        loop.train(0, 2)
        loop.recorder.close()
    assert "starts from the beginning" in caplog.text
    assert not read_reports(folder / "run")
    assert (folder / "run" / "attempts" / "1").is_dir()


def test_a_bad_resume_is_not_the_truth_for_the_next_one(folder: Path) -> None:
    resume(folder, without("model"))
    again = resume(folder, without("model"))
    assert [finding.what for finding in again.lost] == ["weights"]
    assert not resume(folder).lost


def test_without_a_digest_the_optimizer_and_the_rate_are_checked(folder: Path) -> None:
    for file in (folder / "run" / "records").glob("digests.*"):
        file.unlink()
    report = resume(folder, without("optimizer"))
    assert {"moments", "rate"} <= {finding.what for finding in report.lost}
    weights = report.finding("weights")
    assert weights is not None
    assert weights.status == "unknown"


def test_restored_kept_states_are_as_they_were(tmp_path: Path) -> None:
    options = RecorderOptions(state_every=5)
    loop = Loop(tmp_path, options=options)
    loop.train(0, 7)
    loop.recorder.close()
    again = Loop(tmp_path, options=options)
    assert again.recorder.restore() == 5
    again.train(5, 7)
    again.recorder.close()
    (report,) = read_reports(tmp_path / "run")
    assert {finding.status for finding in report.findings} == {"same"}


def test_higher_losses_after_a_resume_are_told(tmp_path: Path) -> None:
    def one_text(loop: Loop) -> None:
        loop.rows = loop.rows[:NUM_ROWS].repeat(len(loop.rows) // NUM_ROWS, 1)

    loop = Loop(tmp_path)
    one_text(loop)
    loop.optimizer.param_groups[0]["lr"] = 0.1
    loop.scheduler.base_lrs = [0.1]
    loop.train(0, 60)
    loop.recorder.close()
    again = Loop(tmp_path)
    one_text(again)
    again.recorder.num_updates = 60
    again.train(60, 70)
    again.recorder.close()
    (told,) = read_events(tmp_path / "run", "resume_losses")
    assert told["value"] > 2 * told["expected"]


def test_saving_and_resuming_is_the_same_to_the_bit_when_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ends = []
    for name in ("watched", "alone"):
        place = tmp_path / name
        place.mkdir()
        monkeypatch.setenv("SONDE", "off" if name == "alone" else "")
        loop = Loop(place)
        loop.train(0, SAVED + 4)
        loop.recorder.close()
        again = Loop(place)
        again.load()
        again.train(SAVED, SAVED + 4)
        again.recorder.close()
        ends.append((again.model.state_dict(), torch.get_rng_state()))
    (weights, generator), (others, other) = ends
    assert all(torch.equal(weights[name], others[name]) for name in weights)
    assert torch.equal(generator, other)


def test_a_save_of_something_else_is_no_checkpoint(tmp_path: Path) -> None:
    loop = Loop(tmp_path)
    loop.train(0, 3)
    torch.save({"losses": torch.zeros(3)}, tmp_path / "losses.pt")
    loop.recorder.checkpoint("bucket/model")
    loop.recorder.close()
    found = [state for state in read_digests(tmp_path / "run").states if state.step == 3]
    assert [(state.reason, state.path) for state in found] == [("checkpoint", "bucket/model")]
    assert not hasattr(torch.save, "sonde_original")
