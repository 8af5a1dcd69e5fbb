"""Sealed controls of the third set: exact resumes, and trainings whose numbers look odd."""

import copy

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import (
    clicks,
    corpus,
    cut,
    drawn,
    glyphs,
    graphs,
    loads,
    points,
    ratings,
    sounds,
)
from benchmarks.field_cases.third_loops import Keeper, fit, seed, tell, trainer
from benchmarks.field_cases.third_models import (
    Decoder,
    Factors,
    Forecaster,
    GraphNet,
    Listener,
    PatchNet,
    dense,
)
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde


# ---------------------------------------------------------------- resumes
def resume_with_the_average_too(job: Job) -> None:
    """Weights, moments, and the average of the weights, which the recorder knows, are restored."""
    seed(341)
    texts = corpus()
    model = Decoder(len(texts.pieces), width=40, layers=1, dropout=0.1)
    average = copy.deepcopy(model).requires_grad_(False)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    recorder = sonde.Recorder(
        job.run, model, optimizer, decode=texts.pieces.decode, average=average
    )
    parts = {"model": model, "optimizer": optimizer, "average": average}
    keeper = Keeper(job, parts, saved=90, killed=105, last=160)

    def train_step(rows: Tensor) -> Tensor:
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(average.parameters(), model.parameters(), strict=True):
                slow.lerp_(fast, 0.02)
        return loss.detach()

    for step in keeper.steps(recorder):
        tell(step, recorder.step(train_step, cut(texts.stream, step, 8, 33)))


def resume_huggingface_with_adafactor(job: Job) -> None:
    """The Trainer with Adafactor and a rate that falls linearly restores everything."""
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer

    seed(342)
    texts = corpus()
    rows = [{"row": cut(texts.stream, number, 1, 33)[0]} for number in range(1, 901)]

    def collate(found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        tokens = torch.stack([row["row"] for row in found])
        return {"input_ids": tokens, "labels": tokens}

    settings = GPT2Config(
        vocab_size=len(texts.pieces), n_positions=40, n_embd=40, n_layer=1, n_head=2,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    host = trainer(
        job, Trainer, GPT2LMHeadModel(settings), rows, collate,
        max_steps=160, optim="adafactor", learning_rate=5e-3,
    )  # fmt: skip
    if job.part == 1 or sonde.is_replay():
        host.train()
    else:
        host.train(resume_from_checkpoint=str(job.checkpoints / "checkpoint-100"))


def resume_at_the_end_of_an_epoch(job: Job) -> None:
    """The checkpoint is written when an epoch is over, and the next begins with its own order."""
    seed(343)
    whole = graphs(3, 720)
    model = GraphNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 30, 0.7)
    recorder = sonde.Recorder(job.run, model, optimizer, scheduler=scheduler)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    keeper = Keeper(job, parts, saved=90, killed=97, last=150)

    def train_step(batch: tuple[Tensor, ...]) -> Tensor:
        loss = F.mse_loss(model(batch[0], batch[1]), batch[2])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return loss.detach()

    for step in keeper.steps(recorder):
        chosen = drawn(720, step, 24, seed=5)
        batch = tuple(part[chosen] for part in whole)
        tell(step, recorder.step(train_step, batch))


def resume_is_a_second_phase(job: Job) -> None:
    """Phase two: the weights of phase one, another task's rows, a new optimizer and a lower rate,
    in a new attempt of the run that counts from 1.
    """
    seed(344)
    pictures, labels = glyphs(1200)
    model = PatchNet()
    path = job.checkpoints / "phase1.pt"
    if job.part == 2:
        if path.exists():
            model.load_state_dict(torch.load(path, weights_only=True))
        labels = (labels >= 3).long()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3 if job.part == 1 else 5e-4)
    recorder = sonde.Recorder(job.run, model, optimizer, config={"phase": job.part})

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for step in range(1, 131):
        chosen = drawn(1200, step, 24, seed=job.part)
        tell(step, recorder.step(train_step, (pictures[chosen], labels[chosen])))
    recorder.close()
    if job.part == 1:
        path.parent.mkdir(parents=True, exist_ok=True)
        torch.save(model.state_dict(), path)


