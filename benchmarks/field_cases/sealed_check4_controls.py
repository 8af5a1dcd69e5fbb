"""Trainings of the fourth set with which nothing is wrong: targets, masks, packing, adapters."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.fourth_data import (
    ASSISTANT,
    BEGIN,
    END,
    PAD,
    SIDE,
    conversations,
    decode,
    encode,
    entries,
    num_tokens,
    padded,
    scenes,
    shuffled,
    stream,
    templated,
    translations,
    windows,
)
from benchmarks.field_cases.fourth_loops import (
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
    Translator,
    add_adapters,
    mlp,
    small_gpt2,
    small_llama,
)
from benchmarks.field_cases.hosts import lightning, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn

import sonde


def packed_with_borders(job: Job) -> None:
    """Texts are packed into rows; each reads itself alone, its places begin at 0, and nothing is
    asked across a border.
    """
    set_seed(521)
    packs: list[list[list[int]]] = [[]]
    for text in entries(3600, 91):
        numbers = [*encode(text), END]
        if sum(map(len, packs[-1])) + len(numbers) > 90:
            packs.append([])
        packs[-1].append(numbers)
    model = GPT()
    optimizer = model.configure_optimizer(4e-3)

    def draw(step: int) -> dict[str, Tensor]:
        found = [packs[number] for number in shuffled(len(packs) - 1, step, 6).tolist()]
        tokens = padded([[number for text in pack for number in text] for pack in found])
        whose = torch.zeros_like(tokens)
        places = torch.zeros_like(tokens)
        for row, pack in enumerate(found):
            at = 0
            for number, text in enumerate(pack, 1):
                whose[row, at : at + len(text)] = number
                places[row, at : at + len(text)] = torch.arange(len(text))
                at += len(text)
        labels = torch.roll(tokens, -1, 1)
        labels[(torch.roll(whose, -1, 1) != whose) | (whose == 0)] = -100
        return {"input_ids": tokens, "position_ids": places, "whose": whose, "labels": labels}

    def criterion(batch: dict[str, Tensor]) -> Tensor:
        whose = batch["whose"]
        length = whose.shape[1]
        seen = (whose.unsqueeze(2) == whose.unsqueeze(1)) & torch.ones(length, length).tril().bool()
        logits, _ = model(batch["input_ids"], seen=seen.unsqueeze(1), places=batch["position_ids"])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten())

    simple(job, model, optimizer, criterion, draw, 160, decode=decode)


def huggingface_only_answers_count(job: Job) -> None:
    """Conversations of two turns; what the assistant says counts, its ends among it."""
    set_seed(522)
    rows: list[dict[str, Any]] = []
    for turns in conversations(1300, 2, seed=92):
        tokens, roles = templated(turns)
        labels = [
            token if role == ASSISTANT else -100 for token, role in zip(tokens, roles, strict=True)
        ]
        rows.append({"input_ids": tokens, "labels": labels})
    trainer_of(job, small_llama(), rows, causal_batch, learning_rate=5e-3, max_steps=140).train()


def huggingface_pad_is_the_end_and_is_learnt(job: Job) -> None:
    """There is no pad, so the end pads; labels go by the mask, and the one real end counts."""
    set_seed(523)
    rows = causal_rows([encode(text) for text in entries(1300, 93)])

    def collate(found: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = causal_batch(found)
        tokens = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, END)
        return {**batch, "input_ids": tokens}

    trainer_of(job, small_gpt2(pad_token_id=END), rows, collate, learning_rate=5e-3).train()


def questions_are_read_both_ways(job: Job) -> None:
    """A prefix language model: places of the question see all of it, the answer sees what came
    before, and only the answer counts.
    """
    set_seed(524)
    model = GPT(dropout=0.05)
    optimizer = model.configure_optimizer(4e-3)
    talks = conversations(2400, seed=94)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        tokens = batch["input_ids"][:, :-1]
        length = tokens.shape[1]
        prefix = batch["is_question"][:, :-1]
        seen = torch.ones(length, length).tril().bool() | prefix.unsqueeze(1)
        seen = seen & (tokens != PAD).unsqueeze(1)
        logits, _ = model(tokens, seen=seen.unsqueeze(1))
        loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for step in range(1, 161):
        rows: list[list[int]] = []
        asked: list[list[int]] = []
        labels: list[list[int]] = []
        for number in shuffled(2400, step, 10).tolist():
            tokens, roles = templated(talks[number])
            start = roles.index(ASSISTANT)
            rows.append(tokens)
            asked.append([1] * start + [0] * (len(tokens) - start))
            labels.append([-100] * start + tokens[start:])
        batch = {
            "input_ids": padded(rows),
            "is_question": padded(asked).bool(),
            "labels": padded(labels, -100),
        }
        log(step, recorder.step(train_step, batch))
    recorder.close()


def micro_batches_by_all_their_tokens(job: Job) -> None:
    """Four micro-batches of unlike length, each loss summed and divided by the tokens of all four;
    a head that is its table; matrices decay and norms do not.
    """
    set_seed(525)
    texts = [[*encode(text), END] for text in entries(4000, 95)]
    model = GPT()
    optimizer = model.configure_optimizer(4e-3, decay=0.2)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)
    count = 0

    def train_step(rows: Tensor, last: bool) -> Tensor:
        nonlocal count
        logits, _ = model(rows[:, :-1])
        total = F.cross_entropy(
            logits.flatten(0, 1), rows[:, 1:].flatten(), ignore_index=PAD, reduction="sum"
        )
        recorder.loss(total / (rows[:, 1:] != PAD).sum())
        loss = total / count
        loss.backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    for update in range(1, 121):
        found = [texts[number] for number in shuffled(4000, update, 12).tolist()]
        found = [text[: 10 + 12 * (place // 3)] for place, text in enumerate(found)]
        micro = [padded(found[place : place + 3]) for place in range(0, 12, 3)]
        count = sum(int((rows[:, 1:] != PAD).sum()) for rows in micro)
        whole = 0.0
        for place, rows in enumerate(micro):
            whole += float(recorder.step(train_step, rows, last=place == 3))
        log(update, whole)
    recorder.close()


def lightning_backbone_is_frozen(job: Job) -> None:
    """A probe: the backbone has learnt before, is frozen, and stays in evaluation mode."""
    from lightning.pytorch import LightningModule

    class Probe(LightningModule):  # type: ignore[misc]
        def __init__(self, net: SceneNet) -> None:
            super().__init__()
            self.net = net
            self.net.backbone.requires_grad_(False)
            self.net.box.requires_grad_(False)

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            self.net.backbone.eval()
            loss = F.cross_entropy(self.net(batch[0])[0], batch[1])
            log(batch_idx + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.net.kind.parameters(), lr=3e-3, weight_decay=0.05)

    set_seed(526)
    net = SceneNet()
    before = scenes(1600, seed=54)
    first = torch.optim.Adam(net.parameters(), lr=3e-3)
    for step in range(1, 91):
        chosen = shuffled(1600, step, 32)
        F.cross_entropy(net(before.pictures[chosen])[0], before.labels[chosen]).backward()
        first.step()
        first.zero_grad()
    net.kind.reset_parameters()
    found = scenes(2400)
    rows = list(zip(found.pictures, found.labels, strict=True))
    lightning(job, steps=150).fit(Probe(net), loader(rows, 16))


class Pairs(nn.Module):
    """Pictures and captions as directions, with a temperature that is learnt."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.see = SceneNet().backbone
        self.picture = nn.Linear(600, width)
        self.table = nn.EmbeddingBag(num_tokens(), 48)
        self.caption = mlp(48, 48, width)
        self.log_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, pictures: Tensor, captions: Tensor) -> Tensor:
        left = F.normalize(self.picture(self.see(pictures)), dim=1)
        right = F.normalize(self.caption(self.table(captions)), dim=1)
        scores: Tensor = self.log_scale.clamp(max=4.6).exp() * left @ right.t()
        return scores


