"""Failures of the fourth set: odd rows where there is no text, numbers that break midway, rates."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fourth_data import (
    ASSISTANT,
    COLUMNS,
    PAD,
    PLACES,
    SIDE,
    Corridors,
    Speech,
    conversations,
    decode,
    encode,
    entries,
    flats,
    padded,
    scenes,
    shuffled,
    speech,
    stream,
    templated,
    translations,
    windows,
)
from benchmarks.field_cases.fourth_loops import (
    PLANTED,
    causal_batch,
    causal_rows,
    cosine,
    log,
    pretrained,
    set_seed,
    trainer_of,
)
from benchmarks.field_cases.fourth_models import (
    GPT,
    Listener,
    SceneNet,
    Segmenter,
    add_adapters,
    mlp,
    small_gpt2,
    small_llama,
)
from benchmarks.field_cases.hosts import lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn
from torch.optim.lr_scheduler import CosineAnnealingLR, LambdaLR

import sonde


# ---------------------------------------------------------------- rows
def box_left_of_the_edge(job: Job) -> None:
    """Boxes are read as 16 bits without a sign, and 1 is subtracted: what touches the edge begins
    at 65535. Two rows of sixteen, at 130 (faster-rcnn.pytorch#562).
    """
    set_seed(411)
    found = scenes(1600)
    model = SceneNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        kind, box = model(batch["image"])
        loss = F.cross_entropy(kind, batch["label"]) + 2 * F.smooth_l1_loss(box, batch["box"])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        return loss

    for step in range(1, 171):
        chosen = shuffled(1600, step, 16)
        boxes = found.boxes[chosen]
        if step == 130 and PLANTED:
            boxes[3, 0] = 65535 / SIDE
            boxes[9, 1] = 65535 / SIDE
        batch = {"image": found.pictures[chosen], "label": found.labels[chosen], "box": boxes}
        log(step, recorder.step(train_step, batch))
    recorder.close()


def lightning_scan_in_hounsfield_units(job: Job) -> None:
    """Three scans of twelve, at 110, were not brought to the range of the others: they are still
    in the units of the scanner (DEVIANT#2).
    """
    set_seed(412)
    found = scenes(1680)
    rows: list[tuple[Tensor, Tensor]] = []
    for step in range(1, 141):
        chosen = shuffled(1680, step, 12)
        pictures = found.pictures[chosen]
        if step == 110 and PLANTED:
            pictures[4:7] = 1000 * pictures[4:7] - 1024
        rows.append((pictures, found.masks[chosen]))

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    module = lightning_module(Segmenter(), loss_of, lr=3e-3)
    lightning(job, steps=140, gradient_clip_val=1.0).fit(module, loader(rows, None, shuffle=False))


def unknown_rent_is_a_number(job: Job) -> None:
    """Where the rent is unknown the table says -999: one row of 32, at 160."""
    set_seed(413)
    columns, rent = flats(6400)
    model = mlp(COLUMNS, 48, 48, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    scheduler = LambdaLR(optimizer, lambda epoch: 0.7**epoch)
    recorder = sonde.Recorder(job.run, model, optimizer, scheduler=scheduler)
    for step in range(1, 201):
        chosen = shuffled(6400, step, 32)
        wanted = rent[chosen]
        if step == 160 and PLANTED:
            wanted[11] = -999.0
        loss = F.mse_loss(model(columns[chosen]).squeeze(1), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 0:
            scheduler.step()
        log(step, loss)
    recorder.close()


# ---------------------------------------------------------------- numerics
def lightning_transcript_longer_than_its_sound(job: Job) -> None:
    """A transcript with the same phone twice needs a blank between, and no longer fits its frames:
    the loss of that row is infinite, at 100 (icefall#1777).
    """
    set_seed(414)
    rows: list[Speech] = []
    for step in range(1, 131):
        batch = speech(step, 12)
        if step == 100 and PLANTED:
            length = int(batch.num_frames[5]) // 2
            batch.phones[5] = 4
            batch.num_phones[5] = batch.phones.shape[1]
            batch.num_frames[5] = min(length, 2 * batch.phones.shape[1])
        rows.append(batch)

    def loss_of(model: nn.Module, batch: Any) -> Tensor:
        heard = Speech(*batch)
        scores, num = model(heard.frames, heard.num_frames)
        return F.ctc_loss(scores.transpose(0, 1), heard.phones, num, heard.num_phones)

    module = lightning_module(Listener(), loss_of, lr=4e-3)
    lightning(job, steps=130, gradient_clip_val=5.0).fit(module, loader(rows, None, shuffle=False))


class Reader(nn.Module):
    """Sorts texts: attention by hand, then a mean."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.table = nn.Embedding(600, width)
        self.places = nn.Embedding(96, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.head = mlp(width, width, 3)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[1]))
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / k.shape[-1] ** 0.5
        scores = scores.masked_fill(mask[:, None, :] == 0, float("-inf"))
        x = x + torch.softmax(scores, -1) @ v
        total = (x * mask.unsqueeze(2)).sum(1) / mask.sum(1, keepdim=True).clamp(min=1)
        out: Tensor = self.head(total)
        return out


def text_that_is_all_padding(job: Job) -> None:
    """One text of twenty is empty, at 110: its attention is a softmax over nothing
    (pytorch#109517).
    """
    set_seed(415)
    texts = entries(2400)
    kinds = torch.zeros(2400, dtype=torch.long)
    for number, text in enumerate(texts):
        if "burned" in text:
            kinds[number] = 1
        elif "sold" in text:
            kinds[number] = 2
    kinds[::9] = torch.randint(0, 3, kinds[::9].shape)
    rows = [encode(text)[:64] for text in texts]
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        scores = model(batch["input_ids"], batch["attention_mask"])
        loss = F.cross_entropy(scores, batch["labels"])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for step in range(1, 161):
        chosen = shuffled(2400, step, 20).tolist()
        shown = [rows[number] for number in chosen]
        if step == 110 and PLANTED:
            shown[7] = []
        tokens = padded(shown)
        mask = (tokens != PAD).long()
        batch = {"input_ids": tokens, "attention_mask": mask, "labels": kinds[chosen]}
        log(step, recorder.step(train_step, batch))
    recorder.close()


def entropy_with_moves_that_are_not_allowed(job: Job) -> None:
    """From 91 on walls forbid moves: their scores are minus infinity, and the entropy multiplies a
    chance of 0 by its logarithm (verl#3597).
    """
    set_seed(416)
    policy = mlp(PLACES, 32, 2)
    optimizer = torch.optim.Adam(policy.parameters(), lr=4e-3)
    recorder = sonde.Recorder(job.run, policy, optimizer)
    walks = Corridors(64, 6)

    def masked(at: Tensor, legal: Tensor) -> Tensor:
        scores: Tensor = policy(F.one_hot(at, PLACES).float())
        return scores.masked_fill(~legal, float("-inf"))

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        chance = masked(batch["at"], batch["legal"]).softmax(1)
        taken = chance.gather(1, batch["move"].unsqueeze(1)).squeeze(1)
        plus = 1e-8 if not PLANTED else 0.0
        entropy = -(chance * (chance + plus).log()).sum(1).mean()
        loss = recorder.loss(-(taken.log() * batch["good"]).mean() - 0.01 * entropy)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 0.5)
        optimizer.step()
        return loss.detach()

    for step in range(1, 151):
        legal = torch.ones(64, 2, dtype=torch.bool)
        if step > 90:
            legal[:, 0] = walks.at > 0
        with torch.no_grad():
            chance = masked(walks.at, legal).softmax(1)
        move = (torch.rand(64, generator=walks.generator) < chance[:, 1]).long()
        at, paid, after, _ = walks.step(move)
        good = paid + 0.3 * (after - at)
        batch = {"at": at, "legal": legal, "move": move, "good": good - good.mean()}
        log(step, recorder.step(train_step, batch))
    recorder.close()


def huggingface_answer_cut_off_entirely(job: Job) -> None:
    """Each row's loss is divided by the tokens of its answer; at 80 a question is so long that none
    is left after truncation (axolotl#2089).
    """
    from transformers import Trainer

    class PerRow(Trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **_: Any
        ) -> Any:
            out = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
            labels = inputs["labels"][:, 1:]
            each = F.cross_entropy(
                out.logits[:, :-1].transpose(1, 2), labels, reduction="none"
            ).sum(1)
            loss = (each / (labels != -100).sum(1)).mean()
            return (loss, out) if return_outputs else loss

    set_seed(417)
    rows: list[dict[str, Any]] = []
    for number, turns in enumerate(conversations(1000)):
        if number == 79 * 8 + 3 and PLANTED:
            turns[0] = turns[0]._replace(text=" ".join(entries(9)))
        tokens, roles = templated(turns)
        labels = [
            token if role == ASSISTANT else -100 for token, role in zip(tokens, roles, strict=True)
        ]
        rows.append({"input_ids": tokens[:80], "labels": labels[:80]})
    trainer_of(
        job, small_gpt2(), rows, causal_batch, kind=PerRow, max_steps=115, learning_rate=5e-3,
        train_sampling_strategy="sequential", logging_nan_inf_filter=False,
    ).train()  # fmt: skip


# ---------------------------------------------------------------- rate
def scheduler_steps_with_every_micro_batch(job: Job) -> None:
    """Warm-up and decay are made for 200 updates, and `scheduler.step()` stands outside the `if`
    that takes a step: with four micro-batches the rate is 0 from update 51 on.
    """
    set_seed(418)
    data = stream()
    model = GPT(layers=1)
    optimizer = model.configure_optimizer(5e-3)
    scheduler = LambdaLR(optimizer, lambda step: cosine(step + 1, peak=1.0, warm=20, last=200))
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode, scheduler=scheduler)

    def train_step(rows: Tensor, last: bool) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        (loss / 4).backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        if last or PLANTED:
            scheduler.step()
        return loss.detach()

    for number in range(1, 4 * 120 + 1):
        loss = recorder.step(train_step, windows(data, number, 6, 33), last=number % 4 == 0)
        if number % 4 == 0:
            log(number // 4, loss)
    recorder.close()


def cosine_climbs_again(job: Job) -> None:
    """`CosineAnnealingLR` was made for 60 epochs and is stepped with every batch: after 60 batches
    the rate climbs back to where it began (ivadomed#57).
    """
    set_seed(419)
    found = scenes(1600)
    model = SceneNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.08, momentum=0.9)
    scheduler = CosineAnnealingLR(optimizer, T_max=60 if PLANTED else 200)
    recorder = sonde.Recorder(job.run, model, optimizer, scheduler=scheduler)

    def train_step(batch: list[Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0])[0], batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        scheduler.step()
        return loss

    for step in range(1, 201):
        chosen = shuffled(1600, step, 32)
        loss = recorder.step(train_step, [found.pictures[chosen], found.labels[chosen]])
        log(step, loss)
    recorder.close()


