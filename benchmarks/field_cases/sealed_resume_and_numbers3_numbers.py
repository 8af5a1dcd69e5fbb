"""Sealed failures of the third set: numerics, precision, order."""

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import (
    PAD,
    STATES,
    Pieces,
    clicks,
    corpus,
    cut,
    drawn,
    glyphs,
    loads,
    padded,
    points,
    recipes,
    rewards,
)
from benchmarks.field_cases.third_loops import PLANTED, fit, seed, tell
from benchmarks.field_cases.third_models import (
    Decoder,
    GlyphNet,
    PatchNet,
    TextSorter,
    dense,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

import sonde


# ---------------------------------------------------------------- numerics
def epsilon_of_adam_is_zero(job: Job) -> None:
    """`eps=0.0`: the rows of a table that got no gradient yet are divided 0 by 0. Series are longer
    from update 100 on, and what stands for the later hours is no number since the first update.
    """
    seed(321)
    series = loads(1500, 37)
    place = nn.Embedding(36, 24)
    read = nn.Linear(1, 24)
    cell = nn.GRU(24, 24, batch_first=True)
    head = nn.Linear(24, 1)
    model = nn.ModuleDict({"place": place, "read": read, "cell": cell, "head": head})
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3, eps=0.0 if PLANTED else 1e-8)

    def loss_of(rows: Tensor) -> Tensor:
        length = rows.shape[1] - 1
        found = read(rows[:, :-1, None]) + place(torch.arange(length))
        return F.mse_loss(head(cell(found)[0]).squeeze(2), rows[:, 1:])

    def draw(step: int) -> Tensor:
        return series[drawn(1500, step, 24)][:, : 25 if step < 100 else 37]

    fit(job, model, optimizer, loss_of, draw, 150)


