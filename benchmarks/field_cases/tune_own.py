"""Failures to tune on, in loops of one's own. A thread that is named is one of the same class."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.loops import (
    adamw,
    follow,
    gpt,
    next_token_loss,
    parts,
    read_checkpoint,
    resume_training,
    seed_all,
    token_loss,
    train,
)
from benchmarks.field_cases.models import ConvNet, Pictures, measurements, network
from benchmarks.field_cases.script import main
from benchmarks.field_cases.texts import batch_at, batches, blocks, decode, padded, sentences
from torch import Tensor, nn

import sonde


# ---------------------------------------------------------------- resume
def resume_without_optimizer(job: Job) -> None:
    """The checkpoint has the optimizer's state, and the script forgets to load it (yolov5#292)."""
    whole = parts()
    resume_training(job, whole, lambda: whole.load(read_checkpoint(job), "optimizer"))


def resume_without_schedule(job: Job) -> None:
    """The scheduler is made anew, so the warm-up begins again (OneTrainer#1604)."""
    whole = parts()
    resume_training(job, whole, lambda: whole.load(read_checkpoint(job), "scheduler"))


# ---------------------------------------------------------------- numerics
class Distance(nn.Module):
    """Compares a vector with a learnt centre; the distance is a square root."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(16, 8, bias=False)
        self.head = nn.Linear(1, 1)

    def forward(self, x: Tensor) -> Tensor:
        distance = self.body(x).square().sum(1, keepdim=True).sqrt()
        result: Tensor = self.head(distance)
        return result


def square_root_at_zero(job: Job) -> None:
    """An empty row gives a distance of 0, whose gradient is not a number (pytorch#113180)."""
    seed_all()
    model = Distance()

    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(140):
            x, _ = measurements(step)
            if step == 89:
                x[3] = 0.0
            yield x, x.norm(dim=1, keepdim=True)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    train(job, model, adamw(model), loss_of, rows(), has_text=False)


def logarithm_of_zero(job: Job) -> None:
    """A loss written by hand takes the logarithm of a probability that has become 0."""
    seed_all()
    model = network(outputs=2)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        x, y = batch
        probability = torch.softmax(model(x), dim=1)
        chosen = probability[torch.arange(len(y)), y]
        return -torch.log(chosen).mean()

    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(160):
            x, _ = measurements(step)
            y = (x[:, 0] + x[:, 1] > 0).long()
            if step == 99:
                # A row that was not scaled, with the label of another.
                x[5] *= 300.0
                y[5] = 1 - y[5]
            yield x, y

    train(job, model, adamw(model), loss_of, rows(), has_text=False)


# ---------------------------------------------------------------- targets
def labels_are_inputs(job: Job) -> None:
    """The labels are the inputs, and the model does not shift them (nanochat#834)."""
    model = gpt()

    def loss_of(batch: Tensor) -> Tensor:
        return token_loss(model(batch), batch)

    train(job, model, adamw(model), loss_of, batches(blocks(), 160))


def padding_counts(job: Job) -> None:
    """The padding is among the targets: most of each row is padding (Megatron-LM#375)."""
    model = gpt()
    rows = padded(sentences(1200), length=96)

    def loss_of(batch: Tensor) -> Tensor:
        return token_loss(model(batch[:, :-1]), batch[:, 1:])

    train(job, model, adamw(model), loss_of, batches(rows, 120))


# ---------------------------------------------------------------- accumulation
def accumulated_loss_not_divided(job: Job) -> None:
    """Four micro-batches are added up and never divided; the rate was chosen for one."""
    model = gpt()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with sonde.Recorder(job.run, model, optimizer, decode=decode) as recorder:

        def train_step(batch: Tensor, last: bool) -> Tensor:
            loss = recorder.loss(next_token_loss(model, batch))
            loss.backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            return loss.detach()

        follow(recorder, train_step, batches(blocks(), 320, size=8), num_micro=4)


def micro_batches_of_unequal_length(job: Job) -> None:
    """Each micro-batch is a mean over its own tokens, whatever their number (transformers#34191).

    The first of four has 6 tokens that count a row, the others 48.
    """
    model = gpt()
    optimizer = adamw(model)
    with sonde.Recorder(job.run, model, optimizer, decode=decode) as recorder:

        def train_step(batch: tuple[Tensor, Tensor], last: bool) -> Tensor:
            tokens, labels = batch
            loss = recorder.loss(token_loss(model(tokens), labels))
            (loss / 4).backward()
            if last:
                optimizer.step()
                optimizer.zero_grad()
            return loss.detach()

        def rows() -> Iterator[tuple[Tensor, Tensor]]:
            for number, batch in enumerate(batches(blocks(), 320, size=8)):
                labels = batch[:, 1:].clone()
                if number % 4 == 0:
                    labels[:, 6:] = -100
                yield batch[:, :-1], labels

        follow(recorder, train_step, rows(), num_micro=4)


# ---------------------------------------------------------------- masks
def attention_sees_the_future(job: Job) -> None:
    """`is_causal` was lost when the attention was rewritten (LlamaFactory#7318)."""
    model = gpt(causal=False)
    train(
        job,
        model,
        adamw(model),
        lambda batch: next_token_loss(model, batch),
        batches(blocks(), 200),
    )


def packed_documents_see_each_other(job: Job) -> None:
    """Positions begin again in each packed document, and attention does not (maxtext#4476)."""
    model = gpt()
    rows = blocks(length=49)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["input_ids"], positions=batch["position_ids"])
        return token_loss(logits, batch["labels"])

    def packed() -> Iterator[dict[str, Tensor]]:
        for batch in batches(rows, 140):
            positions = (torch.arange(48) % 16).expand(len(batch), -1)
            labels = batch[:, 1:].clone()
            labels[:, 15::16] = -100
            yield {"input_ids": batch[:, :-1], "position_ids": positions, "labels": labels}

    train(job, model, adamw(model), loss_of, packed())


