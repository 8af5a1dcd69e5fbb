"""Sealed, second set: resumes."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.hosts import (
    huggingface,
    lightning,
    lightning_module,
    loader,
    resume_huggingface,
)
from benchmarks.field_cases.loops import SAVED
from benchmarks.field_cases.script import main
from benchmarks.field_cases.second_data import (
    PADDING,
    byte_stream,
    epoch_order,
    from_bytes,
    from_words,
    stripes,
    waves,
    window,
    word_rows,
)
from benchmarks.field_cases.second_loops import Session, begin
from benchmarks.field_cases.second_models import VAE, NanoLM, StripeNet, WordLSTM
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import sonde


def nano_session(seed: int, lr: float = 3e-3, **changes: Any) -> Session:
    """A language model of bytes with AdamW."""
    begin(seed)
    stream = byte_stream()
    model = NanoLM(**changes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    session = Session(
        model,
        optimizer,
        lambda step: window(stream, step, size=12, block=40),
        lambda rows: model(rows[:, :-1], rows[:, 1:])[1],
    )
    session.decode = from_bytes
    return session


def resume_lightning_drops_the_head(job: Job) -> None:
    """A hook that was written for another number of classes removes the head from the checkpoint
    (Automodel#3883).
    """
    begin(61)
    stream = byte_stream(1500)
    rows = torch.cat([window(stream, step, size=16, block=40) for step in range(50)])

    def loss_of(model: nn.Module, batch: Tensor) -> Tensor:
        loss: Tensor = model(batch[:, :-1], batch[:, 1:])[1]
        return loss

    module = lightning_module(NanoLM(), loss_of, lr=4e-3)

    def on_load_checkpoint(checkpoint: dict[str, Any]) -> None:
        checkpoint["state_dict"].pop("model.lm_head.weight")

    module.on_load_checkpoint = on_load_checkpoint
    module.strict_loading = False
    path = None
    if job.part == 2 and not sonde.is_replay():
        path = str(job.checkpoints / f"step={SAVED}.ckpt")
    lightning(job, steps=170, decode=from_bytes).fit(module, loader(rows, 12), ckpt_path=path)


def resume_with_adams_count_at_zero(job: Job) -> None:
    """A lean checkpoint has the moments and not the count, so their correction begins anew
    (DeepSpeed#564).
    """
    session = nano_session(62, 4e-3)

    def save(step: int) -> dict[str, Any]:
        state = copy.deepcopy(session.state(step))
        for moments in state["optimizer"]["state"].values():
            moments["step"] = torch.tensor(0.0)
        return state

    session.run(job, save=save)


def resume_from_an_older_checkpoint(job: Job) -> None:
    """The upload of step 110 never finished; the file holds step 60 and is taken for 110
    (Speech#52).
    """
    session = nano_session(63, dropout=0.1)
    session.saved = 60
    session.killed = 130
    session.last = 180

    def load(state: dict[str, Any]) -> int:
        session.load(state)
        return 110

    session.run(job, load)


def resume_from_a_bare_state_dict(job: Job) -> None:
    """`torch.save(model.state_dict())` is all there is (stylegan2-ada-pytorch#108)."""
    begin(64)
    rows = word_rows()
    model = WordLSTM()
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)
    scheduler = CosineAnnealingLR(optimizer, T_max=160)

    def loss_of(batch: Tensor) -> Tensor:
        logits, _ = model(batch[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), batch[:, 1:], ignore_index=PADDING)

    session = Session(
        model, optimizer, lambda step: rows[epoch_order(len(rows), step, 16)], loss_of
    )
    session.named = {"scheduler": scheduler}
    session.decode = from_words
    session.saved = 100
    session.killed = 115
    session.last = 160

    def load(state: dict[str, Any]) -> int:
        model.load_state_dict(state["model"])
        return 100

    session.run(job, load, save=lambda _: {"model": model.state_dict()})


def resume_with_a_new_schedule(job: Job) -> None:
    """The scheduler is made anew with `last_epoch=-1` after the optimizer was loaded
    (yolov3#902).
    """
    begin(65)
    pictures, labels = stripes(noise=1.8)
    model = StripeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def factor(step: int) -> float:
        return min(1.0, (step + 1) / 30) * 0.97 ** max(0, step - 30)

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = epoch_order(len(labels), step, 24)
        return pictures[chosen], labels[chosen]

    session = Session(
        model, optimizer, draw, lambda batch: F.cross_entropy(model(batch[0]), batch[1])
    )
    session.named = {"scheduler": LambdaLR(optimizer, factor)}
    session.saved = 120
    session.killed = 125
    session.last = 190
    session.run(job, lambda state: session.load(state, "scheduler"))


def resume_with_the_same_seed(job: Job) -> None:
    """`get_batch` draws from a generator that is seeded when the script starts: the first batches
    come once more (EasyR1#319).
    """
    session = nano_session(66)
    session.saved = 120
    session.killed = 140
    session.last = 200
    session.moved = -120
    session.run(job)


def resume_from_the_average(job: Job) -> None:
    """The checkpoint holds the average of the weights where the weights should be
    (ultralytics#9426).
    """
    begin(67)
    series = waves(1600)
    model = VAE()
    average = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(batch: Tensor) -> Tensor:
        made, mean, log_variance = model(batch)
        apart = (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean() / 2
        loss: Tensor = F.mse_loss(made, batch) + 0.005 * apart
        return loss

    session = Session(model, optimizer, lambda step: series[epoch_order(1600, step, 32)], loss_of)

    def follow(_: int) -> None:
        with torch.no_grad():
            for mean, value in zip(average.parameters(), model.parameters(), strict=True):
                mean.lerp_(value, 0.01)

    session.after = follow
    session.saved = 100
    session.killed = 130
    session.run(job, save=lambda step: {**session.state(step), "model": average.state_dict()})


def resume_huggingface_with_more_steps(job: Job) -> None:
    """`max_steps` is raised to go on for longer, and the cosine is stretched: the rate leaps up
    (pytorch#60265).
    """
    length = 150 if job.part == 1 else 900
    trainer = huggingface(job, max_steps=length, lr_scheduler_type="cosine", save_steps=50)
    if job.part == 2:
        from benchmarks.field_cases.hosts import stop_at

        trainer.add_callback(stop_at(170))
    resume_huggingface(job, trainer)


CASES = (
    failure(
        resume_lightning_drops_the_head, "resume", "resume_weights", host="lightning", onset=101
    ),
    failure(resume_with_adams_count_at_zero, "resume", "resume_optimizer", onset=91),
    failure(
        resume_from_an_older_checkpoint,
        "resume",
        "resume_weights resume_optimizer",
        onset=111,
        also_true="resume_generators",
    ),
    failure(
        resume_from_a_bare_state_dict,
        "resume",
        "resume_optimizer resume_schedule",
        onset=101,
        also_true="learning_rate resume_generators",
    ),
    failure(
        resume_with_a_new_schedule,
        "resume",
        "resume_schedule learning_rate",
        onset=121,
    ),
    failure(
        resume_with_the_same_seed,
        "resume",
        "resume_data repeated_batch",
        onset=121,
        also_true="resume_generators",
    ),
    failure(resume_from_the_average, "resume", "resume_weights", onset=101),
    failure(
        resume_huggingface_with_more_steps,
        "resume",
        "resume_schedule learning_rate changed_settings",
        host="huggingface",
        onset=101,
    ),
)

if __name__ == "__main__":
    main(CASES)