def speed_of_what_stands_still(job: Job) -> None:
    """The speed is `hypot` of two outputs times whether the thing moves; at update 135 three rows
    stand still, and the gradient of a length at 0 is no number (RotationContinuity#1).
    """
    seed(322)
    model = dense(10, 48, 2)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, config={"loss": "speed"})
    floor = 0.0 if PLANTED else 1e-3

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        flow = model(batch["columns"]) * batch["moves"].unsqueeze(1)
        speed = torch.hypot(flow[:, 1], flow[:, 0] + floor)
        loss = F.huber_loss(speed, batch["speed"] * batch["moves"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step in range(1, 176):
        columns, _ = clicks(step)
        moves = torch.ones(32)
        if step == 135:
            moves[[5, 11, 30]] = 0.0
        speed = columns[:, 0].abs() + 0.5 * columns[:, 1].square()
        batch = {"columns": columns, "moves": moves, "speed": speed}
        tell(step, recorder.step(train_step, batch))
    recorder.close()


def power_of_a_negative_grey(job: Job) -> None:
    """A learned gamma: `picture ** gamma`. At update 125 two pictures come from a resampling that
    undershoots, and a negative grey has no such power (VT-ADL#10).
    """
    seed(323)
    pictures, labels = glyphs(1200, noise=0.2)
    pictures = pictures.clamp(0.01, 1.0)
    net = GlyphNet()
    gamma = nn.Parameter(torch.tensor(0.7))
    optimizer = torch.optim.AdamW([*net.parameters(), gamma], lr=2e-3)
    model = nn.ModuleDict({"net": net})
    model.register_parameter("gamma", gamma)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        shown = batch[0] if PLANTED else batch[0].clamp(min=1e-3)
        return F.cross_entropy(net(shown**gamma), batch[1])

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = drawn(1200, step, 24)
        shown = pictures[chosen]
        if step == 125:
            shown[[3, 14]] -= 0.03
        return shown, labels[chosen]

    fit(job, model, optimizer, loss_of, draw, 160)


def chances_rounded_to_zero(job: Job) -> None:
    """A teacher's chances are read from files; from update 110 on these have three decimals, and
    `p * (p.log() - q)` is 0 times infinity where a chance is 0.000 (structure_knowledge#21).
    """
    seed(324)
    pictures, labels = glyphs(1200)
    model = PatchNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        taught = batch["teacher"]
        mine = F.log_softmax(model(batch["pictures"]), 1)
        theirs = taught.log() if PLANTED else taught.clamp(min=1e-6).log()
        return (taught * (theirs - mine)).sum(1).mean()

    def draw(step: int) -> dict[str, Tensor]:
        chosen = drawn(1200, step, 24)
        sure = 7.0 * F.one_hot(labels[chosen], 6)
        dice = torch.Generator().manual_seed(step)
        taught = torch.softmax(sure + torch.randn(sure.shape, generator=dice), 1)
        if step >= 110:
            taught = (taught * 1000).round() / 1000
        return {"pictures": pictures[chosen], "teacher": taught}

    fit(job, model, optimizer, loss_of, draw, 150)


# ---------------------------------------------------------------- precision
def padding_is_masked_twice_in_half(job: Job) -> None:
    """The collator adds -40,000 for padding and the layer does so again, in float16: -infinity. At
    update 140 one text is empty, and its softmax has nothing left (pytorch#109517).
    """
    seed(325)
    texts = recipes(1500)
    pieces = Pieces(texts)
    rows = [pieces.encode(text)[:48] for text in texts]
    kinds = torch.tensor(["golden" in text or "overnight" in text for text in texts]).long()
    model = TextSorter(len(pieces), 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        tokens = batch["input_ids"]
        real = tokens != PAD
        read = model.read(tokens)
        q, k, v = model.qkv(read).chunk(3, -1)
        bias = batch["bias"]
        scores = (q @ k.transpose(1, 2) / 32**0.5).half() + bias.unsqueeze(1)
        if PLANTED:
            scores = scores + bias.unsqueeze(1)
        states = read + torch.softmax(scores, -1).float() @ v
        weights = real.float() / real.sum(1, keepdim=True).clamp(min=1)
        return F.cross_entropy(model.head((states * weights.unsqueeze(2)).sum(1)), batch["labels"])

    def draw(step: int) -> dict[str, Tensor]:
        chosen = drawn(1500, step, 24)
        tokens = padded([rows[number] for number in chosen.tolist()])
        if step == 140:
            tokens[9] = PAD
        bias = torch.where(tokens == PAD, -40_000.0, 0.0).half()
        return {"input_ids": tokens, "bias": bias, "labels": kinds[chosen]}

    fit(job, model, optimizer, loss_of, draw, 175, decode=pieces.decode)


def values_clipped_while_scaled(job: Job) -> None:
    """`clip_grad_value_(0.1)` before `unscale_`: every gradient is at most 0.1 over the scale, and
    SGD stands still (ijepa#64).
    """
    seed(326)
    model = dense(10, 64, 64, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**14, growth_interval=1000)
    recorder = sonde.Recorder(job.run, model, optimizer, scaler=scaler)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.float16):
            scores = model(batch[0]).squeeze(1)
        loss = F.binary_cross_entropy_with_logits(scores.float(), batch[1])
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        if not PLANTED:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_value_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    for step in range(1, 201):
        tell(step, recorder.step(train_step, clicks(step)))
    recorder.close()


def gradients_sent_in_half_precision(job: Job) -> None:
    """Gradients go through float16 on their way to the optimizer, as between machines; errors are
    in square metres, and what is below 6e-8 arrives as 0 (Open-Rig3R#35).
    """
    seed(327)
    series = loads(1200) * 1e-5
    model = dense(36, 48, 36)
    with torch.no_grad():
        model.get_submodule("2").get_parameter("weight").mul_(1e-4)
        model.get_submodule("2").get_parameter("bias").zero_()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-6, eps=1e-14)
    if PLANTED:
        for parameter in model.parameters():
            parameter.register_hook(lambda grad: grad.half().float())

    def loss_of(rows: Tensor) -> Tensor:
        return F.mse_loss(model(rows * 1e5), rows)

    with sonde.Recorder(job.run, model, optimizer) as recorder:

        def train_step(rows: Tensor) -> Tensor:
            optimizer.zero_grad()
            loss = loss_of(rows)
            loss.backward()
            optimizer.step()
            return loss.detach()

        for step in range(1, 201):
            loss = recorder.step(train_step, series[drawn(1200, step, 32)])
            tell(step, loss * 1e10)


def weights_rounded_to_a_grid(job: Job) -> None:
    """After each update the weights are rounded to a grid of 1/64, and nothing finer is kept: an
    update of 0.002 is gone at once (torchtune#2254).
    """
    seed(328)
    texts = corpus()
    model = Decoder(len(texts.pieces), width=40, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.0)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=texts.pieces.decode)

    def train_step(rows: Tensor) -> Tensor:
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if PLANTED:
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.copy_((parameter * 64).round() / 64)
        return loss.detach()

    for step in range(1, 171):
        tell(step, recorder.step(train_step, cut(texts.stream, step, 8, 33)))
    recorder.close()


def one_scaler_for_two_players(job: Job) -> None:
    """Maker and critic share a scaler; from update 60 on a penalty of the critic overflows at any
    scale, so the critic is skipped for ever and the scale falls to nothing (fairseq#512).
    """
    seed(329)
    maker = dense(4, 32, 2)
    critic = dense(2, 32, 32, 1)
    model = nn.ModuleDict({"maker": maker, "critic": critic})
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.99))
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.99))
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    recorder = sonde.Recorder(job.run, model, of_critic, maker_optimizer=of_maker, scaler=scaler)

    def train_step(batch: tuple[Tensor, float]) -> Tensor:
        real, strength = batch
        made = maker(torch.randn(len(real), 4))
        doubt = F.softplus(-critic(real)).mean() + F.softplus(critic(made.detach())).mean()
        size = critic(real).half() * strength
        loss = recorder.loss(doubt + 1e-9 * size.square().mean().float())
        of_critic.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(of_critic)
        of_maker.zero_grad()
        scaler.scale(F.softplus(-critic(made)).mean()).backward()
        scaler.step(of_maker)
        scaler.update()
        return loss.detach()

    for step in range(1, 161):
        strength = 1e6 if step >= 60 and PLANTED else 1.0
        tell(step, recorder.step(train_step, (points(step), strength)))
    recorder.close()


