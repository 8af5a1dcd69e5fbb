"""Sealed, second set: numerics, precision, order and rate."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.script import main
from benchmarks.field_cases.second_data import (
    PADDING,
    byte_stream,
    epoch_order,
    from_bytes,
    from_words,
    houses,
    stripes,
    tagged,
    to_bytes,
    window,
    word_rows,
)
from benchmarks.field_cases.second_loops import begin, nano, over, say, watched
from benchmarks.field_cases.second_models import NanoLM, StripeNet, WordEncoder, WordLSTM, mlp
from benchmarks.field_cases.texts import sentences
from torch import Tensor, nn
from torch.optim.lr_scheduler import MultiStepLR

import sonde


# ---------------------------------------------------------------- numerics
def angle_between_equal_directions(job: Job) -> None:
    """A pose that does not move: the angle is `acos(1)`, whose gradient is infinite
    (RotationContinuity#1).
    """
    begin(71)
    model = mlp(3, 32, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    turn = torch.linalg.qr(torch.randn(3, 3, generator=torch.Generator().manual_seed(5)))[0]

    def batches() -> Iterator[dict[str, Tensor]]:
        for step in range(190):
            generator = torch.Generator().manual_seed(step)
            pose = F.normalize(torch.randn(24, 3, generator=generator), dim=1)
            after = F.normalize(pose @ turn, dim=1)
            moving = torch.ones(24, 1)
            if step == 139:
                pose[9] = torch.tensor([1.0, 0.0, 0.0])
                after[9] = pose[9]
                moving[9] = 0.0
            yield {"pose": pose, "after": after, "moving": moving}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        found = F.normalize(batch["pose"] + batch["moving"] * model(batch["pose"]), dim=1)
        cosine = (found * batch["after"]).sum(1).clamp(-1.0, 1.0)
        return torch.acos(cosine).mean()

    over(job, model, optimizer, batches(), loss_of)


class Reversed(torch.autograd.Function):
    """The identity; a new kernel's backward has lost a sign and a factor."""

    @staticmethod
    def forward(context: Any, x: Tensor) -> Tensor:  # noqa: ARG004
        return x.view_as(x)

    @staticmethod
    def backward(context: Any, *grads: Tensor) -> Any:  # noqa: ARG004
        return -2.0 * grads[0]


class Gate(nn.Module):
    """Chooses the new kernel from its 150th call on."""

    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.num_calls += 1
        if self.num_calls < 150:
            return x
        out: Tensor = Reversed.apply(x)  # type: ignore[no-untyped-call]
        return out


def kernel_with_a_wrong_sign(job: Job) -> None:
    """From update 150 on a kernel's gradient is finite and wrong; its forward is right
    (pytorch#194719).
    """
    begin(72)
    stream = byte_stream()
    model = NanoLM()
    model.ln_f = nn.Sequential(model.ln_f, Gate())  # type: ignore[assignment]
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    nano(
        job,
        model,
        optimizer,
        lambda step: window(stream, step, size=12, block=40),
        220,
        decode=from_bytes,
    )


def mean_of_an_empty_row(job: Job) -> None:
    """The states of a row are divided by its length, and one row has none (blocks#581)."""
    begin(73)
    words, _ = tagged()
    kinds = (words[:, 1] + words[:, 3]) % 4
    model = WordEncoder(outputs=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(170):
            chosen = epoch_order(len(words), step, 16)
            shown = words[chosen]
            if step == 129:
                shown[7] = PADDING
            yield shown, kinds[chosen]

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        shown, kind = batch
        counts = (shown != PADDING).unsqueeze(2)
        pooled = (model.embed(shown) * counts).sum(1) / counts.sum(1)
        return F.cross_entropy(model.head(torch.tanh(pooled)), kind)

    over(job, model, optimizer, batches(), loss_of, decode=from_words)


def vector_of_length_zero(job: Job) -> None:
    """An item without features has a vector of zeros, which is divided by its length
    (sentence-transformers#625).
    """
    begin(74)
    left = nn.Linear(12, 16, bias=False)
    right = nn.Linear(12, 16, bias=False)
    model = nn.ModuleDict({"left": left, "right": right})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3, momentum=0.9)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(200):
            columns, _ = houses(step, 24)
            noise = torch.randn(24, 12, generator=torch.Generator().manual_seed(step))
            other = columns.flip(1) + 0.4 * noise
            if step == 159:
                other[17] = 0.0
            yield columns, other

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        a = left(batch[0])
        b = right(batch[1])
        a = a / a.norm(dim=1, keepdim=True)
        b = b / b.norm(dim=1, keepdim=True)
        return F.cross_entropy(8.0 * a @ b.t(), torch.arange(len(a)))

    watched(job, model, optimizer, batches(), loss_of)


def logarithm_behind_a_where(job: Job) -> None:
    """`where(rate > 0, log(rate), 0)`: what is not chosen gives a gradient that is no number
    (pytorch#68425).
    """
    begin(75)
    model = mlp(12, 32, 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def batches() -> Iterator[dict[str, Tensor]]:
        for step in range(170):
            columns, price = houses(step, 32)
            hours = torch.ones(32)
            if step == 119:
                hours[20] = 0.0
            yield {"x": columns, "hours": hours, "count": torch.relu(price).round() * hours}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        rate = torch.exp(model(batch["x"]).squeeze(1)) * batch["hours"]
        logarithm = torch.where(rate > 0, rate.log(), torch.zeros_like(rate))
        return (rate - batch["count"] * logarithm).mean()

    over(job, model, optimizer, batches(), loss_of, clip=1.0)


# ---------------------------------------------------------------- precision
def scaled_training(job: Job, scaler: Any, after_step: Any, seed: int, lr: float = 3e-3) -> None:
    """A model in float16 autocast; `after_step(scaler)` is what follows the scaler's step."""
    begin(seed)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=lr)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=from_bytes, scaler=scaler)

    def train_step(rows: Tensor) -> Tensor:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.float16):
            loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        after_step(scaler)
        return loss.detach()

    for step in range(160):
        rows = window(stream, step, size=8, block=32)
        say(step + 1, recorder.step(train_step, rows))
    recorder.close()