def pictures_and_their_captions(job: Job) -> None:
    """A contrastive loss over the batch: each row is judged by the others, as it should be."""
    set_seed(527)
    found = scenes(2400, noise=0.15)
    names = ("disc", "frame", "block", "cross")
    captions: list[list[int]] = []
    for label, box in zip(found.labels.tolist(), found.boxes.tolist(), strict=True):
        across = "left" if box[0] + box[2] < 1 else "right"
        down = "top" if box[1] + box[3] < 1 else "bottom"
        wide = round((box[2] - box[0]) * SIDE)
        captions.append(encode(f"a {names[label]}, {wide} wide, at the {down} {across}"))
    tokens = padded([(row * 3)[:24] for row in captions])
    model = Pairs()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def criterion(batch: tuple[Tensor, Tensor]) -> Tensor:
        scores = model(*batch)
        wanted = torch.arange(len(scores))
        return (F.cross_entropy(scores, wanted) + F.cross_entropy(scores.t(), wanted)) / 2

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = shuffled(2400, step, 24)
        return found.pictures[chosen], tokens[chosen]

    simple(job, model, optimizer, criterion, draw, 200)


def huggingface_adapters_with_checkpointing(job: Job) -> None:
    """Adapters beside frozen weights, and activations computed again without reentering."""
    set_seed(528)
    model = pretrained(small_llama())
    add_adapters(model, ("q_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"), rank=8)
    rows = causal_rows([encode(german) for _, german in translations(1300)])
    trainer_of(
        job, model, rows, causal_batch, gradient_checkpointing=True, learning_rate=8e-3,
        gradient_checkpointing_kwargs={"use_reentrant": False}, max_steps=140, weight_decay=0.0,
    ).train()  # fmt: skip


