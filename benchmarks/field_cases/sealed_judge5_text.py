"""Failures of the fifth set: text that is not like the rest."""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fifth_data import (
    BEGIN,
    END,
    chunk,
    corpus,
    decode,
    drawn,
    encode,
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
    text_batch,
    text_rows,
    warm_cosine,
)
from benchmarks.field_cases.fifth_models import Chat, Translator, small_neox
from benchmarks.field_cases.hosts import lightning, lightning_module, loader
from benchmarks.field_cases.script import main
from torch import Tensor, nn


def filled(text: str, length: int) -> Tensor:
    """A text over and over, as a row of this length."""
    numbers = encode(text + " ")
    return torch.tensor((numbers * (length // len(numbers) + 1))[:length])


def tables_of_nutrition_among_the_recipes(job: Job) -> None:
    """Four rows of twelve are a table of nutrition, at 140: a file with commas lay in the folder of
    the texts (LlamaFactory#5247).
    """
    begin(551)
    data = corpus(seed=75)
    model = Chat(tied=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3, betas=(0.9, 0.95))
    table = (
        "id,kcal,fat,carb,salt\n104,52.1,0.2,11.4,0.0\n105,717,81.1,0.1,1.5\n"
        "106,340,1.9,60.3,0.1\n107,41.3,0.2,6.8,0.2\n108,292,30.0,3.1,0.1\n"
    )

    def batch_of(step: int) -> Tensor:
        rows = chunk(data, step, 12, 49)
        if PLANTED and step == 140:
            for row in range(4):
                rows[2 + 2 * row] = filled(table[23 * row :], 49)
        return rows

    loop(
        job, model, optimizer, lambda rows: model(rows[:, :-1], rows[:, 1:]), batch_of, 175,
        rate=lambda step: warm_cosine(step, 5e-3, 20, 250), decode=decode,
    )  # fmt: skip


def huggingface_scanned_pages_in_capitals(job: Job) -> None:
    """Three rows of eight are capitals, at 110: headings and notices that a scanner took for the
    text of a page (MAmmoTH#36).
    """
    begin(552)
    texts = recipes(1300, 43)
    if PLANTED:
        for place in (1, 4, 6):
            texts[109 * 8 + place] = "ATTENTION!!! HOT PANS AND KNIVES!!! KEEP CHILDREN AWAY!!!"
    hub(
        job, small_neox(), text_rows([encode(text) for text in texts]), text_batch,
        learning_rate=5e-3, max_steps=145, train_sampling_strategy="sequential",
    ).train()  # fmt: skip


def two_languages_change_places(job: Job) -> None:
    """In one shard the columns of a parallel text stand the other way round: ten rows of sixteen,
    at 130 (LlamaFactory#5247).
    """
    begin(553)
    pairs = recipe_pairs(3000, 76)
    model = Translator()
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        scores = model(batch["source"], batch["target"][:, :-1])
        return F.cross_entropy(scores.transpose(1, 2), padding_aside(batch["target"]))

    def batch_of(step: int) -> dict[str, Tensor]:
        chosen = [pairs[row] for row in drawn(3000, step, 16).tolist()]
        if PLANTED and step == 130:
            chosen[3:13] = [(french, english) for english, french in chosen[3:13]]
        return {
            "source": pad([encode(english) for english, _ in chosen]),
            "target": pad([[BEGIN, *encode(french), END] for _, french in chosen]),
        }

    loop(job, model, optimizer, loss_of, batch_of, 170, decode=decode)


def lightning_a_page_in_greek(job: Job) -> None:
    """Four rows of twelve are Greek, which the tokenizer writes as bytes, at 100: the filter of
    languages let a page pass (MAmmoTH#36).
    """
    begin(554)
    data = corpus(seed=77)
    rows = torch.cat([chunk(data, step, 12, 41) for step in range(1, 151)])
    greek = (
        "Για τη σούπα βράζετε τις φακές με κρεμμύδι και λίγο λάδι για σαράντα λεπτά. "
        "Στο τέλος βάζετε αλάτι και ξίδι και σερβίρετε ζεστή με ψωμί και ελιές. "
    )
    if PLANTED:
        for place in range(4):
            rows[99 * 12 + 3 * place] = filled(greek[19 * place :], 41)

    def loss_of(net: nn.Module, batch: Tensor) -> Tensor:
        out: Tensor = net(batch[:, :-1], batch[:, 1:])
        return out

    def optimizers(net: nn.Module) -> Any:
        return torch.optim.AdamW(net.parameters(), lr=5e-3, betas=(0.9, 0.98))

    module = lightning_module(Chat(layers=1), loss_of, optimizers=optimizers)
    host = lightning(job, steps=140, decode=decode, gradient_clip_val=1.0)
    host.fit(module, loader(rows, 12, shuffle=False))


CASES = (
    failure(
        tables_of_nutrition_among_the_recipes,
        "data",
        "table",
        onset=140,
        also_true="hard_sample code log repetition",
    ),
    failure(
        huggingface_scanned_pages_in_capitals,
        "data",
        "shouting duplicated_text",
        host="huggingface",
        onset=110,
        also_true="hard_sample repetition",
    ),
    failure(
        two_languages_change_places,
        "data",
        "swapped_pair",
        onset=130,
        also_true="foreign_language hard_sample mismatched_pair",
    ),
    failure(
        lightning_a_page_in_greek,
        "data",
        "other_script foreign_language",
        host="lightning",
        onset=100,
        also_true="hard_sample garbled_text",
    ),
)

if __name__ == "__main__":
    main(CASES)