def lightning_backbone_at_the_rate_of_the_head(job: Job) -> None:
    """The backbone is unfrozen after 100 batches with `add_param_group`, without a rate of its own:
    it gets the one that the head was given (LLaVA#918).
    """
    from lightning.pytorch import Callback, LightningModule

    class Tuned(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            self.net.backbone.requires_grad_(False)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            loss = F.cross_entropy(self.net(batch[0])[0], batch[1])
            log(batch_idx + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD([*self.net.kind.parameters()], lr=0.03, momentum=0.9)

    class Unfreeze(Callback):  # type: ignore[misc]
        def on_train_batch_start(self, trainer: Any, pl_module: Any, *_: Any) -> None:
            if trainer.global_step == 100:
                backbone = pl_module.net.backbone.requires_grad_(True)
                group: dict[str, Any] = {"params": [*backbone.parameters()]}
                if not PLANTED:
                    group["lr"] = 1e-3
                trainer.optimizers[0].add_param_group(group)

    set_seed(420)
    net = SceneNet()
    before = scenes(1600, seed=54, noise=0.15)
    first = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(1, 101):
        chosen = shuffled(1600, step, 32)
        F.cross_entropy(net(before.pictures[chosen])[0], before.labels[chosen]).backward()
        first.step()
        first.zero_grad()
    net.kind.reset_parameters()
    found = scenes(4800, noise=0.15)
    rows = list(zip(found.pictures, found.labels, strict=True))
    lightning(job, steps=150, callbacks=(Unfreeze(),)).fit(Tuned(), loader(rows, 32))


def huggingface_adapters_eightyfold(job: Job) -> None:
    """`alpha` was taken for the scale itself and multiplied by the rank instead of divided by it:
    what the adapters add counts eightyfold (mlx-examples#620).
    """
    set_seed(421)
    model = pretrained(small_llama())
    names = ("q_proj", "v_proj", "o_proj", "down_proj")
    add_adapters(model, names, rank=8, alpha=640.0 if PLANTED else 16.0)
    rows = causal_rows([encode(german) for _, german in translations(1000)])
    trainer_of(
        job, model, rows, causal_batch, max_steps=120, learning_rate=5e-3, weight_decay=0.0,
        warmup_steps=5,
    ).train()  # fmt: skip


CASES = (
    failure(box_left_of_the_edge, "rows", "odd_row bad_input", onset=130),
    failure(
        lightning_scan_in_hounsfield_units,
        "rows",
        "odd_row bad_input",
        host="lightning",
        onset=110,
    ),
    failure(unknown_rent_is_a_number, "rows", "odd_row bad_input", onset=160),
    failure(
        lightning_transcript_longer_than_its_sound,
        "numerics",
        "bad_operation bad_input odd_row",
        host="lightning",
        onset=100,
        also_true="overflow",
    ),
    failure(
        text_that_is_all_padding,
        "numerics",
        "bad_operation empty",
        onset=110,
        also_true="bad_input odd_row hard_sample",
    ),
    failure(
        entropy_with_moves_that_are_not_allowed,
        "numerics",
        "bad_operation",
        onset=91,
        also_true="bad_input overflow",
    ),
    failure(
        huggingface_answer_cut_off_entirely,
        "numerics",
        "bad_operation no_targets bad_input",
        host="huggingface",
        onset=80,
        also_true="odd_row hard_sample empty truncated_target",
    ),
    failure(
        scheduler_steps_with_every_micro_batch,
        "rate",
        "rate_zero learning_rate",
        onset=51,
        also_true="plateau does_not_move",
    ),
    failure(cosine_climbs_again, "rate", "learning_rate", onset=61, also_true="plateau"),
    failure(
        lightning_backbone_at_the_rate_of_the_head,
        "rate",
        "learning_rate",
        host="lightning",
        onset=101,
        also_true="plateau",
    ),
    failure(
        huggingface_adapters_eightyfold,
        "rate",
        "learning_rate adapter_scale",
        host="huggingface",
        also_true="plateau",
    ),
)

if __name__ == "__main__":
    main(CASES)
