"""Sealed failures of the third set for the judges: numbers that go wrong midway, and rates."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import (
    clicks,
    corpus,
    cut,
    drawn,
    glyphs,
    graphs,
    loads,
    sounds,
)
from benchmarks.field_cases.third_loops import PLANTED, fit, seed, tell
from benchmarks.field_cases.third_models import (
    Decoder,
    Forecaster,
    GlyphNet,
    GraphNet,
    Listener,
    dense,
)
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

import sonde


# ---------------------------------------------------------------- numerics
def a_bit_of_a_moment_flips(job: Job) -> None:
    """A bit flips in the memory of the optimizer after update 130: one first moment of Adam is 1e6,
    and the weight it belongs to is thrown away with the next update (dion#76).
    """
    seed(201)
    series = loads(1500)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(rows: Tensor) -> Tensor:
        loss = F.mse_loss(model(rows[:, :-1]).squeeze(2), rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    for step in range(1, 191):
        tell(step, recorder.step(train_step, series[drawn(1500, step, 32)]))
        if step == 130 and PLANTED:
            moments: Tensor = optimizer.state[model.last.weight]["exp_avg"]
            moments[0, 4, 0] = 1e6
    recorder.close()


def spectrum_of_a_silent_clip(job: Job) -> None:
    """The loss compares logarithms of spectra, and one clip of a batch is silent: the logarithm of
    0 is infinite (sudo_rm_rf#1).
    """
    seed(202)
    clips = loads(1200, 32)
    model = nn.Sequential(nn.Conv1d(1, 16, 5, padding=2), nn.GELU(), nn.Conv1d(16, 1, 5, padding=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    floor = 0.0 if PLANTED else 1e-3

    def loss_of(clean: Tensor) -> Tensor:
        made = model((clean + 0.3 * torch.randn_like(clean)).unsqueeze(1)).squeeze(1)
        ours = (torch.fft.rfft(made).abs() + floor).log()
        theirs = (torch.fft.rfft(clean).abs() + floor).log()
        total: Tensor = F.l1_loss(made, clean) + 0.1 * (ours - theirs).square().mean()
        return total

    def draw(step: int) -> Tensor:
        batch = clips[drawn(1200, step, 16)]
        if step == 150:
            batch[9] = 0.0
        return batch

    fit(job, model, optimizer, loss_of, draw, 180)


def node_without_neighbours(job: Job) -> None:
    """Messages are weighted by degrees to the power of -1/2; at update 120 a graph has a node with
    no neighbour, and 0 times infinity is no number (SMP#3).
    """
    seed(203)
    model = GraphNet()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, config={"task": "graphs"})

    def train_step(batch: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        nodes, adjacency, target = batch
        degree = adjacency.sum(2)
        if not PLANTED:
            degree = degree.clamp(min=1)
        root = degree.pow(-0.5)
        spread = root.unsqueeze(2) * adjacency * root.unsqueeze(1)
        x = F.relu(model.read(nodes))
        for own, others in zip(model.own, model.others, strict=True):
            x = x + F.relu(own(x) + others(spread @ x))
        loss = F.mse_loss(model.head(x).squeeze(2).mean(1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step in range(1, 161):
        batch = graphs(step)
        if step == 120:
            batch.adjacency[13, 4, :] = 0.0
            batch.adjacency[13, :, 4] = 0.0
        tell(step, recorder.step(train_step, tuple(batch)))
    recorder.close()


def whitening_of_equal_rows(job: Job) -> None:
    """Features are whitened by `eigh` of their covariance; at update 140 a stuck reader hands out
    one row sixteen times, the eigenvalues are equal, and the gradient is no number (pytorch#47599).
    """
    seed(204)
    series = loads(1200)
    encoder = dense(36, 48, 6)
    decoder = dense(6, 48, 36)
    model = nn.ModuleDict({"encoder": encoder, "decoder": decoder})
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_of(rows: Tensor) -> Tensor:
        found = encoder(rows)
        centred = found - found.mean(0)
        spread = centred.t() @ centred / len(rows) + 1e-3 * torch.eye(6)
        if not PLANTED:
            spread = spread + torch.diag(torch.arange(6) * 1e-5)
        values, vectors = torch.linalg.eigh(torch.nan_to_num(spread))
        white = centred @ (vectors * values.rsqrt()) @ vectors.t()
        return F.mse_loss(decoder(white), rows)

    def draw(step: int) -> Tensor:
        chosen = drawn(1200, step, 16)
        return series[chosen[:1].expand(16) if step == 140 else chosen]

    fit(job, model, optimizer, loss_of, draw, 170)


class FusedGate(torch.autograd.Function):
    """x * sigmoid(x) in one kernel; its backward is written with the exponential of x."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x * torch.sigmoid(x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        grown = x.exp()
        return grad * grown * (grown + x + 1) / (grown + 1) ** 2


def backward_of_a_fused_gate(job: Job) -> None:
    """A kernel of one's own is right forwards and overflows backwards where its input is above 44,
    as in a loud recording at update 130 (transformers#45621).
    """
    seed(205)
    gate: Any = FusedGate.apply
    model = nn.ModuleDict({"read": nn.Linear(10, 48), "head": nn.Linear(48, 1)})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        found = model["read"](batch[0])
        found = gate(found) if PLANTED else F.silu(found)
        return F.binary_cross_entropy_with_logits(model["head"](found).squeeze(1), batch[1])

    def draw(step: int) -> tuple[Tensor, Tensor]:
        columns, clicked = clicks(step)
        if step == 130:
            columns[21] *= 60.0
        return columns, clicked

    fit(job, model, optimizer, loss_of, draw, 170)


# ---------------------------------------------------------------- rate
def rate_falls_below_zero(job: Job) -> None:
    """`1 - step / 140`, and the training goes on to 220: below zero the optimizer climbs
    (nanoGPT#136).
    """
    seed(206)
    texts = corpus()
    model = Decoder(len(texts.pieces), width=40, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)

    def factor(step: int) -> float:
        return 1 - step / 140 if PLANTED else max(0.0, 1 - step / 260)

    scheduler = LambdaLR(optimizer, factor)
    recorder = sonde.Recorder(
        job.run, model, optimizer, decode=texts.pieces.decode, scheduler=scheduler
    )

    def train_step(rows: Tensor) -> float:
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss.item()

    for step in range(1, 221):
        tell(step, recorder.step(train_step, cut(texts.stream, step, 8, 33)))
    recorder.close()


def noam_without_its_minus(job: Job) -> None:
    """The rate of the first transformer, `width ** -0.5 * …`, was copied without the minus: it is
    512 times too high (nanoGPT#136).
    """
    seed(207)
    model = Listener()
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    power = 0.5 if PLANTED else -0.5

    def factor(step: int) -> float:
        step += 1
        return float(512**power * min(step**-0.5, step * 40**-1.5))

    scheduler = LambdaLR(optimizer, factor)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        heard = model(batch["frames"]).transpose(0, 1)
        return F.ctc_loss(heard, batch["symbols"], batch["num_frames"], batch["num_symbols"])

    fit(
        job, model, optimizer, loss_of, lambda step: sounds(step)._asdict(), 180,
        scheduler=scheduler,
    )  # fmt: skip


def decay_of_a_half(job: Job) -> None:
    """`weight_decay=0.5` where 0.0005 was meant: SGD pulls each weight to zero nearly as fast as it
    learns, and the loss stops at 1.3 where it should come near 0.
    """
    seed(208)
    pictures, labels = glyphs(960)
    model = GlyphNet()
    decay = 0.5 if PLANTED else 5e-4
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=decay)
    recorder = sonde.Recorder(job.run, model, optimizer)
    criterion = nn.CrossEntropyLoss()
    for step in range(1, 201):
        chosen = drawn(960, step, 32)
        optimizer.zero_grad()
        loss = criterion(model(pictures[chosen]), labels[chosen])
        recorder.loss(loss)
        loss.backward()
        optimizer.step()
        tell(step, loss)


CASES = (
    failure(a_bit_of_a_moment_flips, "numerics", "optimizer_state bad_weights", onset=131),
    failure(
        spectrum_of_a_silent_clip,
        "numerics",
        "bad_operation bad_input",
        onset=150,
        also_true="odd_row overflow",
    ),
    failure(
        node_without_neighbours,
        "numerics",
        "bad_operation",
        onset=120,
        also_true="bad_input odd_row",
    ),
    failure(
        whitening_of_equal_rows,
        "numerics",
        "bad_operation",
        onset=140,
        also_true="repeated_batch odd_row bad_input",
    ),
    failure(
        backward_of_a_fused_gate,
        "numerics",
        "bad_operation",
        onset=130,
        also_true="odd_row bad_input overflow",
    ),
    failure(rate_falls_below_zero, "rate", "learning_rate negative_rate", onset=142),
    failure(noam_without_its_minus, "rate", "learning_rate", also_true="plateau"),
    failure(decay_of_a_half, "rate", "weight_decay", also_true="plateau learning_rate"),
)

if __name__ == "__main__":
    main(CASES)
