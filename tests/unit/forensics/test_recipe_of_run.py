"""A run trained by a user's own script is replayed by its recipe, which is imported only when
someone says so.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sonde.cli.main import run as sonde
from sonde.errors import SettingError
from sonde.forensics.replay import Replay
from sonde.records.journal import read_steps
from sonde.records.manifest import read_manifest
from sonde.records.replay_order import ReplayOptions
from sonde.run import Run

SCRIPT = '''
"""A task, data and loop of one's own; run as a script it trains, imported it builds."""
import sys
from types import SimpleNamespace
import torch
from sonde.run import Run
from sonde.train.trainer import Trainer
from sonde.train.schedule import Schedule
from sonde.train.settings import TrainerSettings
from sonde.train.stopping import StopWhen
from sonde.train.task import StepOutput

class Data:
    def __init__(self): self.taken = 0
    def __iter__(self):
        while True:
            generator = torch.Generator().manual_seed(self.taken)
            self.taken += 1
            yield torch.randn(3, 4, generator=generator)
            if self.taken % 7 == 0: return
    def state_dict(self): return {"taken": self.taken}
    def load_state_dict(self, state): self.taken = state["taken"]

class Task:
    def __init__(self, width):
        torch.manual_seed(5)
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, width), torch.nn.Dropout(0.3), torch.nn.Linear(width, 1)
        )
    def compute(self, batch):
        losses = (self.model(batch).squeeze(1) - batch.sum(1)).square()
        return StepOutput(loss_sum=losses.sum(), weight=len(batch))

def pieces(settings, device):
    task = Task(settings["width"])
    return SimpleNamespace(
        task=task, data=Data(), optimizer=torch.optim.Adam(task.model.parameters()),
        schedule=Schedule(schedule="constant", lr=1e-2),
        settings=TrainerSettings(
            update_freq=2, save_every_updates=5, save_every_epochs=None, keep_checkpoints=2
        ),
    )

def incomplete(settings, device):
    return SimpleNamespace(task=Task(2))

def train(directory):
    settings = {"width": 6}
    own = pieces(settings, "cpu")
    with Run(directory, config=settings, recipe=f"{__spec__.name}:pieces") as run:
        options = dict(schedule=own.schedule, run=run, settings=own.settings)
        Trainer(own.task, own.data, own.optimizer, **options).train(
            stop=StopWhen(max_updates=17))
'''


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run beside the script that trained it."""
    folder = tmp_path_factory.mktemp("script")
    (folder / "my_training.py").write_text(SCRIPT)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder)
        import my_training  # type: ignore[import-not-found]  # written by this test

        my_training.train(folder / "run")
    sys.modules.pop("my_training")
    return folder / "run"


@pytest.fixture
def run(trained: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The run, with the folder of its script as the working directory."""
    monkeypatch.chdir(trained.parent)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield trained
    sys.modules.pop("my_training", None)


def test_the_recipe_of_the_manifest_is_not_imported_unless_it_is_trusted(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert read_manifest(run).recipe == "my_training:pieces"
    with pytest.raises(
        SettingError, match="built by my_training:pieces, which was not imported"
    ) as error:
        Replay(run)
    assert "--trust-recipe" in (error.value.hint or "")
    assert sonde(["replay", str(run), "--step", "3"]) == 1
    assert "my_training:pieces" in capsys.readouterr().err
    assert "my_training" not in sys.modules


@pytest.mark.parametrize(
    "options",
    [ReplayOptions(trust_recipe=True), ReplayOptions(recipe="my_training:pieces")],
    ids=["trusted", "named"],
)
def test_every_step_of_a_script_is_reproduced(run: Path, options: ReplayOptions) -> None:
    recorded = read_steps(run).by_number
    replay = Replay(run, options=options)
    assert replay.checkpoints() == [0, 15, 17]
    for step, checkpoint in ((17, 15), (9, 0), (16, 15), (1, 0)):
        assert replay.go_to(step) == checkpoint
        assert replay.loss().loss == recorded[step].loss
        assert replay.update().loss == recorded[step].loss
    assert len(replay.batches(4)) == 1  # seven micro-batches an epoch, two an update
    with pytest.raises(SettingError, match="cannot be dropped from a Tensor"):
        replay.loss(drop=[("train", 1)])


@pytest.mark.slow
def test_the_command_finds_the_script_in_the_working_directory(run: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-c", "from sonde.cli.main import main; main()"),
            *("replay", str(run), "--step", "9", "--recipe", "my_training:pieces", "--json"),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["replay"]["reproduced"] is True
    assert [module["module"] for module in report["modules"] if module["kind"] == "activation"] == [
        "0",
        "1",
        "2",
        "model",
    ]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("my_training", "names no function"),
        ("nowhere_at_all:pieces", "cannot be imported"),
        ("my_training:lost", "cannot be imported"),
        ("my_training:incomplete", "returned no data, optimizer, schedule, settings"),
    ],
)
def test_a_recipe_that_is_not_there_is_told(run: Path, name: str, said: str) -> None:
    with pytest.raises(SettingError, match=said):
        Replay(run, options=ReplayOptions(recipe=name))


def test_a_run_without_any_recipe_says_what_to_name(tmp_path: Path) -> None:
    Run(tmp_path / "bare").close()
    with pytest.raises(SettingError, match="does not say how its model and data are built"):
        Replay(tmp_path / "bare")
