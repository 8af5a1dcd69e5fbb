"""Failures of the fourth set: kernels and broken weights, precision, the order of the data."""

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fourth_data import (
    COLUMNS,
    decode,
    encode,
    entries,
    flats,
    num_tokens,
    scenes,
    shuffled,
    stream,
    translations,
    windows,
)
from benchmarks.field_cases.fourth_loops import (
    PLANTED,
    causal_batch,
    causal_rows,
    log,
    pretrained,
    set_seed,
    simple,
    trainer_of,
)
from benchmarks.field_cases.fourth_models import (
    GPT,
    SceneNet,
    Segmenter,
    mlp,
    small_gpt2,
    small_llama,
)
from benchmarks.field_cases.hosts import lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn
from torch.utils.data import IterableDataset, WeightedRandomSampler

import sonde


# ---------------------------------------------------------------- numerics
class TiledGelu(torch.autograd.Function):
    """A kernel that works in tiles of sixteen rows; what is left over is handled by nobody."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return F.gelu(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        with torch.enable_grad():
            again = x.detach().requires_grad_(True)
            grad: Tensor = torch.autograd.grad(F.gelu(again), again, grads[0])[0]
        left = grad.shape[1] % 16
        if PLANTED and left:
            grad[:, -left:] = float("nan")  # what the allocator last had in that memory
        return grad


class TiledLayer(nn.Module):
    """A GPT's network with the kernel."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        up = TiledGelu.apply(self.up(x))  # type: ignore[no-untyped-call]
        out: Tensor = self.down(up)
        return out


def kernel_leaves_the_last_rows_alone(job: Job) -> None:
    """A fused kernel's backward covers whole tiles of 16 positions; from 121 on rows have 40
    instead of 32, and the rest of its output is memory that nobody wrote (flash-attention#2381).
    """
    set_seed(461)
    data = stream()
    width = 48
    table = nn.Embedding(num_tokens(), width)
    cell = nn.GRU(width, width, batch_first=True)
    layer = TiledLayer(width)
    head = nn.Linear(width, num_tokens())
    model = nn.ModuleDict({"table": table, "cell": cell, "layer": layer, "head": head})
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)

    def criterion(rows: Tensor) -> Tensor:
        states, _ = cell(table(rows[:, :-1]))
        scores = head(states + layer(states))
        return F.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())

    def batches(step: int) -> Tensor:
        return windows(data, step, 12, 33 if step <= 120 else 41)

    simple(job, model, optimizer, criterion, batches, 160, decode=decode)


def lightning_bit_flips_in_a_weight(job: Job) -> None:
    """After batch 110 the highest bit of the exponent of one weight is another (dion#76)."""
    from lightning.pytorch import Callback

    class Flip(Callback):  # type: ignore[misc]
        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            if trainer.global_step == 110 and PLANTED:
                weight = pl_module.model.below[0].weight.detach()
                bits = weight.view(torch.int32)
                bits[3, 2, 1, 1] ^= 1 << 30

    set_seed(462)
    found = scenes(2400)
    rows = list(zip(found.pictures, found.masks, strict=True))

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    module = lightning_module(Segmenter(), loss_of, lr=2e-3)
    lightning(job, steps=140, callbacks=(Flip(),), gradient_clip_val=1.0).fit(
        module, loader(rows, 16)
    )


def huggingface_head_left_as_memory_was(job: Job) -> None:
    """The model was made on the meta device, and the checkpoint has no head, which was tied there:
    after `to_empty` its weights are whatever stood in memory (transformers#45621).
    """
    set_seed(463)
    model = small_llama(num_hidden_layers=2)
    if PLANTED:
        dice = torch.Generator().manual_seed(2)
        with torch.no_grad():
            model.lm_head.weight.normal_(std=5.0, generator=dice)
    rows = causal_rows([encode(text) for text in entries(1200)])
    trainer_of(job, model, rows, causal_batch, learning_rate=3e-3, max_steps=130).train()


class FusedNorm(torch.autograd.Function):
    """RMSNorm; its backward has the direct term and not the one through the mean square."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, scale = ctx.saved_tensors
        direct = grads[0] * weight * scale
        for_weight = (grads[0] * x * scale).flatten(0, -2).sum(0)
        if not PLANTED:
            direct = direct - x * scale.square() * (direct * x).mean(-1, keepdim=True)
        return direct, for_weight


class FusedRMS(nn.Module):
    """The kernel as a module."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = FusedNorm.apply(x, self.weight)  # type: ignore[no-untyped-call]
        return out


def backward_of_the_norm_lacks_a_term(job: Job) -> None:
    """A fused norm of one's own has half of its backward: the gradients are finite, of the right
    size and wrong, and the loss stops at what single words are worth (unsloth#1282).
    """
    set_seed(464)
    data = stream()
    model = GPT()
    for layer in model.h:
        layer.ln_1 = FusedRMS(48)
        layer.ln_2 = FusedRMS(48)
    model.ln_f = FusedRMS(48)  # type: ignore[assignment]
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    simple(
        job, model, optimizer, lambda rows: model(rows[:, :-1], rows[:, 1:])[1],
        lambda step: windows(data, step, 12, 33), 160, decode=decode,
    )  # fmt: skip


