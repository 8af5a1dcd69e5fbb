"""Controls of the fifth set: odd wiring that is right."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, control
from benchmarks.field_cases.fifth_data import (
    BANDS,
    END,
    MASK,
    NOTES,
    cars,
    chunk,
    corpus,
    decode,
    drawn,
    encode,
    numerals,
    recipes,
    tunes,
)
from benchmarks.field_cases.fifth_loops import (
    begin,
    chat_rows,
    hub,
    loop,
    read_before,
    tell,
    text_batch,
    text_rows,
    warm_cosine,
)
from benchmarks.field_cases.fifth_models import (
    Chat,
    Listener,
    ResNet,
    mlp,
    small_distilbert,
    small_qwen,
    with_lora,
)
from benchmarks.field_cases.hosts import lightning, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn

import sonde


def huggingface_micro_batches_by_their_tokens(job: Job) -> None:
    """Four micro-batches of conversations of unlike length; the Trainer divides by the tokens of
    all four.
    """
    begin(621)
    rows = chat_rows(2400, 92)
    for number, text in enumerate(recipes(2400, 93)):
        if number % 5 == 0:
            more = encode(f" {text}")
            for name in ("input_ids", "labels"):
                rows[number][name] = [*rows[number][name][:-1], *more, rows[number][name][-1]]
    hub(
        job, small_qwen(), rows, text_batch, gradient_accumulation_steps=4, max_steps=110,
        per_device_train_batch_size=3, learning_rate=5e-3,
    ).train()  # fmt: skip


def documents_packed_with_their_borders(job: Job) -> None:
    """Rows of packed recipes: each reads itself alone, its places begin at 0, and the first word of
    a recipe is no target.
    """
    begin(622)
    data = corpus(seed=94)
    model = Chat(dropout=0.05)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        whose = batch["document_ids"]
        length = whose.shape[1]
        same = (whose.unsqueeze(2) == whose.unsqueeze(1)) & torch.ones(length, length).tril().bool()
        out: Tensor = model(
            batch["input_ids"], batch["targets"], places=batch["position_ids"],
            seen=same.unsqueeze(1),
        )  # fmt: skip
        return out

    def batch_of(step: int) -> dict[str, Tensor]:
        tokens = chunk(data, step, 10, 65)
        ends = (tokens == END).long()
        whose = ends.cumsum(1) - ends
        ramp = torch.arange(65).expand_as(tokens)
        fresh = F.pad(ends[:, :-1], (1, 0)).bool()
        begun = torch.where(fresh, ramp, 0).cummax(1).values
        return {
            "input_ids": tokens[:, :-1], "targets": tokens.masked_fill(fresh, -100)[:, 1:],
            "document_ids": whose[:, :-1], "position_ids": (ramp - begun)[:, :-1],
        }  # fmt: skip

    loop(job, model, optimizer, loss_of, batch_of, 150, decode=decode)


def huggingface_hidden_words_in_both_directions(job: Job) -> None:
    """A DistilBERT guesses one word in five that is hidden; it reads what follows, on purpose."""
    dice = torch.Generator().manual_seed(5)

    def collate(found: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = text_batch(found)
        hidden = torch.rand(batch["labels"].shape, generator=dice) < 0.2
        hidden &= batch["attention_mask"].bool()
        return {
            "input_ids": batch["input_ids"].masked_fill(hidden, MASK),
            "attention_mask": batch["attention_mask"],
            "labels": batch["labels"].masked_fill(~hidden, -100),
        }

    begin(623)
    rows = text_rows([encode(text) for text in recipes(1600, 59)])
    hub(
        job, small_distilbert("DistilBertForMaskedLM"), rows, collate, learning_rate=6e-3,
        per_device_train_batch_size=16, max_steps=150,
    ).train()  # fmt: skip


def two_views_of_a_picture(job: Job) -> None:
    """A contrastive loss over two noisy views, with BatchNorm in the net: each row depends on the
    others twice over, as it should.
    """
    begin(624)
    pictures, _ = numerals(2400, seed=95, noise=0.1)
    model = nn.Sequential(ResNet(classes=32, width=8), nn.BatchNorm1d(32))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(batch: Tensor) -> Tensor:
        views = torch.cat((batch, batch.roll(1, 3))) + 0.2 * torch.randn(2 * len(batch), 1, 16, 16)
        codes = F.normalize(model(views), dim=1)
        alike = (codes @ codes.t() / 0.2).fill_diagonal_(-1e4)
        half = len(batch)
        partner = torch.cat((torch.arange(half, 2 * half), torch.arange(half)))
        return F.cross_entropy(alike, partner)

    loop(job, model, optimizer, loss_of, lambda step: pictures[drawn(2400, step, 24)], 150)


def huggingface_adapters_on_a_frozen_model(job: Job) -> None:
    """Adapters beside frozen weights, conversations of which the answers count, a pad of its own:
    the end of a turn is learnt.
    """
    begin(625)
    model = with_lora(read_before(small_qwen(num_hidden_layers=2), 60), "q_proj", "v_proj",
                      "o_proj", "up_proj", "down_proj", rank=8)  # fmt: skip
    hub(job, model, chat_rows(1400, 96), text_batch, learning_rate=1e-2, save_strategy="no").train()


def head_that_is_its_table_and_no_dropout(job: Job) -> None:
    """nanochat without dropout whose head is its table; two groups, of which one does not decay;
    evaluation every 40 updates.
    """
    begin(626)
    data = corpus(seed=97)
    held = chunk(corpus(200, 98), 1, 24, 33)
    model = Chat(tied=True)
    groups: list[dict[str, Any]] = [
        {"params": [model.wte.weight], "weight_decay": 0.0},
        {"params": list(model.h.parameters()), "weight_decay": 0.1},
    ]
    optimizer = torch.optim.AdamW(groups, lr=5e-3, betas=(0.9, 0.95))
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)

    def train_step(rows: Tensor) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    for step in range(1, 171):
        for group in optimizer.param_groups:
            group["lr"] = warm_cosine(step, 5e-3, 15, 170)
        tell(step, recorder.step(train_step, chunk(data, step, 12, 33)))
        if step % 40 == 0:
            model.eval()
            with torch.no_grad():
                print(f"validation: {float(model(held[:, :-1], held[:, 1:])):.3f}")
            model.train()
    recorder.close()


def lightning_mixed_pictures_and_smooth_labels(job: Job) -> None:
    """CutMix and smoothed labels: a quarter of a picture is of another, and so is its label."""
    from lightning.pytorch import LightningModule

    class Reader(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = ResNet()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            pictures, labels = batch
            order = torch.randperm(len(labels))
            mixed = pictures.clone()
            mixed[:, :, :8, :8] = pictures[order][:, :, :8, :8]
            scores = self.net(mixed)
            own = F.cross_entropy(scores, labels, label_smoothing=0.1)
            loss = 0.75 * own + 0.25 * F.cross_entropy(scores, labels[order], label_smoothing=0.1)
            tell(batch_idx + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    begin(627)
    pictures, labels = numerals(3200, seed=99)
    rows = list(zip(pictures, labels, strict=True))
    lightning(job, steps=160).fit(Reader(), loader(rows, 20))


def tasks_that_take_turns(job: Job) -> None:
    """Two tasks with a head each; an update has rows of one of them, so the other head has no
    gradient, and the losses are of unlike size.
    """
    begin(628)
    _, columns, price = cars(4800)
    broken = (columns[:, 3] + columns[:, 4] > 0.5).long()
    model = nn.ModuleDict({"body": mlp(6, 48, 48), "price": mlp(48, 1), "broken": mlp(48, 2)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(batch: dict[str, Any]) -> Tensor:
        states = F.gelu(model["body"](batch["columns"]))
        if batch["task"] == "price":
            return F.mse_loss(model["price"](states).squeeze(1), batch["target"])
        return F.cross_entropy(model["broken"](states), batch["target"])

    def batch_of(step: int) -> dict[str, Any]:
        chosen = drawn(4800, step, 32)
        if step % 2:
            return {"task": "price", "columns": columns[chosen], "target": price[chosen]}
        return {"task": "broken", "columns": columns[chosen], "target": broken[chosen]}

    loop(job, model, optimizer, loss_of, batch_of, 180)


def student_of_a_frozen_teacher(job: Job) -> None:
    """A teacher in evaluation mode that does not learn, and a student that learns from it and from
    the labels.
    """
    begin(629)
    pictures, labels = numerals(3000, seed=100)
    teacher = ResNet()
    before = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for step in range(1, 101):
        chosen = drawn(3000, step, 32, seed=9)
        F.cross_entropy(teacher(pictures[chosen]), labels[chosen]).backward()
        before.step()
        before.zero_grad()
    teacher.eval().requires_grad_(False)
    student = nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2), nn.GELU(), nn.Conv2d(12, 24, 3), nn.GELU(), nn.Flatten(),
        nn.Dropout(0.1), nn.Linear(384, 10),
    )  # fmt: skip
    model = nn.ModuleDict({"teacher": teacher, "student": student})
    optimizer = torch.optim.AdamW(student.parameters(), lr=3e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        with torch.no_grad():
            wanted = (teacher(batch["image"]) / 2).log_softmax(-1)
        scores = student(batch["image"])
        soft = F.kl_div(
            (scores / 2).log_softmax(-1), wanted, reduction="batchmean", log_target=True
        )
        return 2 * soft + 0.5 * F.cross_entropy(scores, batch["label"])

    def batch_of(step: int) -> dict[str, Tensor]:
        chosen = drawn(3000, step, 24)
        return {"image": pictures[chosen], "label": labels[chosen]}

    loop(job, model, optimizer, loss_of, batch_of, 170)


def lightning_tunes_and_what_they_look_like(job: Job) -> None:
    """CTC beside the reconstruction of the frames, each with a weight; batches of unlike length are
    grouped and the groups are shuffled; only the listener's conv is frozen, on purpose.
    """
    from lightning.pytorch import LightningModule

    class Ears(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Listener()
            self.net.conv.requires_grad_(False)
            self.draw = nn.Linear(NOTES + 1, BANDS)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            scores, num = self.net(batch.frames, batch.num_frames)
            heard = F.ctc_loss(scores.transpose(0, 1), batch.notes, num, batch.num_notes)
            drawn_back = self.draw(scores.exp())
            real = torch.arange(drawn_back.shape[1]) < num.unsqueeze(1)
            missed = drawn_back - batch.frames[:, ::2][:, : drawn_back.shape[1]]
            loss: Tensor = heard + 0.2 * missed[real].square().mean()
            tell(batch_idx + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            wanted = [part for part in self.parameters() if part.requires_grad]
            return torch.optim.AdamW(wanted, lr=3e-3)

    begin(630)
    groups = [tunes(range(20 * at, 20 * at + 20), 3 + at % 4) for at in range(150)]
    lightning(job, steps=145, gradient_clip_val=5.0).fit(Ears(), loader(groups, None))


CASES = (
    control(huggingface_micro_batches_by_their_tokens, host="huggingface"),
    control(documents_packed_with_their_borders),
    control(huggingface_hidden_words_in_both_directions, host="huggingface"),
    control(two_views_of_a_picture),
    control(huggingface_adapters_on_a_frozen_model, host="huggingface"),
    control(head_that_is_its_table_and_no_dropout),
    control(lightning_mixed_pictures_and_smooth_labels, host="lightning"),
    control(tasks_that_take_turns),
    control(student_of_a_frozen_teacher),
    control(lightning_tunes_and_what_they_look_like, host="lightning"),
)

if __name__ == "__main__":
    main(CASES)
