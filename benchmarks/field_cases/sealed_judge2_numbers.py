"""Sealed, second set: numerics and rates that tempt a judge to blame samples."""

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.script import main
from benchmarks.field_cases.second_data import (
    byte_stream,
    epoch_order,
    from_bytes,
    houses,
    stripes,
    waves,
    window,
)
from benchmarks.field_cases.second_loops import begin, nano, over, say
from benchmarks.field_cases.second_models import NanoLM, StripeNet, mlp
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau

import sonde


# ---------------------------------------------------------------- numerics
class Recurrent(nn.Module):
    """A recurrent network with rectified units, whose state grows a little at each step."""

    def __init__(self) -> None:
        super().__init__()
        self.rnn = nn.RNN(1, 24, nonlinearity="relu", batch_first=True)
        self.head = nn.Linear(24, 1)
        with torch.no_grad():
            self.rnn.get_parameter("weight_hh_l0").copy_(torch.eye(24) * 1.02)

    def forward(self, series: Tensor) -> Tensor:
        states, _ = self.rnn(series.unsqueeze(2))
        out: Tensor = self.head(states).squeeze(2)
        return out


def series_grow_too_long(job: Job) -> None:
    """From update 160 on series have 400 steps instead of 20; nothing clips the gradient, and it
    explodes (marin#1368).
    """
    begin(161)
    short = waves(1200, 21)
    long = waves(400, 401)
    model = Recurrent()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def batches() -> Iterator[Tensor]:
        for step in range(190):
            if step < 159:
                yield short[epoch_order(1200, step, 16)]
            else:
                yield long[epoch_order(400, step, 16)]

    over(
        job,
        model,
        optimizer,
        batches(),
        lambda batch: F.mse_loss(model(batch[:, :-1]), batch[:, 1:]),
    )


def rewards_that_are_all_equal(job: Job) -> None:
    """Advantages are divided by the deviation of the rewards, and in one batch every reward is the
    same (Stock-Prediction-Models#43).
    """
    begin(162)
    policy = mlp(12, 32, 4)
    optimizer = torch.optim.Adam(policy.parameters(), lr=2e-3)

    def batches() -> Iterator[dict[str, Tensor]]:
        for step in range(190):
            seen, price = houses(step, 32)
            acted = torch.randint(0, 4, (32,), generator=torch.Generator().manual_seed(step))
            reward = (acted == (price.abs() * 2).long() % 4).float()
            if step == 139:
                reward = torch.zeros(32)
            yield {"obs": seen, "action": acted, "reward": reward}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        reward = batch["reward"]
        advantage = (reward - reward.mean()) / reward.std()
        chances = torch.log_softmax(policy(batch["obs"]), dim=1)
        chosen = chances.gather(1, batch["action"].unsqueeze(1)).squeeze(1)
        return -(advantage * chosen).mean() - 0.01 * (chances * chances.exp()).sum(1).mean()

    over(job, policy, optimizer, batches(), loss_of)


def exponential_of_a_large_column(job: Job) -> None:
    """Counts are predicted as an exponential; one column of one row is in another unit, and the
    exponential overflows (CLIP#46).
    """
    begin(163)
    model = mlp(12, 32, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for step in range(190):
            columns, price = houses(step, 24)
            if step == 154:
                columns[13, :3] = 4000.0
            yield columns, torch.relu(price).round()

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        logarithm = model(batch[0]).squeeze(1)
        loss: Tensor = (torch.exp(logarithm) - batch[1] * logarithm).mean()
        return loss

    over(job, model, optimizer, batches(), loss_of, clip=1.0)


# ---------------------------------------------------------------- rate
def cosine_goes_up_again(job: Job) -> None:
    """`T_max` is a third of the run: the rate is 0 at step 110 and back at its height at 220
    (imagen-pytorch#71).
    """
    begin(164)
    stream = byte_stream()
    model = NanoLM()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1.5e-2)
    scheduler = CosineAnnealingLR(optimizer, T_max=110)
    nano(
        job,
        model,
        optimizer,
        lambda step: window(stream, step, size=8, block=32),
        330,
        decode=from_bytes,
        scheduler=scheduler,
        config={"max_steps": 330, "T_max": 110},
    )


def plateau_of_what_should_rise(job: Job) -> None:
    """`ReduceLROnPlateau` in its mode for losses is given the accuracy: it falls to nothing
    (ViS4mer#4).
    """
    begin(165)
    pictures, labels = stripes(noise=2.0)
    model = StripeNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = ReduceLROnPlateau(optimizer, factor=0.02, patience=1, eps=0.0)
    with sonde.Recorder(job.run, model, optimizer, scheduler=scheduler) as recorder:

        def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
            loss = recorder.loss(F.cross_entropy(model(batch[0]), batch[1]))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            return loss.detach()

        for step in range(1, 261):
            chosen = epoch_order(len(labels), step, 16)
            say(step, recorder.step(train_step, (pictures[chosen], labels[chosen])))
            if step % 10 == 0:
                with torch.no_grad():
                    found = model(pictures[:100]).argmax(1)
                scheduler.step(float((found == labels[:100]).float().mean()))


CASES = (
    failure(
        series_grow_too_long,
        "numerics",
        "exploding_gradient overflow",
        onset=160,
        also_true="learning_rate",
    ),
    failure(rewards_that_are_all_equal, "numerics", "bad_operation bad_input", onset=140),
    failure(
        exponential_of_a_large_column,
        "numerics",
        "overflow bad_operation bad_input odd_row",
        onset=155,
    ),
    failure(cosine_goes_up_again, "rate", "learning_rate rate_zero", onset=111, visible=False),
    failure(
        plateau_of_what_should_rise,
        "rate",
        "learning_rate rate_zero",
        onset=31,
        also_true="plateau does_not_move",
    ),
)

if __name__ == "__main__":
    main(CASES)
