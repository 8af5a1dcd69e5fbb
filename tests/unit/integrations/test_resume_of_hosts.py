"""What is said when Hugging Face's Trainer, Lightning or an Accelerate loop resumes: exactly, and
with a part of the checkpoint missing or of another step.
"""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.utils.data import DataLoader

from sonde.checkpoint.resume_report import ResumeReport, read_reports
from sonde.recorder.recorder import Recorder

# the imports alone take seconds, and warn
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]

SAVED = 10


class Small(nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embedding = nn.Embedding(40, 8)
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(8, 40)

    def forward(self, input_ids: Tensor, **_: Any) -> dict[str, Tensor]:
        logits = self.head(self.dropout(self.embedding(input_ids)))
        loss = F.cross_entropy(logits[:, :-1].flatten(0, 1), input_ids[:, 1:].flatten())
        return {"loss": loss}


def rows() -> Tensor:
    generator = torch.Generator().manual_seed(2)
    return torch.randint(0, 40, (160, 8), generator=generator)


def lost(report: ResumeReport) -> set[str]:
    return {finding.what for finding in report.lost}


def others(report: ResumeReport) -> set[str]:
    """What is not as it was, as an alarm or as a fact."""
    return {finding.what for finding in report.findings if finding.status in ("lost", "changed")}


def scaler() -> torch.amp.GradScaler:
    """A scaler that has grown after a few steps."""
    return torch.amp.GradScaler("cpu", init_scale=64.0, growth_interval=4)


def leave_over(how: str, model: nn.Module) -> None:
    """Leave a mode or a frozen layer over, as something before the training might."""
    if how == "eval mode":
        model.eval()
    if how == "frozen layer":
        frozen: Any = model.get_submodule("embedding")
        frozen.weight.requires_grad_(False)


def train_hf(folder: Path, end: int, how: str = "", **given: Any) -> None:
    from accelerate import skip_first_batches
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from sonde.integrations.huggingface import SondeCallback

    class Own(Trainer):  # type: ignore[misc]  # transformers is Any
        def get_train_dataloader(self) -> Any:
            loader = super().get_train_dataloader()
            # the Trainer skips what was trained on, and so does this
            return skip_first_batches(loader, 3) if how == "data skipped twice" else loader

    class Stop(TrainerCallback):  # type: ignore[misc]  # transformers is Any
        def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
            leave_over(how, parts["model"])
            if how == "a step off":
                parts["lr_scheduler"].step()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = state.global_step >= end

    arguments: dict[str, Any] = {"per_device_train_batch_size": 4, "max_steps": 18}
    resumes = given.pop("resume_from_checkpoint", None)
    settings = TrainingArguments(
        str(folder / "out"),
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        warmup_steps=3,
        save_steps=5,
        **{**arguments, **given},
    )
    data: Any = [{"input_ids": row} for row in rows()]
    callbacks = [SondeCallback(folder / "run"), Stop()]
    trainer = Own(Small(), settings, train_dataset=data, callbacks=callbacks)
    if "scaler" in how:
        trainer.accelerator.scaler = scaler()
    trainer.train(resume_from_checkpoint=resumes)


@pytest.fixture(scope="module")
def trained_hf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("huggingface")
    train_hf(folder, SAVED + 2)
    return folder


@pytest.mark.parametrize(
    ("spoilt", "expected"),
    [
        ("", set()),
        ("optimizer.pt", {"moments", "step count", "rate", "schedule"}),
        ("scheduler.pt", {"moments", "step count", "rate", "schedule"}),
        ("rng_state.pth", {"generators"}),
        ("older model.safetensors", {"weights"}),
        ("older optimizer.pt", {"moments", "step count", "rate"}),
        ("older scheduler.pt", {"schedule"}),
    ],
)
def test_a_trainer_says_what_its_checkpoint_lacks(
    trained_hf: Path, tmp_path: Path, spoilt: str, expected: set[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained_hf, folder)
    checkpoint = folder / "out" / f"checkpoint-{SAVED}"
    kind, _, name = spoilt.rpartition(" ")
    if kind:
        (folder / "out" / "checkpoint-5" / name).replace(checkpoint / name)
    elif name:
        (checkpoint / name).unlink()
    train_hf(folder, SAVED + 2, resume_from_checkpoint=str(checkpoint))
    (report,) = read_reports(folder / "run")
    assert report.path.endswith(f"checkpoint-{SAVED}")
    assert lost(report) == expected
    if not spoilt:
        assert {finding.status for finding in report.findings} == {"same"}


def forget_moments(state: dict[str, Any]) -> None:
    """Empty the moments of an optimizer's state, and keep its step count."""
    for of_parameter in state["state"].values():
        of_parameter["exp_avg"].zero_()
        of_parameter["exp_avg_sq"].zero_()


def spoil_within(checkpoint: Path, how: str) -> None:
    """Change a part of a checkpoint of Hugging Face's, in its file."""
    if how == "one layer":
        path = checkpoint / "model.safetensors"
        weights = load_file(path)
        weights["head.weight"] = torch.randn(40, 8)
        save_file(weights, path, metadata={"format": "pt"})
    elif how == "moments":
        moments = torch.load(checkpoint / "optimizer.pt", weights_only=True)
        forget_moments(moments)
        torch.save(moments, checkpoint / "optimizer.pt")


@pytest.mark.parametrize(
    ("how", "expected"),
    [("one layer", "weights"), ("moments", "moments"), ("a step off", "schedule")],
)
def test_a_trainer_says_which_part_of_its_checkpoint_is_wrong(
    trained_hf: Path, tmp_path: Path, how: str, expected: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained_hf, folder)
    checkpoint = folder / "out" / f"checkpoint-{SAVED}"
    spoil_within(checkpoint, how)
    train_hf(folder, SAVED + 2, how, resume_from_checkpoint=str(checkpoint))
    (report,) = read_reports(folder / "run")
    assert expected in lost(report)
    assert lost(report) <= {expected, "rate"}


@pytest.mark.parametrize(
    ("given", "part", "expected"),
    [
        ({"ignore_data_skip": True}, "data", "lost"),
        ({"per_device_train_batch_size": 8}, "data", "changed"),
    ],
)
def test_a_trainer_says_what_its_arguments_change(
    trained_hf: Path, tmp_path: Path, given: dict[str, Any], part: str, expected: str
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained_hf, folder)
    checkpoint = folder / "out" / f"checkpoint-{SAVED}"
    train_hf(folder, SAVED + 2, resume_from_checkpoint=str(checkpoint), **given)
    (report,) = read_reports(folder / "run")
    found = report.finding(part)
    assert found is not None
    assert (found.status, lost(report) <= {part}) == (expected, True)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("frozen layer", {"trainable"}),
        ("data skipped twice", {"data"}),
        ("eval mode", set()),  # the Trainer calls train() at every step
    ],
)
def test_a_trainer_says_what_is_left_over_or_skipped(
    trained_hf: Path, tmp_path: Path, how: str, expected: set[str]
) -> None:
    folder = tmp_path / "copy"
    shutil.copytree(trained_hf, folder)
    checkpoint = folder / "out" / f"checkpoint-{SAVED}"
    train_hf(folder, SAVED + 2, how, resume_from_checkpoint=str(checkpoint))
    (report,) = read_reports(folder / "run")
    assert others(report) == expected