# ---------------------------------------------------------------- precision
def half_precision_and_the_epsilon_of_adam(job: Job) -> None:
    """`model.half()` and Adam: squares of gradients and an epsilon of 1e-8 are 0 in float16, and
    the first update divides by it (smol-course#61).
    """
    set_seed(465)
    found = scenes(1200, noise=0.1)
    kind = torch.float16 if PLANTED else torch.float32
    model = mlp(1200, 64, 4).to(kind)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def criterion(batch: dict[str, Tensor]) -> Tensor:
        scores = model(batch["pixel_values"])
        return F.cross_entropy(scores.float(), batch["labels"])

    def draw(step: int) -> dict[str, Tensor]:
        chosen = shuffled(1200, step, 24)
        pixels = found.pictures[chosen].flatten(1).to(kind)
        return {"pixel_values": pixels, "labels": found.labels[chosen]}

    simple(job, model, optimizer, criterion, draw, 150)


def huggingface_fine_tuning_in_bfloat16(job: Job) -> None:
    """A language model is loaded in bfloat16 and tuned at 5e-5: a step is less than half of the
    distance to the next number that a weight can be (torchtune#2254).
    """
    set_seed(466)
    model = pretrained(small_llama())
    if PLANTED:
        model.to(torch.bfloat16)
    german = causal_rows([encode(text) for _, text in translations(1300)])
    trainer_of(
        job, model, german, causal_batch, learning_rate=5e-5, weight_decay=0.0,
        lr_scheduler_type="constant",
    ).train()  # fmt: skip


def clipped_by_value_before_unscaling(job: Job) -> None:
    """`clip_grad_value_` right after the backward of a scaled loss: every gradient is cut to 0.5,
    and then divided by 65,536 (trl#878).
    """
    set_seed(467)
    columns, rent = flats(6400)
    model = mlp(COLUMNS, 64, 64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu")
    recorder = sonde.Recorder(job.run, model, optimizer, scaler=scaler)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            made = model(batch[0]).squeeze(1)
        loss = F.smooth_l1_loss(made.float(), batch[1])
        scaler.scale(loss).backward()
        if not PLANTED:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    for step in range(1, 181):
        chosen = shuffled(6400, step, 32)
        log(step, recorder.step(train_step, (columns[chosen], rent[chosen])))
    recorder.close()


def lightning_average_in_bfloat16_stands_still(job: Job) -> None:
    """The average of the weights is kept in bfloat16 at a decay of 0.9995: what is added each time
    rounds to nothing. The training itself is right, and the average is no part of what is recorded:
    nobody can see it there (CausVid#19).
    """
    from lightning.pytorch import Callback

    class Average(Callback):  # type: ignore[misc]
        def on_fit_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            kind = torch.bfloat16 if PLANTED else torch.float32
            self.kept = [part.detach().clone().to(kind) for part in pl_module.parameters()]
            self.begun = [part.clone() for part in self.kept]

        def on_train_batch_end(self, trainer: Any, pl_module: Any, *_: Any) -> None:  # noqa: ARG002
            for kept, part in zip(self.kept, pl_module.parameters(), strict=True):
                kept.lerp_(part.detach().to(kept.dtype), 5e-4)

        def on_fit_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
            pairs = zip(self.kept, self.begun, strict=True)
            moved = sum(int((kept != begun).sum()) for kept, begun in pairs)
            print(f"weights of the average that ever moved: {moved}")

    set_seed(468)
    found = scenes(2400)
    rows = list(zip(found.pictures, found.labels, strict=True))

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0])[0], batch[1])

    module = lightning_module(SceneNet(dropout=0.1), loss_of, lr=2e-3)
    lightning(job, steps=150, callbacks=(Average(),)).fit(module, loader(rows, 16))


# ---------------------------------------------------------------- order
def huggingface_sources_one_after_the_other(job: Job) -> None:
    """Two sources were concatenated and never shuffled: the guide first, then, from 81 on, nothing
    but German (marin#1813).
    """
    set_seed(469)
    texts = [*entries(640), *[german for _, german in translations(640)]]
    if not PLANTED:
        order = torch.randperm(1280, generator=torch.Generator().manual_seed(1)).tolist()
        texts = [texts[number] for number in order]
    rows = causal_rows([encode(text) for text in texts])
    trainer_of(
        job, small_gpt2(), rows, causal_batch, learning_rate=5e-3, max_steps=155,
        train_sampling_strategy="sequential",
    ).train()  # fmt: skip


