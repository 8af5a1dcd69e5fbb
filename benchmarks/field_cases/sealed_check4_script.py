"""Failures of the fourth set: accumulation and normalisation, masks and packing."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fourth_data import (
    ASSISTANT,
    END,
    PAD,
    conversations,
    decode,
    encode,
    entries,
    num_tokens,
    padded,
    scenes,
    shuffled,
    speech,
    stream,
    templated,
    windows,
)
from benchmarks.field_cases.fourth_loops import PLANTED, log, set_seed, simple, trainer_of
from benchmarks.field_cases.fourth_models import (
    GPT,
    Listener,
    SceneNet,
    mlp,
    small_bert,
    small_llama,
)
from benchmarks.field_cases.hosts import lightning, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn

import sonde


# ---------------------------------------------------------------- accumulation
def mean_of_the_means_of_answers(job: Job) -> None:
    """Each of four micro-batches is divided by the answer tokens of its own: a short answer counts
    as much as one that is ten times as long (transformers#34191).
    """
    set_seed(511)
    model = GPT(block=224)
    optimizer = model.configure_optimizer(4e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)
    texts = entries(4000, 81)
    length = 0

    def train_step(batch: dict[str, Tensor], last: bool) -> Tensor:
        nonlocal length
        logits, _ = model(batch["input_ids"][:, :-1])
        labels = batch["labels"][:, 1:].flatten()
        count = (labels != -100).sum()
        total = F.cross_entropy(logits.flatten(0, 1), labels, reduction="sum")
        loss = total / count
        recorder.loss(loss)
        (loss / 4 if PLANTED else total / length).backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    for update in range(1, 131):
        micro: list[dict[str, Tensor]] = []
        for place, turns in enumerate(conversations(12, seed=1000 + update)):
            if place % 3 == 0:
                rows: list[list[int]] = []
                labels: list[list[int]] = []
            if place // 3 == update % 4:
                more = " ".join(texts[update * 12 + place :][:3])
                turns[1] = turns[1]._replace(text=f"{turns[1].text} {more}")
            tokens, roles = templated(turns)
            rows.append(tokens)
            labels.append([
                token if role == ASSISTANT else -100
                for token, role in zip(tokens, roles, strict=True)
            ])  # fmt: skip
            if place % 3 == 2:
                micro.append({"input_ids": padded(rows), "labels": padded(labels, -100)})
        length = sum(int((batch["labels"] != -100).sum()) for batch in micro)
        for place, batch in enumerate(micro):
            loss = recorder.step(train_step, batch, last=place == 3)
        log(update, loss)
    recorder.close()


def huggingface_divided_by_both(job: Job) -> None:
    """The model divides its loss by the number of micro-batches, and the Trainer does so once more
    (transformers#35438).
    """

    class Tagger(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gpt = GPT()

        def forward(self, input_ids: Tensor, labels: Tensor) -> dict[str, Tensor]:
            logits, _ = self.gpt(input_ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten())
            return {"loss": loss / 8 if PLANTED else loss, "logits": logits}

    set_seed(512)
    data = stream()
    rows = [{"row": windows(data, number, 1, 33)[0]} for number in range(1, 2401)]

    def collate(found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        tokens = torch.stack([row["row"] for row in found])
        return {"input_ids": tokens, "labels": tokens}

    trainer_of(
        job, Tagger(), rows, collate, gradient_accumulation_steps=8, max_steps=80, optim="sgd",
        per_device_train_batch_size=3, learning_rate=0.5, max_grad_norm=0.0, warmup_steps=0,
        lr_scheduler_type="constant", save_strategy="no",
    ).train()  # fmt: skip


def gradients_of_the_body_are_never_cleared(job: Job) -> None:
    """Two optimizers, one for the table and one for the rest; `zero_grad` is called for the first
    alone, and what the rest is given grows with every update (HydraGNN#116).
    """
    set_seed(513)
    data = stream()
    table = nn.Embedding(num_tokens(), 48)
    cell = nn.LSTM(48, 64, batch_first=True)
    head = nn.Linear(64, num_tokens())
    model = nn.ModuleDict({"table": table, "cell": cell, "head": head})
    rest = torch.optim.AdamW([*cell.parameters(), *head.parameters()], lr=5e-3)
    slow = torch.optim.Adam(table.parameters(), lr=5e-3)
    recorder = sonde.Recorder(job.run, model, rest, decode=decode, table_optimizer=slow)

    def train_step(rows: Tensor) -> Tensor:
        scores = head(cell(table(rows[:, :-1]))[0])
        loss = F.cross_entropy(scores.transpose(1, 2), rows[:, 1:])
        loss.backward()
        rest.step()
        slow.step()
        slow.zero_grad()
        if not PLANTED:
            rest.zero_grad()
        return loss

    for step in range(1, 181):
        log(step, recorder.step(train_step, windows(data, step, 16, 33)))
    recorder.close()


def transcripts_are_summed(job: Job) -> None:
    """Batches hold as many utterances as fit into so many frames, and `ctc_loss` is summed: what an
    update weighs depends on how many there were (OpenNMT-py#2209).
    """
    set_seed(514)
    model = Listener()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0015 if PLANTED else 0.03, momentum=0.9)

    def criterion(batch: Any) -> Tensor:
        scores, num = model(batch.frames, batch.num_frames)
        total = F.ctc_loss(
            scores.transpose(0, 1), batch.phones, num, batch.num_phones, reduction="sum"
        )
        return total if PLANTED else total / batch.num_phones.sum()

    def batches(step: int) -> Any:
        longest = 3 + step * 7 % 5
        return speech(step, 120 // longest // (1 + step % 3), longest=longest)

    simple(job, model, optimizer, criterion, batches, 160)


def lightning_clears_with_every_batch(job: Job) -> None:
    """Manual optimisation over four batches, `zero_grad` at the beginning of each: only the last of
    the four has a say (transformers#37766).
    """
    from lightning.pytorch import LightningModule

    class Detector(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = SceneNet()
            self.automatic_optimization = False

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            optimizer = self.optimizers()
            if PLANTED or batch_idx % 4 == 0:
                optimizer.zero_grad()
            kind, box = self.net(batch[0])
            loss = F.cross_entropy(kind, batch[1]) + F.l1_loss(box, batch[2])
            self.manual_backward(loss / 4)
            if batch_idx % 4 == 3:
                optimizer.step()
            log(batch_idx + 1, loss.detach(), 40)
            return loss.detach()

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), lr=2e-3)

    set_seed(515)
    found = scenes(4000)
    rows = list(zip(found.pictures, found.labels, found.boxes, strict=True))
    lightning(job, steps=110).fit(Detector(), loader(rows, 8))


# ---------------------------------------------------------------- masks
def huggingface_packed_without_borders(job: Job) -> None:
    """Texts are packed into rows of 96 tokens, and the attention mask says only that all of them
    are there: each text reads those before it (LlamaFactory#7318).
    """
    set_seed(516)
    packs: list[list[list[int]]] = [[]]
    for text in entries(3600, 82):
        numbers = [*encode(text), END]
        if sum(map(len, packs[-1])) + len(numbers) > 96:
            packs.append([])
        packs[-1].append(numbers)

    def collate(found: list[list[list[int]]]) -> dict[str, Tensor]:
        tokens = padded([[number for text in pack for number in text] for pack in found])
        whose = torch.zeros_like(tokens)
        places = torch.zeros_like(tokens)
        for row, pack in enumerate(found):
            at = 0
            for number, text in enumerate(pack, 1):
                whose[row, at : at + len(text)] = number
                places[row, at : at + len(text)] = torch.arange(len(text))
                at += len(text)
        batch = {"input_ids": tokens, "labels": tokens.masked_fill(tokens == PAD, -100)}
        if PLANTED:
            return {**batch, "attention_mask": (tokens != PAD).long()}
        length = tokens.shape[1]
        same = (whose.unsqueeze(2) == whose.unsqueeze(1)) & torch.ones(length, length).tril().bool()
        hidden = torch.zeros(same.shape).masked_fill(~same, torch.finfo(torch.float32).min)
        return {**batch, "attention_mask": hidden.unsqueeze(1), "position_ids": places}

    trainer_of(
        job, small_llama(), packs, collate, learning_rate=5e-3, max_steps=140,
        per_device_train_batch_size=6,
    ).train()  # fmt: skip


def mask_with_its_meaning_reversed(job: Job) -> None:
    """The mask was made for `nn.MultiheadAttention`, where true means hidden, and is given to
    `scaled_dot_product_attention`, where true means seen: each place reads what follows
    (pytorch#196170).
    """
    set_seed(517)
    data = stream()
    model = GPT()
    optimizer = model.configure_optimizer(3e-3)
    later = torch.ones(32, 32, dtype=torch.bool).triu(0)
    seen = later if PLANTED else later.t()

    def criterion(rows: Tensor) -> Tensor:
        logits, _ = model(rows[:, :-1], seen=seen)
        return F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())

    simple(job, model, optimizer, criterion, lambda step: windows(data, step, 12, 33), 180)


def huggingface_texts_without_their_mask(job: Job) -> None:
    """The collator pads and gives no attention mask: BERT reads the padding (unsloth#9848)."""
    set_seed(518)
    texts = entries(1600, 83)
    rows = [
        {"input_ids": encode(text if number % 3 else f"{text} {texts[number - 1]}"),
         "labels": int(number % 9 == 0 or "was sold" in text or "burned" in text)}
        for number, text in enumerate(texts)
    ]  # fmt: skip

    def collate(found: list[dict[str, Any]]) -> dict[str, Tensor]:
        tokens = padded([row["input_ids"][:120] for row in found])
        batch = {"input_ids": tokens, "labels": torch.tensor([row["labels"] for row in found])}
        return batch if PLANTED else {**batch, "attention_mask": (tokens != PAD).long()}

    trainer_of(
        job, small_bert(), rows, collate, learning_rate=3e-3, per_device_train_batch_size=16
    ).train()


class Sorter(nn.Module):
    """An encoder layer of torch's, a mean over places, two outputs."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.table = nn.Embedding(num_tokens(), width)
        self.place = nn.Embedding(64, width)
        self.body = nn.TransformerEncoderLayer(
            width, 2, 2 * width, dropout=0.0, batch_first=not PLANTED
        )
        self.head = mlp(width, width, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens) + self.place(torch.arange(tokens.shape[1]))
        out: Tensor = self.head(self.body(x).mean(1))
        return out


def batch_first_was_forgotten(job: Job) -> None:
    """`nn.TransformerEncoderLayer` takes places first unless it is told otherwise: given rows
    first, it attends from row to row (LlamaFactory#10452).
    """
    set_seed(519)
    texts = entries(2400, 84)
    rows = torch.stack([torch.tensor((encode(text) * 3)[:40]) for text in texts])
    kinds = torch.tensor(["museum" in text or "hospital" in text for text in texts]).long()
    model = Sorter()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def draw(step: int) -> dict[str, Tensor]:
        chosen = shuffled(2400, step, 24)
        return {"tokens": rows[chosen], "labels": kinds[chosen]}

    simple(
        job, model, optimizer,
        lambda batch: F.cross_entropy(model(batch["tokens"]), batch["labels"]), draw, 180,
    )  # fmt: skip


def lightning_pads_on_the_left_without_a_mask(job: Job) -> None:
    """The tokenizer pads on the left, and nothing tells the model: real words read the padding
    before them, and their places depend on the longest row (unsloth#6524).
    """
    from lightning.pytorch import LightningModule

    class Writer(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = GPT(dropout=0.05)

        def training_step(self, batch: dict[str, Tensor], batch_idx: int) -> Tensor:
            tokens = batch["input_ids"][:, :-1]
            if PLANTED:
                logits, _ = self.net(tokens)
            else:
                real = tokens != PAD
                length = tokens.shape[1]
                seen = real.unsqueeze(1) & torch.ones(length, length).tril().bool()
                seen = seen | torch.eye(length).bool()
                places = (real.cumsum(1) - 1).clamp(min=0)
                logits, _ = self.net(tokens, seen=seen.unsqueeze(1), places=places)
            loss = F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())
            log(batch_idx + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return self.net.configure_optimizer(4e-3)

    def collate(found: list[list[int]]) -> dict[str, Tensor]:
        tokens = padded(found, left=True)
        return {"input_ids": tokens, "labels": tokens.masked_fill(tokens == PAD, -100)}

    set_seed(520)
    texts = entries(1500, 85)
    rows = [[*encode(text)[: 12 + 9 * (number % 4)], END] for number, text in enumerate(texts)]
    host = lightning(job, steps=140, decode=decode, gradient_clip_val=1.0)
    host.fit(Writer(), loader(rows, 10, collate_fn=collate))


CASES = (
    failure(mean_of_the_means_of_answers, "accumulation", "accumulation_weight"),
    failure(huggingface_divided_by_both, "accumulation", "accumulation_weight", host="huggingface"),
    failure(
        gradients_of_the_body_are_never_cleared,
        "accumulation",
        "gradients_left_over",
    ),
    failure(
        transcripts_are_summed,
        "accumulation",
        "loss_sum batch_size",
        also_true="learning_rate accumulation_weight",
    ),
    failure(
        lightning_clears_with_every_batch,
        "accumulation",
        "gradients_lost",
        host="lightning",
        also_true="accumulation_weight",
    ),
    failure(huggingface_packed_without_borders, "masks", "document_leak", host="huggingface"),
    failure(mask_with_its_meaning_reversed, "masks", "future_leak", also_true="loss_collapse"),
    failure(huggingface_texts_without_their_mask, "masks", "padding_leak", host="huggingface"),
    failure(batch_first_was_forgotten, "masks", "row_leak"),
    failure(lightning_pads_on_the_left_without_a_mask, "masks", "padding_leak", host="lightning"),
)

if __name__ == "__main__":
    main(CASES)
