"""Failures of the fifth set: accumulation and normalisation, masks and packing."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fifth_data import (
    BEGIN,
    END,
    PAD,
    chunk,
    corpus,
    decode,
    drawn,
    encode,
    num_tokens,
    numerals,
    pad,
    recipe_pairs,
    recipes,
)
from benchmarks.field_cases.fifth_loops import (
    PLANTED,
    begin,
    hub,
    loop,
    padding_aside,
    tell,
    text_batch,
    text_rows,
)
from benchmarks.field_cases.fifth_models import (
    Chat,
    Translator,
    mlp,
    norm,
    small_distilbert,
    small_qwen,
)
from benchmarks.field_cases.hosts import lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn

import sonde


# ---------------------------------------------------------------- accumulation
def last_batches_of_an_epoch_stay(job: Job) -> None:
    """An epoch has 25 batches and an update four. The one that is left over is neither used nor
    cleared: its gradient, and that of each epoch before it, goes into the next update, which has
    five (transformers#37766).
    """
    begin(571)
    data = corpus(seed=78)
    model = Chat(layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.8, nesterov=True)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)

    def train_step(rows: Tensor, last: bool) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])
        (loss / 4).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    update = 0
    for epoch in range(26):
        if not PLANTED:
            optimizer.zero_grad()
        for number in range(25 if PLANTED else 24):
            rows = chunk(data, 25 * epoch + number + 1, 6, 33)
            last = number % 4 == 3
            loss = recorder.step(train_step, rows, last=last)
            if last:
                update += 1
                tell(update, loss)
    recorder.close()


def huggingface_mean_where_a_sum_is_expected(job: Job) -> None:
    """A loss of one's own ignores the number of tokens that the Trainer hands it and returns a
    mean: the Trainer, which expects a share, divides nothing, and four micro-batches count fourfold
    (transformers#34191).
    """
    from transformers import Trainer

    class Weighted(Trainer):  # type: ignore[misc]
        def compute_loss(
            self,
            model: Any,
            inputs: Any,
            return_outputs: bool = False,
            num_items_in_batch: Any = None,
        ) -> Any:
            labels = inputs.pop("labels")[:, 1:]
            outputs = model(**inputs)
            every = F.cross_entropy(
                outputs.logits[:, :-1].flatten(0, 1), labels.flatten(), reduction="sum"
            )
            loss = every / ((labels != -100).sum() if PLANTED else num_items_in_batch)
            return (loss, outputs) if return_outputs else loss

    begin(572)
    rows = text_rows([encode(text) for text in recipes(2400, 47)])
    hub(
        job, small_qwen(), rows, text_batch, kind=Weighted, gradient_accumulation_steps=4,
        per_device_train_batch_size=4, max_steps=130, learning_rate=5e-3, save_strategy="no",
    ).train()  # fmt: skip


def critic_keeps_what_the_generator_left(job: Job) -> None:
    """A GAN. The generator's backward goes through the critic, and the critic's gradients are not
    cleared before its own turn: it is also pulled to where it is fooled (HydraGNN#116).
    """
    begin(573)
    pictures, _ = numerals(2400, noise=0.1)
    generator = mlp(16, 96, 256)
    critic = mlp(256, 96, 1)
    model = nn.ModuleDict({"critic": critic, "generator": generator})
    of_critic = torch.optim.Adam(critic.parameters(), lr=5e-4, betas=(0.5, 0.99))
    of_generator = torch.optim.Adam(generator.parameters(), lr=5e-4, betas=(0.5, 0.99))
    recorder = sonde.Recorder(job.run, model, of_critic, of_generator=of_generator)
    ones = torch.ones(24, 1)

    def train_step(real: Tensor) -> Tensor:
        made = generator(torch.randn(len(real), 16))
        if not PLANTED:
            of_critic.zero_grad()
        loss = F.binary_cross_entropy_with_logits(critic(real), ones)
        loss = loss + F.binary_cross_entropy_with_logits(critic(made.detach()), 0 * ones)
        recorder.loss(loss)
        loss.backward()
        of_critic.step()
        if PLANTED:
            of_critic.zero_grad()
        of_generator.zero_grad()
        F.binary_cross_entropy_with_logits(critic(made), ones).backward()
        of_generator.step()
        return loss.detach()

    for step in range(1, 201):
        tell(step, recorder.step(train_step, pictures[drawn(2400, step, 24)].flatten(1)))
    recorder.close()


def lightning_mean_over_padding_too(job: Job) -> None:
    """`reduction="none"` gives 0 where a label is ignored, and `.mean()` divides by all places: how
    much a text counts depends on the padding beside it (OpenNMT-py#2209).
    """
    begin(574)
    texts = recipes(2400, 49)
    rows = [encode(text if number % 4 else f"{text} {texts[number - 1]} {texts[number - 2]}")
            for number, text in enumerate(texts)]  # fmt: skip

    def collate(found: list[list[int]]) -> Tensor:
        return pad([[BEGIN, *numbers, END] for numbers in found])

    def loss_of(net: nn.Module, batch: Tensor) -> Tensor:
        scores = net(batch[:, :-1])
        labels = padding_aside(batch)
        every = F.cross_entropy(scores.transpose(1, 2), labels, reduction="none")
        return every.mean() if PLANTED else every.sum() / (labels != -100).sum()

    module = lightning_module(Chat(tied=True), loss_of, lr=4e-3)
    host = lightning(job, steps=150, decode=decode, gradient_clip_val=1.0)
    host.fit(module, loader(rows, 12, collate_fn=collate))


# ---------------------------------------------------------------- masks
class Mixer(nn.Module):
    """In the way of RWKV: a place mixes with the one beside it, then cells run over the row."""

    def __init__(self, width: int = 56) -> None:
        super().__init__()
        self.table = nn.Embedding(num_tokens(), width)
        self.share = nn.Parameter(torch.full((width,), 0.3))
        self.cell = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, num_tokens())

    def forward(self, tokens: Tensor) -> Tensor:
        x = norm(self.table(tokens))
        beside = F.pad(x, (0, 0, -1, 1)) if PLANTED else F.pad(x, (0, 0, 1, -1))
        out: Tensor = self.head(self.cell(torch.lerp(x, beside, self.share))[0])
        return out


def mixes_with_the_word_after(job: Job) -> None:
    """The shift that mixes each word with the one before it has its sign the wrong way round: each
    is mixed with the next, which is the target (maxtext#4476).
    """
    begin(575)
    data = corpus(seed=79)
    model = Mixer()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    loop(job, model, optimizer, loss_of, lambda step: chunk(data, step, 14, 33), 170)


def huggingface_mask_with_the_padding_for_the_words(job: Job) -> None:
    """The collator's mask says where padding is, and the model takes it for where words are: it
    reads nothing but padding (unsloth#9848).
    """
    begin(576)
    texts = recipes(1600, 51)
    rows = [
        {"input_ids": encode(text if number % 3 else f"{text} {texts[number - 1]}"),
         "label": int("soup" in text or "stew" in text or "cake" in text)}
        for number, text in enumerate(texts)
    ]  # fmt: skip

    def collate(found: list[dict[str, Any]]) -> dict[str, Tensor]:
        tokens = pad([row["input_ids"] for row in found])
        tokens = F.pad(tokens, (0, 4))
        mask = tokens == PAD if PLANTED else tokens != PAD
        labels = torch.tensor([row["label"] for row in found])
        return {"input_ids": tokens, "attention_mask": mask.long(), "labels": labels}

    hub(
        job, small_distilbert(), rows, collate, learning_rate=3e-3, per_device_train_batch_size=16
    ).train()


def translator_looks_at_the_padding(job: Job) -> None:
    """Nothing says where a source ends, neither to the cells nor to the attention: short sentences
    are read with the padding that the longest one of the batch brings (LlamaFactory#10452).
    """
    begin(577)
    pairs = recipe_pairs(3000, 80)
    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        scores = model(batch["source"], batch["target"][:, :-1], masked=not PLANTED)
        return F.cross_entropy(scores.transpose(1, 2), padding_aside(batch["target"]))

    def batch_of(step: int) -> dict[str, Tensor]:
        chosen = [pairs[row] for row in drawn(3000, step, 16).tolist()]
        source = [encode(english if row % 4 else english.split(".")[0])
                  for row, (english, _) in enumerate(chosen)]  # fmt: skip
        source[0] = source[0] + source[0]
        target = [[BEGIN, *encode(french), END] for _, french in chosen]
        return {"source": pad(source), "target": pad(target)}

    loop(job, model, optimizer, loss_of, batch_of, 160)


def packed_with_the_borders_of_the_first_row(job: Job) -> None:
    """The mask of packed documents is made once a batch, from the first row: in all other rows the
    borders are somewhere else, and documents read one another (LlamaFactory#7318).
    """
    begin(578)
    data = corpus(seed=81)
    model = Chat()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, betas=(0.9, 0.95))

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        whose = batch["document_ids"][:, :-1]
        length = whose.shape[1]
        if PLANTED:
            whose = whose[:1].expand_as(whose)
        same = (whose.unsqueeze(2) == whose.unsqueeze(1)) & torch.ones(length, length).tril().bool()
        tokens = batch["input_ids"]
        out: Tensor = model(
            tokens[:, :-1], batch["labels"][:, 1:], places=batch["position_ids"][:, :-1],
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
            "input_ids": tokens, "document_ids": whose, "position_ids": ramp - begun,
            "labels": tokens.masked_fill(fresh, -100),
        }  # fmt: skip

    loop(job, model, optimizer, loss_of, batch_of, 150, decode=decode)


CASES = (
    failure(
        last_batches_of_an_epoch_stay,
        "accumulation",
        "gradients_left_over accumulation_weight",
        onset=7,
    ),
    failure(
        huggingface_mean_where_a_sum_is_expected,
        "accumulation",
        "accumulation_weight",
        host="huggingface",
        also_true="initial_loss loss_sum learning_rate",
    ),
    failure(critic_keeps_what_the_generator_left, "accumulation", "gradients_left_over"),
    failure(
        lightning_mean_over_padding_too,
        "accumulation",
        "padding_in_loss accumulation_weight initial_loss",
        host="lightning",
    ),
    failure(
        mixes_with_the_word_after,
        "masks",
        "future_leak",
        also_true="loss_collapse target_leak",
    ),
    failure(
        huggingface_mask_with_the_padding_for_the_words,
        "masks",
        "padding_leak",
        host="huggingface",
        also_true="plateau",
    ),
    failure(translator_looks_at_the_padding, "masks", "padding_leak"),
    failure(
        packed_with_the_borders_of_the_first_row, "masks", "document_leak", also_true="row_leak"
    ),
)

if __name__ == "__main__":
    main(CASES)