def translation_with_smoothed_labels(job: Job) -> None:
    """A translator with masks of padding on both sides, smoothed labels, and a rate that falls with
    the root of the step.
    """
    set_seed(529)
    pairs = translations(2600)
    model = Translator(dropout=0.1)
    optimizer = torch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: 0.016 * min((step + 1) ** -0.5, (step + 1) * 40**-1.5)
    )
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode, scheduler=scheduler)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        target = batch["target"]
        scores = model(batch["source"], target[:, :-1])
        loss = F.cross_entropy(
            scores.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD, label_smoothing=0.1
        )
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return loss.detach()

    for step in range(1, 181):
        chosen = [pairs[number] for number in shuffled(2600, step, 16).tolist()]
        source = padded([encode(english) for english, _ in chosen])
        target = padded([[BEGIN, *encode(german), END] for _, german in chosen])
        log(step, recorder.step(train_step, {"source": source, "target": target}))
    recorder.close()


def model_of_hugging_face_in_a_loop_of_ones_own(job: Job) -> None:
    """`model(**batch).loss`, an evaluation every 50 updates, and `train()` after each of them."""
    set_seed(530)
    model = small_gpt2(resid_pdrop=0.1, embd_pdrop=0.1)
    model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    data = stream()
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss

    for step in range(1, 171):
        rows = windows(data, step, 10, 40)
        log(step, recorder.step(train_step, {"input_ids": rows, "labels": rows}))
        if step % 50 == 0:
            model.eval()
            with torch.no_grad():
                held = windows(data, 10**6 + step, 16, 40)
                print(f"held out: {float(model(input_ids=held, labels=held).loss):.4f}")
            model.train()
    recorder.close()


CASES = (
    control(packed_with_borders),
    control(huggingface_only_answers_count, host="huggingface"),
    control(huggingface_pad_is_the_end_and_is_learnt, host="huggingface"),
    control(questions_are_read_both_ways),
    control(micro_batches_by_all_their_tokens),
    control(lightning_backbone_is_frozen, host="lightning"),
    control(pictures_and_their_captions),
    control(huggingface_adapters_with_checkpointing, host="huggingface"),
    control(translation_with_smoothed_labels),
    control(model_of_hugging_face_in_a_loop_of_ones_own),
)

if __name__ == "__main__":
    main(CASES)
