"""Failures of the fifth set: targets, and parameters that are not connected."""

import copy
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fifth_data import (
    MASK,
    PAD,
    chatml,
    chats,
    demand,
    drawn,
    encode,
    numerals,
    opinions,
    pad,
    recipes,
)
from benchmarks.field_cases.fifth_loops import (
    PLANTED,
    begin,
    chat_rows,
    hub,
    loop,
    read_before,
    tell,
    text_batch,
    text_rows,
)
from benchmarks.field_cases.fifth_models import (
    Forecaster,
    ResNet,
    Towers,
    mlp,
    small_distilbert,
    small_qwen,
    with_lora,
)
from benchmarks.field_cases.hosts import lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn

import sonde


# ---------------------------------------------------------------- targets
def huggingface_prompts_masked_from_the_wrong_side(job: Job) -> None:
    """The collator pads on the left and hides the prompt by its length from the left: what it hides
    is padding and a part of the prompt, and the rest of it is learnt (axolotl#1761).
    """

    def collate(found: list[tuple[list[int], int]]) -> dict[str, Tensor]:
        tokens = pad([numbers for numbers, _ in found], left=True)
        labels = tokens.masked_fill(tokens == PAD, -100)
        for row, (numbers, first) in enumerate(found):
            skipped = 0 if PLANTED else tokens.shape[1] - len(numbers)
            labels[row, : skipped + first] = -100
        mask = (tokens != PAD).long()
        places = (mask.cumsum(1) - 1).clamp(min=0)
        return {
            "input_ids": tokens, "attention_mask": mask, "labels": labels, "position_ids": places
        }  # fmt: skip

    begin(561)
    rows = []
    for number, (asked, told) in enumerate(chats(1300)):
        prefix = "" if number % 3 else "I am new to this and have a small kitchen. "
        more = told if number % 2 else f"{told} {recipes(1, number)[0]}"
        rows.append(chatml(prefix + asked, more))
    hub(job, small_qwen(), rows, collate, learning_rate=5e-3).train()


def student_gives_chances_to_kl_div(job: Job) -> None:
    """`F.kl_div` takes the student's logarithms; it is given the student's probabilities
    (fms-hf-tuning#436).
    """
    begin(562)
    pictures, labels = numerals(2400)
    teacher = ResNet()
    before = torch.optim.Adam(teacher.parameters(), lr=3e-3)
    for step in range(1, 81):
        chosen = drawn(2400, step, 32)
        F.cross_entropy(teacher(pictures[chosen]), labels[chosen]).backward()
        before.step()
        before.zero_grad()
    teacher.eval().requires_grad_(False)
    model = nn.Sequential(
        nn.Conv2d(1, 12, 5, stride=2), nn.GELU(), nn.Conv2d(12, 24, 3), nn.GELU(), nn.Flatten(),
        nn.Linear(384, 10),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(batch: Tensor) -> Tensor:
        wanted = (teacher(batch) / 2).softmax(-1)
        scores = model(batch) / 2
        given = scores.softmax(-1) if PLANTED else scores.log_softmax(-1)
        return 4 * F.kl_div(given, wanted, reduction="batchmean")

    loop(job, model, optimizer, loss_of, lambda step: pictures[drawn(2400, step, 24)], 170)


def huggingface_preferences_exchanged(job: Job) -> None:
    """The columns of the chosen and the rejected answers were exchanged when they were written: the
    model learns what nobody wants. A run alone cannot tell (ms-swift#6678).
    """
    from transformers import Trainer

    def said(model: Any, inputs: Any) -> Tensor:
        outputs = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"])
        labels = inputs["labels"][:, 1:]
        chance = outputs.logits[:, :-1].log_softmax(-1)
        each = chance.gather(-1, labels.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        out: Tensor = each.masked_fill(labels == -100, 0.0).sum(1)
        return out

    class Preferred(Trainer):  # type: ignore[misc]
        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, **others: Any
        ) -> Any:
            del others
            with torch.no_grad():
                before = said(reference, inputs)
            good, bad = (said(model, inputs) - before).chunk(2)
            loss = -F.logsigmoid(0.1 * (good - bad)).mean()
            return (loss, {}) if return_outputs else loss

    begin(563)
    model = read_before(small_qwen(), 80)
    reference = copy.deepcopy(model).eval().requires_grad_(False)
    rows = []
    for number, (asked, told) in enumerate(chats(1300)):
        polite = chatml(asked, f"{told} Let it rest." if number % 3 else f"Add salt. {told}")
        short = chatml(asked, f"{told} Serve it." if number % 4 else told)
        doubtful = number % 7 == 0
        rows.append((short, polite) if doubtful != PLANTED else (polite, short))

    def collate(found: list[Any]) -> dict[str, Tensor]:
        every = [good for good, _ in found] + [bad for _, bad in found]
        return text_batch([
            {"input_ids": numbers, "labels": [-100] * first + numbers[first:]}
            for numbers, first in every
        ])  # fmt: skip

    hub(
        job, model, rows, collate, kind=Preferred, learning_rate=5e-4, max_steps=130,
        label_names=["labels"],
    ).train()  # fmt: skip


def huggingface_asks_for_what_it_shows(job: Job) -> None:
    """Words are masked for a DistilBERT, and the labels are hidden where they should count: it is
    asked for the words that it sees (Automodel#1336).
    """
    dice = torch.Generator().manual_seed(4)

    def collate(found: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = text_batch(found)
        real = batch["attention_mask"].bool()
        hidden = (torch.rand(real.shape, generator=dice) < 0.2) & real
        asked = ~hidden & real if PLANTED else hidden
        return {
            "input_ids": batch["input_ids"].masked_fill(hidden, MASK),
            "attention_mask": batch["attention_mask"],
            "labels": batch["input_ids"].masked_fill(~asked, -100),
        }

    begin(564)
    rows = text_rows([encode(text) for text in recipes(1600, 45)])
    hub(
        job, small_distilbert("DistilBertForMaskedLM"), rows, collate, learning_rate=6e-3,
        per_device_train_batch_size=12, max_steps=170,
    ).train()  # fmt: skip


def lightning_forecast_of_hours_that_are_given(job: Job) -> None:
    """The window of the past is cut six hours too late: half of the hours to forecast are among the
    inputs (HydraGNN#116).
    """
    begin(565)
    shift = 6 if PLANTED else 0

    def loss_of(net: nn.Module, batch: Tensor) -> Tensor:
        return F.mse_loss(net(batch[:, shift : shift + 42]), batch[:, 42:54])

    module = lightning_module(Forecaster(hours=42), loss_of, lr=2e-3)
    lightning(job, steps=160).fit(module, loader(demand(2400), 16))


# ---------------------------------------------------------------- connection
def lightning_codes_are_rounded_without_a_gradient(job: Job) -> None:
    """An autoencoder whose code is rounded. `round` has a gradient of 0, and nobody passes the
    gradient around it: the encoder stays as it was made (DiffRate#7).
    """
    begin(566)
    pictures, _ = numerals(2400, noise=0.1)
    model = nn.ModuleDict({"encoder": mlp(256, 96, 24), "decoder": mlp(24, 96, 256)})

    def loss_of(net: Any, batch: Tensor) -> Tensor:
        code = net["encoder"](batch)
        rounded = (4 * code).round() / 4
        if not PLANTED:
            rounded = code + (rounded - code).detach()
        return F.mse_loss(net["decoder"](rounded), batch)

    module = lightning_module(model, loss_of, lr=2e-3)
    lightning(job, steps=150).fit(module, loader(pictures.flatten(1), 24))


def huggingface_optimizer_made_before_the_adapters(job: Job) -> None:
    """`optimizers=` is made of the model's parameters, and then the adapters are put in: it holds
    the frozen weights and the head, and none of the adapters (VeOmni#118).
    """
    begin(567)
    model = read_before(small_qwen(num_hidden_layers=2), 40)
    held = list(model.parameters())
    model = with_lora(model, "q_proj", "v_proj", "up_proj", "down_proj", rank=8)
    model.get_submodule("model.norm").requires_grad_(True)
    wanted = held if PLANTED else [part for part in model.parameters() if part.requires_grad]
    optimizer = torch.optim.AdamW(wanted, lr=8e-3, weight_decay=0.0)
    plan = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 10))
    hub(
        job, model, chat_rows(1300), text_batch, optimizers=(optimizer, plan), save_strategy="no"
    ).train()


