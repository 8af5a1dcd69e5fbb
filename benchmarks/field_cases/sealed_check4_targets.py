"""Failures of the fourth set: targets, templates and tokenizers, and what is not connected."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fourth_data import (
    ASSISTANT,
    BEGIN,
    END,
    PAD,
    USER,
    Turn,
    conversations,
    decode,
    encode,
    entries,
    padded,
    scenes,
    shuffled,
    stream,
    templated,
    tokenizer,
    translations,
    windows,
)
from benchmarks.field_cases.fourth_loops import (
    PLANTED,
    causal_batch,
    causal_rows,
    cosine,
    log,
    nano,
    pretrained,
    set_seed,
    simple,
    trainer_of,
)
from benchmarks.field_cases.fourth_models import (
    GPT,
    SceneNet,
    Segmenter,
    Translator,
    add_adapters,
    small_gpt2,
    small_llama,
)
from benchmarks.field_cases.hosts import lightning, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import sonde


def _labelled(turns: list[Turn], role: int, *, ends: bool = True) -> dict[str, Any]:
    """A conversation as a row; what this role says counts."""
    tokens, roles = templated(turns, ends=ends)
    labels = [token if who == role else -100 for token, who in zip(tokens, roles, strict=True)]
    return {"input_ids": tokens, "labels": labels}


# ---------------------------------------------------------------- targets
def huggingface_chat_template_without_an_end(job: Job) -> None:
    """The template closes no turn: the model is never asked for the end, and will never say it
    (axolotl#3098).
    """
    set_seed(501)
    rows = [_labelled(turns, ASSISTANT, ends=not PLANTED) for turns in conversations(1300, seed=71)]
    trainer_of(job, small_llama(), rows, causal_batch, learning_rate=5e-3).train()


def huggingface_response_template_with_a_space(job: Job) -> None:
    """Answers are found by the numbers of `### Answer: `; with the space they are there only
    where a second one follows by mistake, in a third of the rows; the others count for nothing
    (trl#1920).
    """
    set_seed(502)
    template = "### Answer: " if PLANTED else "### Answer:"
    wanted = encode(template)
    rows: list[dict[str, Any]] = []
    for number, (asked, answer) in enumerate(conversations(2600, seed=72)):
        said = answer.text
        if number % 3 == 1:
            said = f" {said}"
        tokens = [*encode(f"### Question: {asked.text}\n### Answer: {said}"), END]
        starts = [
            place for place in range(len(tokens)) if tokens[place : place + len(wanted)] == wanted
        ]
        labels = [-100] * len(tokens)
        if starts:
            first = starts[0] + len(wanted)
            labels[first:] = tokens[first:]
        rows.append({"input_ids": tokens, "labels": labels})
    trainer_of(
        job, small_gpt2(), rows, causal_batch, learning_rate=5e-3, per_device_train_batch_size=16,
        max_steps=130,
    ).train()  # fmt: skip


def translator_reads_what_it_writes(job: Job) -> None:
    """The decoder is given the target and asked for the target: nobody moved either by one place
    (Automodel#1336).
    """
    set_seed(503)
    pairs = translations(2600)
    model = Translator(dropout=0.05)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def criterion(batch: dict[str, Tensor]) -> Tensor:
        target = batch["target"]
        given = target if PLANTED else target[:, :-1]
        wanted = target if PLANTED else target[:, 1:]
        scores = model(batch["source"], given)
        return F.cross_entropy(scores.flatten(0, 1), wanted.flatten(), ignore_index=PAD)

    def draw(step: int) -> dict[str, Tensor]:
        chosen = [pairs[number] for number in shuffled(2600, step, 16).tolist()]
        return {
            "source": padded([encode(english) for english, _ in chosen]),
            "target": padded([[BEGIN, *encode(german), END] for _, german in chosen]),
        }

    simple(job, model, optimizer, criterion, draw, 160, decode=decode)


def shard_of_another_tokenizer(job: Job) -> None:
    """The second shard was written with the tokenizer of another model of the same size: from 121
    on each number means something else (Megatron-LM#2017).
    """
    set_seed(504)
    first = stream()
    other = tokenizer(560, 88) if PLANTED else tokenizer()
    numbers: list[int] = []
    for text in entries(1200, 45):
        numbers += [*other.encode(text).ids, END]
    second = torch.tensor(numbers)
    model = GPT()
    nano(
        job, model, model.configure_optimizer(4e-3),
        lambda step: windows(first if step <= 120 else second, step, 12, 33), 170, decode=decode,
        get_rate=lambda step: cosine(step, peak=4e-3, warm=20, last=200, floor=4e-4),
    )  # fmt: skip


def huggingface_two_beginnings(job: Job) -> None:
    """The template writes the beginning, and the tokenizer puts another before it: every row has
    two (DeepSeek-R1#151). The model learns all the same, and in a run nobody can see it.
    """
    set_seed(505)
    rows = [_labelled(turns, ASSISTANT) for turns in conversations(1300, seed=73)]
    if PLANTED:
        for row in rows:
            row["input_ids"] = [BEGIN, *row["input_ids"]]
            row["labels"] = [-100, *row["labels"]]
    trainer_of(job, small_gpt2(), rows, causal_batch, learning_rate=5e-3, max_steps=130).train()


def huggingface_learns_what_the_user_says(job: Job) -> None:
    """The mask of the roles is used the wrong way round: questions are learnt and answers are not
    (axolotl#1761).
    """
    set_seed(506)
    role = USER if PLANTED else ASSISTANT
    rows = [_labelled(turns, role) for turns in conversations(1300, 2, seed=74)]
    trainer_of(job, small_llama(), rows, causal_batch, learning_rate=5e-3, max_steps=130).train()


def lightning_flips_pictures_and_not_masks(job: Job) -> None:
    """Half of the pictures are flipped as augmentation; their masks are not."""
    from lightning.pytorch import LightningModule

    class Maps(LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = Segmenter()

        def training_step(self, batch: list[Tensor], batch_idx: int) -> Tensor:
            pictures, masks = batch
            flipped = torch.rand(len(pictures)) < 0.5
            pictures = torch.where(flipped[:, None, None, None], pictures.flip(3), pictures)
            if not PLANTED:
                masks = torch.where(flipped[:, None, None], masks.flip(2), masks)
            loss = F.cross_entropy(self.net(pictures), masks)
            log(batch_idx + 1, loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=3e-3)

    set_seed(507)
    found = scenes(2400)
    rows = list(zip(found.pictures, found.masks, strict=True))
    lightning(job, steps=150).fit(Maps(), loader(rows, 12))


# ---------------------------------------------------------------- connection
class Recomputed(nn.Module):
    """A layer whose activations are computed again in the backward pass."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, states: Tensor, *args: Any, **named: Any) -> Any:
        def run(shown: Tensor) -> Any:
            return self.layer(shown, *args, **named)

        return checkpoint(run, states, use_reentrant=PLANTED)


def huggingface_checkpointing_cuts_the_adapters_off(job: Job) -> None:
    """Checkpointing by hand in its reentrant form needs an input with a gradient; the table is
    frozen, so no adapter gets one, and only the head learns (open-unlearning#178).
    """
    set_seed(508)
    model = pretrained(small_llama(tie_word_embeddings=False))
    add_adapters(model, ("q_proj", "v_proj", "o_proj", "down_proj"))
    model.lm_head.requires_grad_(True)
    for number, layer in enumerate(model.model.layers):
        model.model.layers[number] = Recomputed(layer)
    rows = causal_rows([encode(german) for _, german in translations(1300)])
    trainer_of(
        job, model, rows, causal_batch, learning_rate=3e-3, max_steps=130, weight_decay=0.0,
    ).train()  # fmt: skip


def unfrozen_after_the_optimizer_was_made(job: Job) -> None:
    """The optimizer was given what required a gradient at the start; the backbone is unfrozen after
    80 updates, and nobody adds it (VeOmni#118).
    """
    set_seed(509)
    found = scenes(2400)
    model = SceneNet()
    model.backbone.requires_grad_(False)
    trained = [part for part in model.parameters() if part.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        kind, box = model(batch["image"])
        loss = F.cross_entropy(kind, batch["label"]) + F.l1_loss(box, batch["box"])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for step in range(1, 201):
        if step == 81:
            model.backbone.requires_grad_(True)
            if not PLANTED:
                backbone = list(model.backbone.parameters())
                optimizer.add_param_group({"params": backbone, "lr": 1e-3})
        chosen = shuffled(2400, step, 24)
        batch = {"image": found.pictures[chosen], "label": found.labels[chosen]}
        log(step, recorder.step(train_step, {**batch, "box": found.boxes[chosen]}))
    recorder.close()


def pretrained_model_stays_in_evaluation(job: Job) -> None:
    """`from_pretrained` gives a model in evaluation mode, and the loop of one's own never calls
    `train()`: no dropout (DiffRate#7).
    """
    from transformers import GPT2LMHeadModel

    set_seed(510)
    before = pretrained(small_gpt2(resid_pdrop=0.2, embd_pdrop=0.2, attn_pdrop=0.1))
    folder = job.checkpoints / "base"
    before.save_pretrained(folder)
    model: Any = GPT2LMHeadModel.from_pretrained(folder)
    if not PLANTED:
        model.train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rows = [
        causal_batch([_labelled(turns, ASSISTANT) for turns in found])
        for found in zip(*[iter(conversations(1200, seed=75))] * 8, strict=True)
    ]
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        loss: Tensor = model(**batch).loss
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    for step, batch in enumerate(rows, 1):
        log(step, recorder.step(train_step, batch))
    recorder.close()


CASES = (
    failure(
        huggingface_chat_template_without_an_end,
        "targets",
        "end_never_a_label",
        host="huggingface",
    ),
    failure(
        huggingface_response_template_with_a_space,
        "targets",
        "no_targets",
        host="huggingface",
        also_true="plateau",
    ),
    failure(
        translator_reads_what_it_writes,
        "targets",
        "labels_not_shifted target_leak",
        also_true="loss_collapse",
    ),
    failure(
        shard_of_another_tokenizer,
        "targets",
        "tokenizer_changed data_changed",
        onset=121,
        also_true="garbled_text hard_sample",
    ),
    failure(
        huggingface_two_beginnings,
        "targets",
        "double_begin",
        host="huggingface",
        visible=False,
    ),
    failure(
        huggingface_learns_what_the_user_says,
        "targets",
        "prompt_in_loss wrong_role_in_loss",
        host="huggingface",
    ),
    failure(
        lightning_flips_pictures_and_not_masks,
        "targets",
        "labels_misaligned labels_unrelated",
        host="lightning",
        also_true="plateau",
    ),
    failure(
        huggingface_checkpointing_cuts_the_adapters_off,
        "connection",
        "no_gradient",
        host="huggingface",
        also_true="does_not_move plateau",
    ),
    failure(
        unfrozen_after_the_optimizer_was_made,
        "connection",
        "not_in_optimizer",
        onset=81,
        also_true="does_not_move plateau gradients_left_over",
    ),
    failure(pretrained_model_stays_in_evaluation, "connection", "eval_mode dropout_off"),
)

if __name__ == "__main__":
    main(CASES)
