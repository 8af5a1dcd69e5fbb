"""Sealed failures of the third set: resumes of weights, moments and schedules."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import (
    PAD,
    clicks,
    corpus,
    cut,
    dates,
    drawn,
    glyphs,
    loads,
    points,
    read_letters,
)
from benchmarks.field_cases.third_loops import PLANTED, Keeper, seed, tell
from benchmarks.field_cases.third_models import (
    DateReader,
    Decoder,
    Forecaster,
    GlyphNet,
    PatchNet,
    dense,
)
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR

import sonde


def resume_with_moments_in_half_precision(job: Job) -> None:
    """The optimizer's state was saved in float16 to save space: second moments of 1e-9 are 0 there,
    and the first updates are divided by nothing (torchtune#2254).
    """
    seed(301)
    series = loads(1500)
    model = Forecaster()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)
    keeper = Keeper(job, {"model": model, "optimizer": optimizer}, saved=100, killed=115, last=170)

    def train_step(rows: Tensor) -> Tensor:
        loss = F.mse_loss(model(rows[:, :-1]).squeeze(2), rows[:, 1:]) / 100
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def save(step: int) -> dict[str, Any]:
        whole = copy.deepcopy(keeper.state(step))
        if PLANTED:
            for state in whole["optimizer"]["state"].values():
                for name in ("exp_avg", "exp_avg_sq"):
                    state[name] = state[name].half()
        return whole

    for step in keeper.steps(recorder, save=save):
        tell(step, recorder.step(train_step, series[drawn(1500, step, 32)]))


def resume_without_the_learned_weights_of_the_loss(job: Job) -> None:
    """Two tasks are weighed by parameters of the loss; the checkpoint has the model's alone
    (sentence-transformers#2648).
    """
    seed(302)
    model = dense(10, 48, 2)
    criterion = nn.Module()
    criterion.register_parameter("log_vars", nn.Parameter(torch.zeros(2)))
    log_vars = criterion.get_parameter("log_vars")
    optimizer = torch.optim.Adam([*model.parameters(), log_vars], lr=2e-2)
    recorder = sonde.Recorder(job.run, model, optimizer, criterion=criterion)
    parts = {"model": model, "optimizer": optimizer, "criterion": criterion}
    keeper = Keeper(job, parts, saved=120, killed=130, last=190)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        columns, clicked = batch
        price, click = model(columns).unbind(1)
        losses = torch.stack([
            F.mse_loss(price, 0.3 * columns[:, 0] - 0.2 * columns[:, 5]),
            F.binary_cross_entropy_with_logits(click, clicked),
        ])  # fmt: skip
        loss = (torch.exp(-log_vars) * losses + log_vars).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    def load(state: dict[str, Any]) -> int:
        return keeper.load(state, *(["criterion"] if PLANTED else []))

    for step in keeper.steps(recorder, load):
        tell(step, recorder.step(train_step, clicks(step)))


def resume_with_a_new_critic_optimizer(job: Job) -> None:
    """Of two optimizers of a GAN the checkpoint's loader knows one (stylegan2-ada-pytorch#108)."""
    seed(303)
    maker = dense(4, 48, 2)
    critic = dense(2, 48, 48, 1)
    model = nn.ModuleDict({"maker": maker, "critic": critic})
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.99))
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.99))
    recorder = sonde.Recorder(job.run, model, of_maker, critic_optimizer=of_critic)
    parts = {"model": model, "optimizer": of_maker, "critic_optimizer": of_critic}
    keeper = Keeper(job, parts, saved=100, killed=112, last=170)

    def train_step(real: Tensor) -> Tensor:
        made = maker(torch.randn(len(real), 4))
        doubt = F.relu(1 - critic(real)).mean() + F.relu(1 + critic(made.detach())).mean()
        of_critic.zero_grad()
        doubt.backward()
        of_critic.step()
        loss = recorder.loss(-critic(made).mean())
        of_maker.zero_grad()
        loss.backward()
        of_maker.step()
        return loss.detach()

    def load(state: dict[str, Any]) -> int:
        return keeper.load(state, *(["critic_optimizer"] if PLANTED else []))

    for step in keeper.steps(recorder, load):
        tell(step, recorder.step(train_step, points(step)))