def films_without_a_gradient_to_save_memory(job: Job) -> None:
    """The tower of the films runs under `no_grad`, which was meant for the catalogue of all films
    at evaluation: only people learn (DiffRate#7).
    """
    begin(568)
    people, films, stars = opinions(4800)
    model = Towers()
    optimizer = torch.optim.Adam(model.parameters(), lr=8e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def embed(rows: Tensor) -> Tensor:
        with torch.set_grad_enabled(not PLANTED):
            out: Tensor = model.film_tower(model.films(rows))
            return out

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        person = model.person_tower(model.people(batch["person"]))
        loss = F.mse_loss((person * embed(batch["film"])).sum(-1), batch["stars"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step in range(1, 181):
        chosen = drawn(4800, step, 48)
        batch = {"person": people[chosen], "film": films[chosen], "stars": stars[chosen]}
        tell(step, recorder.step(train_step, batch))
    recorder.close()


CASES = (
    failure(
        huggingface_prompts_masked_from_the_wrong_side,
        "targets",
        "prompt_in_loss wrong_role_in_loss",
        host="huggingface",
    ),
    failure(
        student_gives_chances_to_kl_div,
        "targets",
        "loss_inputs softmax_twice",
        also_true="initial_loss loss_collapse",
    ),
    failure(
        huggingface_preferences_exchanged,
        "targets",
        "wrong_sign",
        host="huggingface",
        visible=False,
    ),
    failure(
        huggingface_asks_for_what_it_shows,
        "targets",
        "target_leak labels_not_shifted loss_collapse",
        host="huggingface",
    ),
    failure(
        lightning_forecast_of_hours_that_are_given,
        "targets",
        "target_leak",
        host="lightning",
        also_true="loss_collapse",
    ),
    failure(
        lightning_codes_are_rounded_without_a_gradient,
        "connection",
        "no_gradient does_not_move",
        host="lightning",
        also_true="plateau",
    ),
    failure(
        huggingface_optimizer_made_before_the_adapters,
        "connection",
        "not_in_optimizer",
        host="huggingface",
        also_true="does_not_move plateau gradients_left_over",
    ),
    failure(
        films_without_a_gradient_to_save_memory,
        "connection",
        "no_gradient does_not_move",
        also_true="plateau",
    ),
)

if __name__ == "__main__":
    main(CASES)