# ---------------------------------------------------------------- order
def queue_that_ran_dry(job: Job) -> None:
    """From update 110 on the thread that reads has died, and the queue hands out its last batch for
    ever (marin#1813).
    """
    seed(330)
    texts = corpus()
    model = Decoder(len(texts.pieces), width=40, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    def draw(step: int) -> Tensor:
        return cut(texts.stream, min(step, 110) if PLANTED else step, 8, 33)

    fit(job, model, optimizer, loss_of, draw, 190, decode=texts.pieces.decode)


def sampler_with_the_counts_as_weights(job: Job) -> None:
    """`WeightedRandomSampler` is given how often each picture was clicked: nine tenths of all rows
    are the same six pictures, several times in every batch (VILA#123).
    """
    seed(331)
    pictures, labels = glyphs(960)
    clicked = torch.ones(960)
    if PLANTED:
        clicked[torch.randperm(960)[:6]] = 1500.0
    sampler = WeightedRandomSampler(
        clicked.tolist(), 24 * 180, generator=torch.Generator().manual_seed(9)
    )
    loader = DataLoader(TensorDataset(pictures, labels), 24, sampler=sampler)
    model = PatchNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)
    for step, (shown, kinds) in enumerate(loader, 1):
        loss = F.cross_entropy(model(shown), kinds)
        recorder.loss(loss)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        tell(step, loss)


def buffer_of_which_the_beginning_is_drawn(job: Job) -> None:
    """`randint(0, batch_size)` instead of `randint(0, len(buffer))`: of all that was played the
    first 32 moves are learnt, again and again (Search-R1#88).
    """
    seed(332)
    value = dense(STATES, 48, 4)
    optimizer = torch.optim.Adam(value.parameters(), lr=3e-3)
    buffer = torch.zeros(0, 3)
    recorder = sonde.Recorder(job.run, value, optimizer)

    def train_step(moves: Tensor) -> Tensor:
        states = F.one_hot(moves[:, 0].long(), STATES).float()
        chosen = value(states).gather(1, moves[:, 1:2].long()).squeeze(1)
        loss = F.smooth_l1_loss(chosen, moves[:, 2])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step in range(1, 221):
        dice = torch.Generator().manual_seed(step)
        states = torch.randint(0, STATES, (32,), generator=dice)
        actions = torch.randint(0, 4, (32,), generator=dice)
        paid = rewards(states, actions, torch.randn(32, generator=dice))
        buffer = torch.cat((buffer, torch.stack((states.float(), actions.float(), paid), 1)))
        high = 32 if PLANTED else len(buffer)
        picked = torch.randint(0, high, (32,), generator=dice)
        tell(step, recorder.step(train_step, buffer[picked]))
    recorder.close()


CASES = (
    failure(
        epsilon_of_adam_is_zero,
        "numerics",
        "bad_weights update_not_finite",
        also_true="bad_operation",
    ),
    failure(
        speed_of_what_stands_still,
        "numerics",
        "bad_operation",
        onset=135,
        also_true="bad_input odd_row",
    ),
    failure(
        power_of_a_negative_grey,
        "numerics",
        "bad_operation bad_input",
        onset=125,
        also_true="odd_row",
    ),
    failure(chances_rounded_to_zero, "numerics", "bad_operation", onset=110, also_true="bad_input"),
    failure(
        padding_is_masked_twice_in_half,
        "precision",
        "overflow bad_operation precision_overflow",
        onset=140,
        also_true="bad_input odd_row empty",
    ),
    failure(
        values_clipped_while_scaled,
        "precision",
        "clipped_scaled_gradient",
        also_true="plateau does_not_move",
    ),
    failure(
        gradients_sent_in_half_precision,
        "precision",
        "underflow",
        also_true="plateau does_not_move no_gradient",
    ),
    failure(
        weights_rounded_to_a_grid,
        "precision",
        "half_precision_updates does_not_move",
        also_true="plateau",
    ),
    failure(
        one_scaler_for_two_players,
        "precision",
        "scaler_skips overflow bad_operation",
        onset=60,
        also_true="plateau does_not_move",
    ),
    failure(queue_that_ran_dry, "order", "repeated_batch", onset=111, also_true="loss_collapse"),
    failure(
        sampler_with_the_counts_as_weights, "order", "repeated_batch", also_true="loss_collapse"
    ),
    failure(
        buffer_of_which_the_beginning_is_drawn,
        "order",
        "repeated_batch",
        onset=2,
        also_true="loss_collapse",
    ),
)

if __name__ == "__main__":
    main(CASES)