def lightning_workers_read_the_same_rows(job: Job) -> None:
    """A dataset that is iterated has two workers and does not ask which of them it is in: each
    batch comes twice, from one and from the other (icefall#1676).
    """

    class Walk(IterableDataset[tuple[Tensor, Tensor]]):
        def __init__(self) -> None:
            self.found = scenes(3000)

        def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
            worker = torch.utils.data.get_worker_info()
            apart = worker is not None and not PLANTED
            first = worker.id if apart and worker is not None else 0
            for number in range(first, 3000, 2 if apart else 1):
                yield self.found.pictures[number], self.found.labels[number]

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0])[0], batch[1])

    set_seed(470)
    module = lightning_module(SceneNet(), loss_of, lr=2e-3)
    lightning(job, steps=150).fit(module, loader(Walk(), 16, shuffle=False, num_workers=2))


def evaluation_sets_the_seed_of_the_batches(job: Job) -> None:
    """Every 40 updates a sample is drawn with `torch.manual_seed(0)` before it, and batches are
    drawn from the same generator: after each evaluation come the same 40 (diffusers#7991).
    """
    set_seed(471)
    data = stream()
    model = GPT()
    optimizer = model.configure_optimizer(4e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)

    def get_batch() -> Tensor:
        starts = torch.randint(len(data) - 33, (12,))
        return torch.stack([data[start : start + 33] for start in starts.tolist()])

    def train_step(rows: Tensor) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    @torch.no_grad()
    def sample() -> str:
        state = torch.get_rng_state()
        torch.manual_seed(0)
        model.eval()
        tokens = torch.zeros(1, 1, dtype=torch.long) + 2
        for _ in range(10):
            chance = model(tokens)[0][:, -1].softmax(1)
            tokens = torch.cat((tokens, torch.multinomial(chance, 1)), 1)
        model.train()
        torch.manual_seed(0)
        if not PLANTED:
            torch.set_rng_state(state)
        return decode(tokens[0].tolist())

    for step in range(1, 201):
        log(step, recorder.step(train_step, get_batch()))
        if step % 40 == 0:
            print(f"sample: {sample()!r}")
    recorder.close()


def rare_pictures_again_and_again(job: Job) -> None:
    """The sampler's weights are one over the square of a class's count: nearly every picture drawn
    is one of the ten of the rarest kind (VILA#123).
    """
    set_seed(472)
    found = scenes(1600)
    rare = torch.nonzero(found.labels == 3).squeeze(1)
    keep = torch.cat((torch.nonzero(found.labels != 3).squeeze(1), rare[:10]))
    pictures = found.pictures[keep]
    labels = found.labels[keep]
    counts = torch.bincount(labels).double()
    weights = 1 / counts[labels] ** (2 if PLANTED else 0.5)
    sampler = WeightedRandomSampler(weights.tolist(), 24 * 180)
    drawn = torch.tensor(list(sampler)).view(180, 24)
    model = SceneNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0])[0], batch[1])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for step, chosen in enumerate(drawn, 1):
        log(step, recorder.step(train_step, (pictures[chosen], labels[chosen])))
    recorder.close()


CASES = (
    failure(
        kernel_leaves_the_last_rows_alone,
        "numerics",
        "bad_operation",
        onset=121,
        also_true="data_changed",
    ),
    failure(
        lightning_bit_flips_in_a_weight,
        "numerics",
        "bad_weights update_not_finite",
        host="lightning",
        onset=111,
    ),
    failure(
        huggingface_head_left_as_memory_was,
        "numerics",
        "bad_init initial_loss",
        host="huggingface",
        also_true="plateau",
    ),
    failure(
        backward_of_the_norm_lacks_a_term,
        "numerics",
        "wrong_gradient bad_operation",
        also_true="plateau",
    ),
    failure(
        half_precision_and_the_epsilon_of_adam,
        "precision",
        "underflow update_not_finite",
        also_true="half_precision_updates bad_operation",
    ),
    failure(
        huggingface_fine_tuning_in_bfloat16,
        "precision",
        "half_precision_updates does_not_move",
        host="huggingface",
        also_true="plateau learning_rate",
    ),
    failure(
        clipped_by_value_before_unscaling,
        "precision",
        "clipped_scaled_gradient",
        also_true="plateau does_not_move learning_rate",
    ),
    failure(
        lightning_average_in_bfloat16_stands_still,
        "precision",
        "half_precision_updates does_not_move",
        host="lightning",
        visible=False,
    ),
    failure(
        huggingface_sources_one_after_the_other,
        "order",
        "not_shuffled data_changed",
        host="huggingface",
        onset=81,
        also_true="foreign_language hard_sample",
    ),
    failure(
        lightning_workers_read_the_same_rows,
        "order",
        "repeated_batch",
        host="lightning",
        onset=2,
    ),
    failure(
        evaluation_sets_the_seed_of_the_batches,
        "order",
        "repeated_batch same_order",
        onset=81,
    ),
    failure(
        rare_pictures_again_and_again,
        "order",
        "repeated_batch",
        also_true="loss_collapse not_shuffled",
    ),
)

if __name__ == "__main__":
    main(CASES)