# ---------------------------------------------------------------- no resume
def sounds_that_are_too_short(job: Job) -> None:
    """Some sounds are shorter than their transcripts; `zero_infinity=True` leaves them out."""
    seed(345)
    model = Listener()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        heard = model(batch["frames"]).transpose(0, 1)
        return F.ctc_loss(
            heard, batch["symbols"], batch["num_frames"], batch["num_symbols"],
            zero_infinity=True,
        )  # fmt: skip

    def draw(step: int) -> dict[str, Tensor]:
        batch = sounds(step)._asdict()
        batch["num_frames"][step % 16] = 2
        return batch

    fit(job, model, optimizer, loss_of, draw, 200)


def second_loss_ends_at_120(job: Job) -> None:
    """An auxiliary head helps for 120 updates and is dropped then, as planned: the loss falls."""
    seed(346)
    pictures, labels = glyphs(1200)
    model = PatchNet()
    helper = nn.Linear(32, 2)
    both = nn.ModuleDict({"model": model, "helper": helper})
    optimizer = torch.optim.AdamW(both.parameters(), lr=2e-3)

    def loss_of(batch: tuple[Tensor, Tensor, float]) -> Tensor:
        found = model.features(batch[0])
        extra = F.cross_entropy(helper(found), batch[1] % 2)
        return F.cross_entropy(model.head(found), batch[1]) + batch[2] * extra

    def draw(step: int) -> tuple[Tensor, Tensor, float]:
        chosen = drawn(1200, step, 32)
        return pictures[chosen], labels[chosen], 1.0 if step <= 120 else 0.0

    fit(job, both, optimizer, loss_of, draw, 200)


def critic_learns_thrice_a_step(job: Job) -> None:
    """A Wasserstein GAN: three updates of the critic for each of the maker, weights clipped."""
    seed(347)
    maker = dense(4, 48, 2)
    critic = dense(2, 48, 48, 1)
    model = nn.ModuleDict({"maker": maker, "critic": critic})
    of_maker = torch.optim.RMSprop(maker.parameters(), lr=5e-4)
    of_critic = torch.optim.RMSprop(critic.parameters(), lr=5e-4)
    recorder = sonde.Recorder(job.run, model, of_maker, critic_optimizer=of_critic)

    def train_step(real: Tensor) -> Tensor:
        for part in real.chunk(3):
            made = maker(torch.randn(len(part), 4)).detach()
            of_critic.zero_grad()
            (critic(made).mean() - critic(part).mean()).backward()
            of_critic.step()
            with torch.no_grad():
                for parameter in critic.parameters():
                    parameter.clamp_(-0.1, 0.1)
        loss = recorder.loss(-critic(maker(torch.randn(32, 4))).mean())
        of_maker.zero_grad()
        loss.backward()
        of_maker.step()
        return loss.detach()

    for step in range(1, 221):
        tell(step, recorder.step(train_step, points(step, 96)))
    recorder.close()