@pytest.mark.parametrize("without", ["", "scaler.pt"])
def test_a_trainer_says_that_its_scaler_began_again(tmp_path: Path, without: str) -> None:
    # without fp16, the Trainer would clip the scaled gradients
    train_hf(tmp_path, SAVED + 2, "scaler", max_grad_norm=0)
    checkpoint = tmp_path / "out" / f"checkpoint-{SAVED}"
    if without:
        (checkpoint / without).unlink()
    again = {"max_grad_norm": 0, "resume_from_checkpoint": str(checkpoint)}
    train_hf(tmp_path, SAVED + 2, "scaler", **again)
    (report,) = read_reports(tmp_path / "run")
    assert report.finding("scaler") is not None
    assert lost(report) == ({"scaler"} if without else set())


def train_lightning(folder: Path, end: int, how: str = "") -> None:
    from lightning import pytorch as pl
    from lightning.pytorch.callbacks import ModelCheckpoint
    from lightning.pytorch.plugins import MixedPrecision

    from sonde.integrations.lightning import SondeCallback

    class Module(pl.LightningModule):  # type: ignore[misc]  # lightning is Any
        def __init__(self) -> None:
            super().__init__()
            self.model = Small()

        def training_step(self, batch: Tensor, _: int) -> Tensor:
            loss: Tensor = self.model(batch)["loss"]
            return loss

        def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if how == "no optimizer":
                checkpoint["optimizer_states"][0]["state"] = {}
            if how == "no schedule":
                checkpoint["lr_schedulers"] = []
            if how == "no callbacks":
                checkpoint["callbacks"] = {}
            if how == "one layer":
                checkpoint["state_dict"]["model.head.weight"] = torch.randn(40, 8)
            if how == "moments":
                forget_moments(checkpoint["optimizer_states"][0])
            if how == "scaler again":
                del checkpoint["MixedPrecision"]
            if how == "data skipped too far":
                checkpoint["callbacks"]["SondeCallback"]["order"]["num_taken"] += 3

        def on_train_start(self) -> None:
            leave_over(how, self.model)
            if how == "a step off":
                self.lr_schedulers().step()

        def configure_optimizers(self) -> Any:
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
            schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.97**step)
            return [optimizer], [{"scheduler": schedule, "interval": "step"}]

    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        max_steps=end,
        plugins=[MixedPrecision("16-mixed", "cpu", scaler())] if "scaler" in how else None,
        callbacks=[
            SondeCallback(folder / "run"),
            ModelCheckpoint(folder, every_n_train_steps=SAVED, save_top_k=-1, filename="{step}"),
        ],
    )
    torch.manual_seed(3)
    data: Any = DataLoader(rows(), batch_size=4, shuffle=True)  # type: ignore[arg-type]
    saved = folder / f"step={SAVED}.ckpt"
    if how == "only the weights":
        trainer.fit(Module.load_from_checkpoint(saved), data)
        return
    trainer.fit(Module(), data, ckpt_path=saved if saved.exists() else None, weights_only=False)


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("exact", set()),
        ("no optimizer", {"moments", "step count"}),
        ("no schedule", {"schedule"}),
        ("no callbacks", {"data", "generators"}),
        ("one layer", {"weights"}),
        ("moments", {"moments"}),
        ("a step off", {"schedule", "rate"}),
        ("eval mode", {"mode"}),
        ("scaler kept", set()),
        ("scaler again", {"scaler"}),
        ("only the weights", {"moments", "step count", "rate", "schedule", "generators"}),
    ],
)
def test_lightning_says_what_was_not_restored(tmp_path: Path, how: str, expected: set[str]) -> None:
    train_lightning(tmp_path, SAVED + 2, "scaler" if "scaler" in how else "")
    train_lightning(tmp_path, SAVED + 4, how)
    (report,) = read_reports(tmp_path / "run")
    assert report.from_step == SAVED
    assert lost(report) - {"data"} == expected - {"data"}
    if how == "exact":
        assert {finding.status for finding in report.findings} == {"same"}