# ---------------------------------------------------------------- precision
def scaler_skips_for_ever(job: Job) -> None:
    """From step 60 on the gradients overflow at any scale, and every update is skipped."""
    model = gpt(dropout=0.0)
    optimizer = adamw(model)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    with sonde.Recorder(job.run, model, optimizer, decode=decode, scaler=scaler) as recorder:

        def train_step(batch: Tensor) -> Tensor:
            loss = recorder.loss(next_token_loss(model, batch))
            if recorder.num_updates >= 59:
                # What a kernel in half precision gives: the gradient's range is exceeded.
                model.norm.weight.register_hook(lambda grad: grad * float("inf"))
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
            return loss.detach()

        follow(recorder, train_step, batches(blocks(), 140))


# ---------------------------------------------------------------- data
def garbled_rows(job: Job) -> None:
    """Two of sixteen rows were read with the wrong offset in a binary file (LlamaFactory#5247)."""
    model = gpt()

    def rows() -> Iterator[Tensor]:
        generator = torch.Generator().manual_seed(3)
        for step, batch in enumerate(batches(blocks(), 180)):
            if step == 129:
                batch = batch.clone()
                batch[2:4] = torch.randint(3, 100, (2, 49), generator=generator)
            yield batch

    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), rows())


# ---------------------------------------------------------------- order
def one_batch_for_ever(job: Job) -> None:
    """The iterator is made anew each step, so that every step sees the first batch again."""
    model = gpt()
    data = blocks()

    def rows() -> Iterator[Tensor]:
        for step in range(180):
            yield next(batches(data, 1)) if step >= 60 else batch_at(data, step)

    train(job, model, adamw(model), lambda batch: next_token_loss(model, batch), rows())