def resume_with_groups_but_no_momentum(job: Job) -> None:
    """Only `param_groups` of the optimizer were saved, so SGD begins without momentum
    (Automodel#763).
    """
    seed(304)
    pictures, labels = glyphs(1200)
    model = GlyphNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9, nesterov=True)
    recorder = sonde.Recorder(job.run, model, optimizer, config={"optimizer": "sgd"})
    keeper = Keeper(job, {"model": model, "optimizer": optimizer}, saved=90, killed=100, last=160)

    def save(step: int) -> dict[str, Any]:
        whole = keeper.state(step)
        if PLANTED:
            whole["optimizer"]["state"] = {}
        return whole

    def train_step(batch: list[Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step in keeper.steps(recorder, save=save):
        chosen = drawn(1200, step, 24)
        tell(step, recorder.step(train_step, [pictures[chosen], labels[chosen]]))


def resume_tied_the_wrong_way_round(job: Job) -> None:
    """The tied head is not in the checkpoint, since it is the embedding; the new script ties after
    loading, and makes the embedding the new head instead (speculators#1049).
    """
    seed(305)
    texts = corpus()
    model = Decoder(len(texts.pieces), width=40, layers=1)
    fresh = model.head.weight.detach().clone()
    model.head.weight = model.embed.weight
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=texts.pieces.decode)
    keeper = Keeper(job, {"model": model, "optimizer": optimizer}, saved=110, killed=120, last=180)

    def load(state: dict[str, Any]) -> int:
        model.load_state_dict(state["model"])
        if PLANTED:
            with torch.no_grad():
                model.embed.weight.copy_(fresh)
        return keeper.load(state, "model")

    def train_step(rows: Tensor) -> Tensor:
        loss = F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for step in keeper.steps(recorder, load):
        tell(step, recorder.step(train_step, cut(texts.stream, step, 10, 33)))


def resume_with_a_schedule_twice_as_far(job: Job) -> None:
    """The scheduler's state is loaded, and then the script steps it as often as it has trained:
    the cosine is twice as far as it should be (slime#1547).
    """
    seed(306)
    model = DateReader(width=56)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    scheduler = CosineAnnealingLR(optimizer, 220)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=read_letters, scheduler=scheduler)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    keeper = Keeper(job, parts, saved=90, killed=105, last=165)

    def load(state: dict[str, Any]) -> int:
        start = keeper.load(state)
        for _ in range(start if PLANTED else 0):
            scheduler.step()
        return start

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        source, target = batch
        logits = model(source, target[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return loss.detach()

    for step in keeper.steps(recorder, load):
        tell(step, recorder.step(train_step, dates(step)))


def resume_with_a_teacher_made_too_early(job: Job) -> None:
    """The average of the weights that teaches the student is copied from the model before the
    checkpoint is loaded, and is not in it: after the resume it teaches noise (QANet-PyTorch#4).
    """
    seed(307)
    pictures, labels = glyphs(1200)
    student = PatchNet(dropout=0.1)
    teacher = copy.deepcopy(student).requires_grad_(False)
    optimizer = torch.optim.AdamW(student.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, student, optimizer, teacher=teacher)
    parts = {"model": student, "optimizer": optimizer, "teacher": teacher}
    keeper = Keeper(job, parts, saved=120, killed=130, last=190)

    def load(state: dict[str, Any]) -> int:
        return keeper.load(state, *(["teacher"] if PLANTED else []))

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        scores = student(batch[0])
        taught = teacher(batch[0] + 0.1 * torch.randn_like(batch[0]))
        agree = F.mse_loss(F.softmax(scores, 1), F.softmax(taught, 1))
        loss = F.cross_entropy(scores, batch[1]) + 5.0 * agree
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                slow.lerp_(fast, 0.03)
        return loss.detach()

    for step in keeper.steps(recorder, load):
        chosen = drawn(1200, step, 32)
        tell(step, recorder.step(train_step, (pictures[chosen], labels[chosen])))


def resume_in_evaluation_mode(job: Job) -> None:
    """After loading, the script checks the model on a few pictures, and stays in evaluation mode
    (pytorch-template#68).
    """
    seed(308)
    pictures, labels = glyphs(1200)
    model = PatchNet(dropout=0.3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)
    keeper = Keeper(job, {"model": model, "optimizer": optimizer}, saved=100, killed=110, last=180)

    def load(state: dict[str, Any]) -> int:
        start = keeper.load(state)
        model.eval()
        with torch.no_grad():
            right = (model(pictures[:200]).argmax(1) == labels[:200]).float().mean()
        print(f"loaded step {start}: accuracy {float(right):.3f}")
        if not PLANTED:
            model.train()
        return start

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for step in keeper.steps(recorder, load):
        chosen = drawn(1200, step, 24)
        tell(step, recorder.step(train_step, (pictures[chosen], labels[chosen])))


CASES = (
    failure(resume_with_moments_in_half_precision, "resume", "resume_optimizer", onset=101),
    failure(resume_without_the_learned_weights_of_the_loss, "resume", "resume_weights", onset=121),
    failure(resume_with_a_new_critic_optimizer, "resume", "resume_optimizer", onset=101),
    failure(resume_with_groups_but_no_momentum, "resume", "resume_optimizer", onset=91),
    failure(resume_tied_the_wrong_way_round, "resume", "resume_weights", onset=111),
    failure(
        resume_with_a_schedule_twice_as_far,
        "resume",
        "resume_schedule",
        onset=91,
        also_true="learning_rate",
    ),
    failure(
        resume_with_a_teacher_made_too_early,
        "resume",
        "resume_weights resume_average",
        onset=121,
    ),
    failure(resume_in_evaluation_mode, "resume", "eval_mode dropout_off", onset=101),
)

if __name__ == "__main__":
    main(CASES)