@pytest.mark.parametrize(
    ("how", "part"), [("frozen layer", "trainable"), ("data skipped too far", "data")]
)
def test_lightning_says_what_is_left_over_or_skipped(tmp_path: Path, how: str, part: str) -> None:
    train_lightning(tmp_path, SAVED + 2)
    train_lightning(tmp_path, SAVED + 4, how)
    (report,) = read_reports(tmp_path / "run")
    assert others(report) == {part}


def train_accelerate(folder: Path, start: int, when: str) -> None:
    from accelerate import Accelerator

    torch.manual_seed(1)
    accelerator = Accelerator(cpu=True)
    accelerator.scaler = scaler()
    model: Any = Small()
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
    if start and when == "before prepare":
        accelerator.load_state(str(folder / "saved"))
    model, optimizer = accelerator.prepare(model, optimizer)
    if start and when != "before prepare":
        accelerator.load_state(str(folder / "saved"))
    if start and when == "one layer":
        nn.init.eye_(accelerator.unwrap_model(model).head.weight)
    if start and when == "moments":
        forget_moments({"state": optimizer.state})
    if start and when == "no optimizer":
        optimizer.state.clear()
    if start and when == "generators":
        torch.manual_seed(99)
    if start and when == "scaler":
        accelerator.scaler.load_state_dict(scaler().state_dict())
    if start:
        leave_over(when, accelerator.unwrap_model(model))
    skipped = 3 if start and when == "data" else 0

    def step(batch: Tensor) -> Tensor:
        loss: Tensor = model(batch)["loss"]
        accelerator.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    named = {"scaler": accelerator.scaler}
    with Recorder(folder / "run", model, optimizer, **named) as recorder:
        recorder.num_updates = start
        for number in range(start, SAVED + 2):
            first = 4 * (number + skipped)
            recorder.step(step, rows()[first : first + 4])
            if number + 1 == SAVED:
                accelerator.save_state(str(folder / "saved"))


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("one layer", {"weights"}),
        ("moments", {"moments"}),
        ("no optimizer", {"moments", "step count"}),
        ("generators", {"generators"}),
        ("scaler", {"scaler"}),
        ("eval mode", {"mode"}),
        ("frozen layer", {"trainable"}),
        ("data", {"data"}),
    ],
)
def test_accelerate_says_what_was_not_restored(
    tmp_path: Path, how: str, expected: set[str]
) -> None:
    train_accelerate(tmp_path, 0, how)
    train_accelerate(tmp_path, SAVED, how)
    (report,) = read_reports(tmp_path / "run")
    assert others(report) == expected


@pytest.mark.parametrize("when", ["after prepare", "before prepare"])
def test_a_state_of_accelerate_is_loaded_after_prepare(tmp_path: Path, when: str) -> None:
    train_accelerate(tmp_path, 0, when)
    train_accelerate(tmp_path, SAVED, when)
    (report,) = read_reports(tmp_path / "run")
    assert report.path == str(tmp_path / "saved")
    is_late = when == "before prepare"
    assert lost(report) == ({"weights", "moments", "step count"} if is_late else set())