# ---------------------------------------------------------------- rate
def rate_thirtyfold(job: Job) -> None:
    """A setting of the sweep is written over the group's rate at step 100 (LLaVA#918)."""
    model = gpt()
    optimizer = adamw(model, lr=2e-3)

    def rows() -> Iterator[Tensor]:
        for step, batch in enumerate(batches(blocks(), 180)):
            if step == 99:
                optimizer.param_groups[0]["lr"] = 0.06
            yield batch

    train(job, model, optimizer, lambda batch: next_token_loss(model, batch), rows())


# ---------------------------------------------------------------- connection
def optimizer_of_the_old_head(job: Job) -> None:
    """The head is replaced after the optimizer was made: the new one is never moved."""
    pictures = Pictures()
    seed_all()
    model = ConvNet(num_classes=10)
    optimizer = adamw(model)
    model.head = nn.Linear(64, 4)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    every = (pictures.batch(step) for step in range(160))
    train(job, model, optimizer, loss_of, every, has_text=False)


def training_never_switched_on_again(job: Job) -> None:
    """After the evaluation at step 80 nobody calls `model.train()`."""
    model = gpt(dropout=0.2)
    optimizer = adamw(model)
    held_out = blocks(num=32, seed=9)
    with sonde.Recorder(job.run, model, optimizer, decode=decode) as recorder:

        def train_step(batch: Tensor) -> Tensor:
            loss = recorder.loss(next_token_loss(model, batch))
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            return loss.detach()

        data = blocks()
        follow(recorder, train_step, (batch_at(data, step) for step in range(80)))
        model.eval()
        with torch.no_grad():
            print(f"held-out loss {float(next_token_loss(model, held_out)):.3f}")
        follow(recorder, train_step, (batch_at(data, step) for step in range(80, 160)), 80)


# ---------------------------------------------------------------- rows without text
def one_target_in_another_unit(job: Job) -> None:
    """One row's target is in millimetres, the others' in metres (DEVIANT#2)."""
    seed_all()
    model = network()

    def rows() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(180):
            x, y = measurements(step)
            if step == 139:
                y[4] = 40.0
            yield x, y

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0]), batch[1])

    train(job, model, adamw(model), loss_of, rows(), has_text=False)


CASES = (
    failure(resume_without_optimizer, "resume", "resume_optimizer", onset=101),
    failure(resume_without_schedule, "resume", "resume_schedule learning_rate", onset=101),
    failure(square_root_at_zero, "numerics", "bad_operation", onset=90, also_true="bad_input"),
    failure(logarithm_of_zero, "numerics", "bad_operation bad_input overflow odd_row", onset=100),
    failure(labels_are_inputs, "targets", "labels_not_shifted", also_true="loss_collapse"),
    failure(padding_counts, "targets", "padding_in_loss"),
    failure(accumulated_loss_not_divided, "accumulation", "accumulation_weight"),
    failure(micro_batches_of_unequal_length, "accumulation", "accumulation_weight"),
    failure(attention_sees_the_future, "masks", "future_leak", also_true="loss_collapse"),
    failure(packed_documents_see_each_other, "masks", "document_leak"),
    failure(
        scaler_skips_for_ever,
        "precision",
        "scaler_skips overflow bad_operation",
        onset=60,
        also_true="plateau does_not_move",
    ),
    failure(garbled_rows, "data", "garbled_text", onset=130, also_true="hard_sample"),
    failure(one_batch_for_ever, "order", "repeated_batch", onset=61, also_true="loss_collapse"),
    failure(rate_thirtyfold, "rate", "learning_rate", onset=100),
    failure(
        optimizer_of_the_old_head,
        "connection",
        "not_in_optimizer",
        also_true="does_not_move plateau no_gradient",
    ),
    failure(training_never_switched_on_again, "connection", "eval_mode dropout_off", onset=81),
    failure(one_target_in_another_unit, "rows", "odd_row", onset=140),
)

if __name__ == "__main__":
    main(CASES)
