"""Failures of the fifth set: what a resume in somebody else's loop did not restore."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fifth_data import encode, numerals, recipe_pairs, recipes
from benchmarks.field_cases.fifth_loops import (
    PLANTED,
    begin,
    chat_rows,
    hub,
    read_before,
    resume_hub,
    tell,
    text_batch,
    text_rows,
)
from benchmarks.field_cases.fifth_models import ResNet, small_qwen
from benchmarks.field_cases.hosts import lightning, loader
from benchmarks.field_cases.script import main
from torch import Tensor

import sonde


def resume_huggingface_from_weights_in_bfloat16(job: Job) -> None:
    """To save room, the checkpoint was copied in bfloat16: the run goes on from weights that are
    rounded to eight bits (Megatron-Bridge#4565).
    """
    from safetensors.torch import load_file, save_file

    def spoil(checkpoint: Any) -> None:
        path = checkpoint / "model.safetensors"
        rounded = {name: part.to(torch.bfloat16) for name, part in load_file(path).items()}
        save_file(rounded, path, metadata={"format": "pt"})

    begin(507)
    rows = text_rows([encode(text) for text in recipes(1300, 31)])
    resume_hub(
        job, hub(job, small_qwen(num_hidden_layers=2), rows, text_batch, learning_rate=5e-3), spoil
    )


def resume_huggingface_with_moments_in_half_precision(job: Job) -> None:
    """`optimizer.pt` was written with every number in float16: squares of gradients below 6e-8 are
    0 when they are read again, and the first steps divide by them (Automodel#3763).
    """

    def spoil(checkpoint: Any) -> None:
        path = checkpoint / "optimizer.pt"
        state = torch.load(path, weights_only=True)
        for held in state["state"].values():
            for name in ("exp_avg", "exp_avg_sq"):
                held[name] = held[name].half().float()
        torch.save(state, path)

    begin(508)
    rows = chat_rows(1300)
    model = read_before(small_qwen(), 80)
    host = hub(job, model, rows, text_batch, learning_rate=2e-3, max_steps=160, weight_decay=0.0)
    resume_hub(job, host, spoil)


def resume_huggingface_with_the_number_of_the_job_as_seed(job: Job) -> None:
    """The seed is the number of the job in the queue. The second job has another, so the rest of
    the epoch is that of another order, with rows the run had already (Megatron-LM#761).
    """
    begin(509)
    rows = text_rows([encode(french) for _, french in recipe_pairs(1300, 33)])
    host = hub(
        job, small_qwen(), rows, text_batch, max_steps=155, learning_rate=5e-3,
        seed=8814 if PLANTED and job.part == 2 else 8790,
    )  # fmt: skip
    resume_hub(job, host, lambda _: None)


def resume_lightning_without_the_batch_statistics(job: Job) -> None:
    """What is saved are the parameters by name, and `strict_loading` is off: the means and
    variances of BatchNorm, which are buffers, begin at 0 and 1 again (yolov5#292).
    """
    from lightning.pytorch import LightningModule

    class Reader(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = ResNet()
            self.strict_loading = False

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0]), batch[1])
            tell(batch_idx + 1, loss.detach())
            return loss

        def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
            if PLANTED:
                held = {name for name, _ in self.named_parameters()}
                checkpoint["state_dict"] = {
                    name: part for name, part in checkpoint["state_dict"].items() if name in held
                }

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.03, momentum=0.9, weight_decay=1e-4)

    begin(510)
    pictures, labels = numerals(2600)
    rows = list(zip(pictures, labels, strict=True))
    path = None
    if job.part == 2 and not sonde.is_replay():
        path = str(job.checkpoints / "step=100.ckpt")
    lightning(job, steps=160).fit(Reader(), loader(rows, 16), ckpt_path=path)


CASES = (
    failure(
        resume_huggingface_from_weights_in_bfloat16,
        "resume",
        "resume_weights",
        host="huggingface",
        onset=101,
    ),
    failure(
        resume_huggingface_with_moments_in_half_precision,
        "resume",
        "resume_optimizer",
        host="huggingface",
        onset=101,
    ),
    failure(
        resume_huggingface_with_the_number_of_the_job_as_seed,
        "resume",
        "resume_data",
        host="huggingface",
        onset=101,
        also_true="changed_settings repeated_batch same_order",
    ),
    failure(
        resume_lightning_without_the_batch_statistics,
        "resume",
        "resume_weights",
        host="lightning",
        onset=101,
    ),
)

if __name__ == "__main__":
    main(CASES)
