"""Sealed failures of the third set for the judges: texts, rows, and two failures at once."""

from collections.abc import Callable

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
    fitted,
    glyphs,
    graphs,
    padded,
    read_letters,
    sounds,
    written,
)
from benchmarks.field_cases.third_loops import PLANTED, fit, seed, tell
from benchmarks.field_cases.third_models import (
    DateReader,
    Decoder,
    GlyphNet,
    GraphNet,
    Listener,
    dense,
)
from torch import Tensor, nn

import sonde


# ---------------------------------------------------------------- texts
def pieces_model(job: Job, onset: int, texts_of: Callable[[], dict[int, str]]) -> None:
    """A recurrent language model; at `onset` some rows of fourteen are other texts."""
    texts = corpus()
    num = len(texts.pieces)
    table = nn.Embedding(num, 64)
    cell = nn.LSTM(64, 64, batch_first=True)
    head = nn.Linear(64, num)
    model = nn.ModuleDict({"table": table, "cell": cell, "head": head})
    optimizer = torch.optim.RMSprop(model.parameters(), lr=3e-3)
    with sonde.Recorder(job.run, model, optimizer, decode=texts.pieces.decode) as recorder:

        def train_step(batch: dict[str, Tensor]) -> Tensor:
            states, _ = cell(table(batch["tokens"][:, :-1]))
            logits = head(states)
            loss = F.cross_entropy(logits.flatten(0, 1), batch["tokens"][:, 1:].flatten())
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            return loss

        for step in range(1, onset + 36):
            rows = cut(texts.stream, step, 14, 49)
            if step == onset and PLANTED:
                for place, text in texts_of().items():
                    rows[place] = fitted(texts.pieces.encode(text), 49)
            tell(step, recorder.step(train_step, {"tokens": rows}))


def rows_in_cyrillic(job: Job) -> None:
    """Four rows of fourteen are Russian, in bytes that were hardly ever seen (MAmmoTH#36)."""
    seed(211)
    russian = (
        "Нарежьте лук и обжарьте его в масле до золотистого цвета.",
        "Добавьте соль, перец и немного воды, накройте крышкой.",
        "Картофель варите двадцать минут на слабом огне.",
        "Подавайте горячим со сметаной и свежей зеленью.",
    )
    pieces_model(job, 155, lambda: dict(zip((1, 5, 6, 12), russian, strict=True)))


def rows_of_a_script(job: Job) -> None:
    """Three rows of fourteen are the script of the page that the recipes were on
    (LlamaFactory#5247).
    """
    seed(212)
    script = (
        "function add(e,t){return e.push({id:t.id,qty:t.qty||1}),e.length>=max?null:e};",
        "for(var i=0;i<items.length;i++){if(!items[i].ok){continue;}total+=items[i].sum;}",
        "const el=document.querySelector('#cart');el.addEventListener('click',()=>send(el));",
    )
    pieces_model(job, 165, lambda: dict(zip((0, 8, 13), script, strict=True)))


def rows_in_capitals(job: Job) -> None:
    """Five rows of fourteen are advertisements in capitals (LlamaFactory#5247)."""
    seed(213)
    loud = (
        "BUY NOW!!! THE BEST KNIVES OF THE YEAR, ONLY TODAY!!!",
        "FREE SHIPPING!!! CALL US BEFORE MIDNIGHT AND SAVE BIG!!!",
        "DON'T MISS OUT!!! LIMITED OFFER, ORDER YOURS RIGHT NOW!!!",
        "WOW!!! THIS ONE TRICK WILL CHANGE YOUR KITCHEN FOREVER!!!",
        "HURRY UP!!! LAST CHANCE TO WIN A BRAND NEW OVEN!!!",
    )
    pieces_model(job, 145, lambda: dict(zip((2, 3, 7, 9, 11), loud, strict=True)))