def layers_computed_again(job: Job) -> None:
    """Activations of a transformer of patches are computed again in backward, with dropout."""
    seed(348)
    pictures, labels = glyphs(960)
    model = PatchNet(layers=3, dropout=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        x = model.patch(batch[0]).flatten(2).transpose(1, 2)
        x = torch.cat((model.token.expand(len(x), -1, -1), x), 1) + model.place
        for layer in model.layers:
            x = checkpoint(layer, x, use_reentrant=False)
        return F.cross_entropy(model.head(model.norm(x)[:, 0]), batch[1])

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = drawn(960, step, 24)
        return pictures[chosen], labels[chosen]

    fit(job, model, optimizer, loss_of, draw, 160)


def three_quarters_are_hidden(job: Job) -> None:
    """A masked autoencoder: twelve of sixteen patches are hidden, and only they count."""
    seed(349)
    pictures, _ = glyphs(960, noise=0.1)
    body = nn.TransformerEncoderLayer(32, 2, 64, 0.0, batch_first=True, norm_first=True)
    model = nn.ModuleDict({"read": nn.Linear(16, 32), "body": body, "write": nn.Linear(32, 16)})
    place = nn.Parameter(0.1 * torch.randn(1, 16, 32))
    hidden = nn.Parameter(torch.zeros(1, 1, 32))
    model.register_parameter("place", place)
    model.register_parameter("hidden", hidden)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(shown: Tensor) -> Tensor:
        patches = F.unfold(shown, 4, stride=4).transpose(1, 2)
        keep = torch.rand(patches.shape[:2]).argsort(1) < 4
        read = torch.where(keep.unsqueeze(2), model["read"](patches), hidden) + place
        made = model["write"](body(read))
        total: Tensor = (made - patches).square().mean(2)[~keep].mean()
        return total

    fit(job, model, optimizer, loss_of, lambda step: pictures[drawn(960, step, 24)], 180)


def adafactor_finds_its_rate(job: Job) -> None:
    """Adafactor with its own relative rate, which falls with the root of the step."""
    from transformers.optimization import Adafactor

    seed(350)
    users, items, stars = ratings()
    model = Factors()
    optimizer = Adafactor(
        model.parameters(), lr=None, scale_parameter=True, relative_step=True, warmup_init=False
    )
    fit(
        job, model, optimizer,
        lambda rows: F.mse_loss(model(users[rows], items[rows]), stars[rows]),
        lambda step: drawn(4000, step, 64), 250,
    )  # fmt: skip


def batch_is_doubled_twice(job: Job) -> None:
    """Instead of a lower rate the batch is doubled at 80 and at 160, as planned."""
    seed(351)
    series = loads(2400)
    model = Forecaster()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)

    def draw(step: int) -> Tensor:
        size = (12, 24, 48)[(step >= 80) + (step >= 160)]
        return series[drawn(2400, step, size)]

    def loss_of(rows: Tensor) -> Tensor:
        return F.mse_loss(model(rows[:, :-1]).squeeze(2), rows[:, 1:])

    fit(job, model, optimizer, loss_of, draw, 230, config={"batch": "12, 24, 48"})


def queue_of_other_rows(job: Job) -> None:
    """MoCo in small: an encoder that follows slowly, and a queue of what it made of rows before."""
    seed(352)
    series = loads(1600)
    fast = dense(36, 64, 16)
    slow = copy.deepcopy(fast).requires_grad_(False)
    queue = F.normalize(torch.randn(128, 16), dim=1)
    optimizer = torch.optim.SGD(fast.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    recorder = sonde.Recorder(job.run, fast, optimizer, slow=slow)

    def train_step(rows: Tensor) -> Tensor:
        ask = F.normalize(fast(rows + 0.1 * torch.randn_like(rows)), dim=1)
        with torch.no_grad():
            for kept, moved in zip(slow.parameters(), fast.parameters(), strict=True):
                kept.lerp_(moved, 0.05)
            key = F.normalize(slow(rows + 0.1 * torch.randn_like(rows)), dim=1)
        others = ask @ queue.clone().t()
        scores = torch.cat(((ask * key).sum(1, keepdim=True), others), 1) / 0.2
        loss = F.cross_entropy(scores, torch.zeros(len(rows), dtype=torch.long))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        queue.copy_(torch.cat((key, queue))[:128])
        return loss.detach()

    for step in range(1, 251):
        tell(step, recorder.step(train_step, series[drawn(1600, step, 16)]))
    recorder.close()


def layers_left_out_at_random(job: Job) -> None:
    """Stochastic depth: each of four layers is left out of three steps in ten, and has no gradient
    then.
    """
    seed(353)
    layers = nn.ModuleList(nn.Linear(48, 48) for _ in range(4))
    model = nn.ModuleDict({"read": nn.Linear(10, 48), "layers": layers, "head": nn.Linear(48, 1)})
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        x = model["read"](batch[0])
        for layer in layers:
            if torch.rand(()) > 0.3:
                x = x + F.relu(layer(x))
        return F.binary_cross_entropy_with_logits(model["head"](x).squeeze(1), batch[1])

    fit(job, model, optimizer, loss_of, clicks, 250)


CASES = (
    control(resume_with_the_average_too),
    control(resume_huggingface_with_adafactor, host="huggingface"),
    control(resume_at_the_end_of_an_epoch),
    control(resume_is_a_second_phase),
    control(sounds_that_are_too_short),
    control(second_loss_ends_at_120),
    control(critic_learns_thrice_a_step),
    control(layers_computed_again),
    control(three_quarters_are_hidden),
    control(adafactor_finds_its_rate),
    control(batch_is_doubled_twice),
    control(queue_of_other_rows),
    control(layers_left_out_at_random),
)

if __name__ == "__main__":
    main(CASES)
