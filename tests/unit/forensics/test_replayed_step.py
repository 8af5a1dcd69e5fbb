"""One step of a run again, as the command tells it: compared, changed as asked, dumped; and the
command itself.
"""

import json
import shutil
from dataclasses import asdict
from pathlib import Path

import pytest
from replayed_runs import train_small
from small_corpus import prepare_corpus

from sonde.cli.main import run as sonde
from sonde.errors import DamagedFile, SettingError
from sonde.forensics.replay import Replay, replay_step
from sonde.probe.compare import DIFFERENT, Tolerance, compare_dumps
from sonde.records.append import RecordFile
from sonde.records.journal import read_steps
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest
from sonde.records.replay_order import ReplayOptions


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    return train_small(
        prepare_corpus(folder / "corpus"), folder / "run", precision="bfloat16", update_freq=1
    )


def spoil_loss(run: Path, step: int) -> None:
    """Another record of a step, whose loss is 1 too high."""
    made = read_steps(run).by_number[step]
    with RecordFile(RunLayout(run).record_file("steps", 0)) as file:
        file.append({"type": "STEP", **asdict(made), "loss": made.loss + 1})


def test_a_step_is_reproduced_and_stands_beside_a_calm_one(run: Path) -> None:
    report = replay_step(run, 7)
    assert report.replay.reproduced is True
    assert report.replay.from_step == 4
    assert report.recorded is not None
    assert report.replay.replayed_loss == report.recorded.loss
    assert (report.grad_norm, report.weight) == (report.recorded.grad_norm, report.recorded.weight)
    assert all(module.calm_norm is not None for module in report.modules)
    parameters = [module for module in report.modules if module.kind == "parameter"]
    assert [parameter.norm for parameter in parameters] == [
        parameter.calm_norm for parameter in parameters
    ]
    gradients = [module for module in report.modules if module.kind == "gradient"]
    assert [gradient.norm for gradient in gradients] != [
        gradient.calm_norm for gradient in gradients
    ]


def test_the_first_step_has_no_calm_one(run: Path) -> None:
    report = replay_step(run, 1)
    assert report.replay.reproduced is True
    assert all(module.calm_norm is None for module in report.modules)


def test_a_step_that_was_never_made_is_refused(run: Path) -> None:
    for step in (0, 14):
        with pytest.raises(SettingError, match=f"step {step}"):
            replay_step(run, step)


@pytest.mark.parametrize(
    "options",
    [
        ReplayOptions(float32=True),
        ReplayOptions(weights_from=8),
        ReplayOptions(swap_batch=4),
        ReplayOptions(drop=tuple(f"train:{number}" for number in range(24))),
    ],
    ids=["float32", "weights", "batch", "drop"],
)
def test_a_changed_step_is_not_compared_but_says_what_was_changed(
    run: Path, options: ReplayOptions
) -> None:
    report = replay_step(run, 7, options)
    assert report.replay.reproduced is None
    assert report.replay.replayed_loss != report.replay.recorded_loss
    assert len(report.changes) == 1
    assert report.changes[0].endswith("as asked")


@pytest.mark.slow
def test_the_command_tells_and_exits_by_what_it_found(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert sonde(["replay", str(run), "--step", "7"]) == 0
    told = capsys.readouterr().out
    assert "from the checkpoint after 4 steps, 2 steps repeated" in told
    assert "reproduced bit for bit" in told
    assert "and 1" in told  # many more tensors than are shown
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    spoil_loss(copy, 7)
    assert sonde(["replay", str(copy), "--step", "7"]) == 1
    told = capsys.readouterr().out
    assert "NOT reproduced: off by 1" in told
    assert "0x1." in told
    RunLayout(copy).record_file("steps", 0).unlink()
    assert sonde(["replay", str(copy), "--step", "2"]) == 0
    assert "nothing was recorded" in capsys.readouterr().out


def test_data_of_which_a_token_was_exchanged_is_named(run: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    shutil.copytree(read_manifest(run).settings["data"], data)
    options = ReplayOptions(data=data)
    batches = Replay(run, options=options).seams.batches
    assert batches.problems() == ()
    tokens = data / "train.de.bin"
    payload = bytearray(tokens.read_bytes())
    for place in range(0, len(payload) - 2, 2):
        payload[place] = payload[place] % 8 + 4
    tokens.write_bytes(payload)
    # an opening looks at some blocks of a file
    with pytest.raises(DamagedFile, match=r"train\.de\.bin"):
        replay_step(run, 7, options)
    assert batches.problems()[0].startswith(str(tokens))


def test_a_sample_is_dropped_as_it_is_printed() -> None:
    options = ReplayOptions(drop=("train 382", "valid:7", "a set: b 3"))
    assert options.dropped == [("train", 382), ("valid", 7), ("a set: b", 3)]


def test_flags_reach_the_replay(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        sonde(
            ["replay", str(run), "--step", "7", "--swap-batch", "3", "--drop", "train:1", "--json"]
        )
        == 0
    )
    document = json.loads(capsys.readouterr().out)
    assert document["changes"] == [
        "the batch is that of step 3, as asked",
        "without train:1, as asked",
    ]
    for wrong in ("train", "train:", ":3", "train:x"):
        assert sonde(["replay", str(run), "--step", "7", "--drop", wrong]) == 1
        assert "names no sample" in capsys.readouterr().err


@pytest.mark.slow
def test_two_dumps_of_a_step_are_the_same(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders: list[Path] = []
    for number in range(2):
        assert sonde(["replay", str(run), "--step", "6", "--dump", "--json"]) == 0
        document = json.loads(capsys.readouterr().out)
        assert Path(document["dump"]) == RunLayout(run).probe / "replay-6"
        folders.append(Path(shutil.move(document["dump"], tmp_path / str(number))))
    compared = compare_dumps(folders[0], folders[1], Tolerance())
    assert len(compared) > 20
    assert DIFFERENT not in {comparison.verdict for comparison in compared}