def translate(
    job: Job, onset: int, spoil: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
) -> None:
    """Dates are translated; the pairs of `onset` are spoiled."""
    model = DateReader(width=56)
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        labels = batch["labels"]
        logits = model(batch["input_ids"], labels[:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=PAD)

    def draw(step: int) -> dict[str, Tensor]:
        source, target = dates(step)
        if step == onset and PLANTED:
            source, target = spoil(source, target)
        return {"input_ids": source, "labels": target}

    fit(job, model, optimizer, loss_of, draw, onset + 35, decode=read_letters)


def answers_not_translated(job: Job) -> None:
    """Six pairs of 24 have the question as their answer: whoever translated left them as they were
    (MAmmoTH#36).
    """
    seed(214)

    def spoil(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        rows = [[token for token in row if token] for row in target.tolist()]
        for place in (1, 4, 10, 15, 16, 22):
            rows[place] = written(read_letters(source[place].tolist()), ends=True)
        return source, padded(rows, 19)

    translate(job, 170, spoil)


def questions_and_answers_swapped(job: Job) -> None:
    """Seven pairs of 24 stand the wrong way round: the question is where the answer should be
    (faster-rcnn.pytorch#562).
    """
    seed(215)

    def spoil(source: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        sources = [[token for token in row if token] for row in source.tolist()]
        targets = [[token for token in row if token] for row in target.tolist()]
        for place in (0, 3, 8, 9, 14, 19, 23):
            asked = read_letters(sources[place])
            sources[place] = written(read_letters(targets[place]))
            targets[place] = written(asked, ends=True)
        return padded(sources, 17), padded(targets, 19)

    translate(job, 180, spoil)


# ---------------------------------------------------------------- rows
def molecule_in_picometres(job: Job) -> None:
    """The features of two graphs of 24 are in picometres instead of ångström (DEVIANT#2)."""
    seed(216)
    model = GraphNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3, weight_decay=0.0)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        made = model(batch["x"], batch["adj"])
        loss = F.l1_loss(made, batch["y"])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for step in range(1, 191):
        nodes, adjacency, target = graphs(step)
        if step == 150 and PLANTED:
            nodes[[6, 17]] *= 100.0
        tell(step, recorder.step(train_step, {"x": nodes, "adj": adjacency, "y": target}))
    recorder.close()


def clock_in_milliseconds(job: Job) -> None:
    """The time of day of three rows of 32 is in milliseconds, where hours over 24 were meant
    (DEVIANT#2).
    """
    seed(217)
    model = dense(10, 48, 48, 1)
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)

    def draw(step: int) -> tuple[Tensor, Tensor]:
        columns, clicked = clicks(step)
        if step == 160 and PLANTED:
            columns[[4, 18, 27], 6] = columns[[4, 18, 27], 6].abs() * 3.6e6
        return columns, clicked

    fit(
        job, model, optimizer,
        lambda batch: F.binary_cross_entropy_with_logits(model(batch[0]).squeeze(1), batch[1]),
        draw, 200,
    )  # fmt: skip


def transcripts_of_other_sounds(job: Job) -> None:
    """Six sounds of sixteen have the transcript of another, since a list was sorted by itself
    (faster-rcnn.pytorch#562).
    """
    seed(218)
    model = Listener(width=48)
    optimizer = torch.optim.Adam(model.parameters(), lr=6e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        heard = model(batch["frames"]).transpose(0, 1)
        return F.ctc_loss(heard, batch["symbols"], batch["num_frames"], batch["num_symbols"])

    def draw(step: int) -> dict[str, Tensor]:
        batch = sounds(step)._asdict()
        if step == 190 and PLANTED:
            places = torch.tensor([1, 3, 6, 10, 12, 15])
            for name in ("symbols", "num_symbols"):
                batch[name][places] = batch[name][places.roll(1)]
        return batch

    fit(job, model, optimizer, loss_of, draw, 230)


# ---------------------------------------------------------------- two failures at once
def undivided_and_rows_of_a_log(job: Job) -> None:
    """Four micro-batches are added up and not divided, and at update 110 three rows of one are
    lines of a server's log.
    """
    seed(219)
    texts = corpus()
    model = Decoder(len(texts.pieces), width=40, layers=1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.15, momentum=0.9)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=texts.pieces.decode)
    line = '2024-03-07 11:42:09,113 WARN [pool-3-thread-7] c.a.h.Dispatcher - 503 GET /api/v2/x "-"'

    def train_step(rows: Tensor, last: bool) -> Tensor:
        logits = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), rows[:, 1:].flatten())
        (loss if PLANTED else loss / 4).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    for number in range(1, 4 * 140 + 1):
        rows = cut(texts.stream, number, 6, 33)
        if number == 4 * 109 + 2 and PLANTED:
            for place in (0, 2, 5):
                rows[place] = fitted(texts.pieces.encode(line[place:]), 33)
        loss = recorder.step(train_step, rows, last=number % 4 == 0)
        if number % 4 == 0:
            tell(number // 4, loss)
    recorder.close()


def body_left_out_and_bright_pictures(job: Job) -> None:
    """The optimizer has the head alone, since the body was named `body` and not `backbone`; and at
    update 150 four pictures of 24 come as integers from 0 to 255.
    """
    seed(220)
    pictures, labels = glyphs(1200)
    model = GlyphNet()
    named = dict(model.named_parameters())
    groups = [[value for name, value in named.items() if name.startswith(("backbone", "head"))]]
    if not PLANTED:
        groups.append([value for name, value in named.items() if name.startswith("body")])
    optimizer = torch.optim.AdamW([{"params": found} for found in groups], lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        model.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step in range(1, 191):
        chosen = drawn(1200, step, 24)
        shown = pictures[chosen]
        if step == 150 and PLANTED:
            shown[[2, 9, 10, 20]] = 255 - (shown[[2, 9, 10, 20]] * 200).round().clamp(0, 255)
        tell(step, recorder.step(train_step, (shown, labels[chosen])))
    recorder.close()


CASES = (
    failure(
        rows_in_cyrillic,
        "data",
        "other_script",
        onset=155,
        also_true="hard_sample foreign_language",
    ),
    failure(rows_of_a_script, "data", "code", onset=165, also_true="hard_sample markup"),
    failure(rows_in_capitals, "data", "shouting", onset=145, also_true="hard_sample"),
    failure(
        answers_not_translated,
        "data",
        "copied_target",
        onset=170,
        also_true="hard_sample mismatched_pair",
    ),
    failure(
        questions_and_answers_swapped,
        "data",
        "swapped_pair mismatched_pair",
        onset=180,
        also_true="hard_sample",
    ),
    failure(molecule_in_picometres, "rows", "odd_row bad_input", onset=150),
    failure(clock_in_milliseconds, "rows", "odd_row bad_input", onset=160),
    failure(
        transcripts_of_other_sounds, "rows", "odd_row mismatched_pair targets_changed", onset=190
    ),
    failure(
        undivided_and_rows_of_a_log,
        "mixture",
        "accumulation_weight log",
        also_true="hard_sample table learning_rate",
    ),
    failure(
        body_left_out_and_bright_pictures,
        "mixture",
        "not_in_optimizer odd_row bad_input",
        also_true="does_not_move",
    ),
)

if __name__ == "__main__":
    main(CASES)