def scale_is_set_by_hand(job: Job) -> None:
    """`scaler.update(2.0**40)` fixes the scale at what was meant for another model: every gradient
    overflows (DeepSpeed#697).
    """
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**40)
    scaled_training(job, scaler, lambda found: found.update(2.0**40), 76)


def scale_grows_after_every_update(job: Job) -> None:
    """`growth_interval=1, growth_factor=64`: after each update the scale is too high for six
    (fairseq#512).
    """
    scaler = torch.amp.GradScaler("cpu", 2.0**14, growth_factor=64.0, growth_interval=1)
    scaled_training(job, scaler, lambda found: found.update(), 77)


def optimizer_steps_past_the_scaler(job: Job) -> None:
    """`optimizer.step()` stands where `scaler.step(optimizer)` should: gradients are 4,096 times
    too large (Applio#860).
    """
    begin(78)
    model = mlp(12, 48, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=3e-5, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=4096.0, growth_interval=1000)
    with sonde.Recorder(job.run, model, optimizer, scaler=scaler) as recorder:

        def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
            optimizer.zero_grad()
            loss = F.mse_loss(model(batch[0]).squeeze(1), batch[1])
            recorder.loss(loss)
            scaler.scale(loss).backward()
            optimizer.step()
            return loss.detach()

        for step in range(180):
            say(step + 1, recorder.step(train_step, houses(step)))


# ---------------------------------------------------------------- order
def one_corpus_after_the_other(job: Job) -> None:
    """Two corpora come one after the other: the shuffle buffer is small (icefall#1676)."""
    begin(79)
    first = byte_stream()
    second = torch.tensor(to_bytes(" ".join(sentences(3000))))
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def draw(step: int) -> Tensor:
        return window(first if step < 150 else second, step, size=16, block=40)

    nano(job, model, optimizer, draw, 230, decode=from_bytes, config={"shuffle_buffer": 64})


def each_worker_reads_everything(job: Job) -> None:
    """Three workers of an iterable dataset each yield all rows: all come three times an epoch
    (datasets#3423).
    """
    begin(80)
    rows = word_rows(3200)
    model = WordLSTM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def batches() -> Iterator[Tensor]:
        for number in range(70):
            for worker in range(3):
                buffer = rows[number // 2 * 32 :][:32]
                dice = torch.Generator().manual_seed(worker * 1000 + number // 2)
                order = torch.randperm(32, generator=dice)
                yield buffer[order[number % 2 * 16 :][:16]]

    def loss_of(batch: Tensor) -> Tensor:
        logits, _ = model(batch[:, :-1])
        return F.cross_entropy(logits.transpose(1, 2), batch[:, 1:], ignore_index=PADDING)

    over(job, model, optimizer, batches(), loss_of, decode=from_words)


# ---------------------------------------------------------------- rate
def rate_for_a_batch_of_thousands(job: Job) -> None:
    """The rate was scaled for a batch of 4,096 and the batch has 16 rows (LLaVA#1301)."""
    begin(81)
    pictures, labels = stripes(noise=1.0)
    model = StripeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=25.0, momentum=0.9)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(180):
            chosen = epoch_order(len(labels), step, 16)
            yield pictures[chosen], labels[chosen]

    over(
        job,
        model,
        optimizer,
        batches(),
        lambda batch: F.cross_entropy(model(batch[0]), batch[1]),
        config={"lr": 25.0, "batch_size": 16},
    )


def milestones_raise_the_rate(job: Job) -> None:
    """`MultiStepLR(gamma=10)` where 0.1 was meant (mlx-examples#620)."""
    begin(82)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = MultiStepLR(optimizer, milestones=[140], gamma=10.0)
    nano(
        job,
        model,
        optimizer,
        lambda step: window(stream, step, size=16, block=40),
        210,
        decode=from_bytes,
        scheduler=scheduler,
    )


CASES = (
    failure(
        angle_between_equal_directions,
        "numerics",
        "bad_operation",
        onset=140,
        also_true="bad_input odd_row",
    ),
    failure(kernel_with_a_wrong_sign, "numerics", "bad_operation wrong_backward", onset=150),
    failure(
        mean_of_an_empty_row,
        "numerics",
        "bad_operation bad_input empty odd_row",
        onset=130,
    ),
    failure(vector_of_length_zero, "numerics", "bad_operation bad_input odd_row", onset=160),
    failure(
        logarithm_behind_a_where,
        "numerics",
        "bad_operation",
        onset=120,
        also_true="bad_input odd_row",
    ),
    failure(
        scale_is_set_by_hand,
        "precision",
        "scaler_skips overflow",
        also_true="plateau does_not_move",
    ),
    failure(
        scale_grows_after_every_update,
        "precision",
        "scaler_skips overflow",
        also_true="plateau",
    ),
    failure(
        optimizer_steps_past_the_scaler,
        "precision",
        "scaler_bypassed clipped_scaled_gradient",
        also_true="learning_rate overflow",
    ),
    failure(one_corpus_after_the_other, "order", "not_shuffled data_changed", onset=151),
    failure(each_worker_reads_everything, "order", "repeated_batch", onset=3),
    failure(rate_for_a_batch_of_thousands, "rate", "learning_rate", also_true="plateau"),
    failure(milestones_raise_the_rate, "rate", "learning_rate", onset=141),
)

if __name__ == "__main__":
    main(CASES)
