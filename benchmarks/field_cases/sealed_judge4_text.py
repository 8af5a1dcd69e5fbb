"""Failures of the fourth set: rows of another kind of text, two failures at once, and a policy."""

import base64
import random
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.fourth_data import (
    END,
    PAD,
    PLACES,
    Corridors,
    decode,
    encode,
    entries,
    filled,
    padded,
    stream,
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
    set_seed,
    trainer_of,
)
from benchmarks.field_cases.fourth_models import GPT, mlp, small_llama, small_t5
from benchmarks.field_cases.script import main
from torch import Tensor

import sonde


# ---------------------------------------------------------------- data
def base64_pictures_in_the_crawl(job: Job) -> None:
    """Four rows of twelve are pictures that a page holds as base64: at 150 (MAmmoTH#36)."""
    set_seed(401)
    data = stream()
    model = GPT(dropout=0.05)
    dice = random.Random(9)

    def get_batch(step: int) -> Tensor:
        rows = windows(data, step, 12, 49)
        if step == 150 and PLANTED:
            for number in range(2, 6):
                blob = base64.b64encode(dice.randbytes(150)).decode()
                rows[number] = filled(blob, 49)
        return rows

    nano(
        job, model, model.configure_optimizer(4e-3), get_batch, 180, decode=decode,
        get_rate=lambda step: cosine(step, peak=4e-3, warm=20, last=220),
    )  # fmt: skip


def umlauts_decoded_as_latin(job: Job) -> None:
    """A shard of the German side was read as Latin-1 and written as UTF-8: six rows of a
    micro-batch of ten, in update 130 (LlamaFactory#5247).
    """
    set_seed(402)
    texts = [german for _, german in translations(3300)]
    model = GPT(width=40)
    optimizer = model.configure_optimizer(5e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)

    def train_step(rows: Tensor, last: bool) -> Tensor:
        targets = rows[:, 1:].masked_fill(rows[:, 1:] == PAD, -1)
        logits, _ = model(rows[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), ignore_index=-1)
        (loss / 2).backward()
        if last:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return loss

    for number in range(1, 2 * 160 + 1):
        chosen = texts[number * 10 :][:10]
        if number == 2 * 130 - 1 and PLANTED:
            spoiled = [text.encode().decode("latin-1") for text in texts if text.count("ü") > 1]
            chosen[2:8] = spoiled[:6]
        rows = padded([[*encode(text), END] for text in chosen])
        loss = recorder.step(train_step, rows, last=number % 2 == 0)
        if number % 2 == 0:
            log(number // 2, loss)
    recorder.close()


def huggingface_lines_left_untranslated(job: Job) -> None:
    """Parallel text from the web: in six rows of sixteen the German side is the English one, at 120
    (LlamaFactory#5247).
    """
    set_seed(403)
    pairs = translations(2400)
    rows = [
        {"input_ids": [*encode(english), END], "labels": [*encode(german), END]}
        for english, german in pairs
    ]
    if PLANTED:
        for number in range(119 * 16 + 4, 119 * 16 + 10):
            rows[number]["labels"] = rows[number]["input_ids"]

    def collate(found: list[dict[str, Any]]) -> dict[str, Tensor]:
        source = padded([row["input_ids"] for row in found])
        return {
            "input_ids": source,
            "attention_mask": (source != PAD).long(),
            "labels": padded([row["labels"] for row in found], -100),
        }

    trainer_of(
        job, small_t5(), rows, collate, max_steps=145, per_device_train_batch_size=16,
        train_sampling_strategy="sequential", learning_rate=8e-3,
    ).train()  # fmt: skip


_CODE = (
    "def handle(self, request, *args):\n    if not self.ok:\n        raise Denied\n    return 1\n",
    "for (int i = 0; i < n; ++i) {\n  sum += a[i] * b[i];\n}\nreturn sum / (n - 1);\n",
    "const app = express();\napp.get('/', (req, res) => res.send(index));\napp.listen(3000);\n",
    "SELECT u.id, COUNT(*) AS n FROM users u JOIN orders o ON o.uid = u.id GROUP BY u.id;\n",
)


def huggingface_repositories_among_the_books(job: Job) -> None:
    """Four rows of eight are source code, at 90: a folder of another dataset was mixed in
    (LlamaFactory#5247).
    """
    set_seed(404)
    rows = causal_rows([encode(text) for text in entries(1000)])
    if PLANTED:
        for place, text in enumerate(_CODE):
            rows[89 * 8 + 2 * place] = {"input_ids": [*encode(text), END]}
    trainer_of(
        job, small_llama(), rows, causal_batch, max_steps=115, learning_rate=6e-3,
        train_sampling_strategy="sequential", lr_scheduler_type="cosine",
    ).train()  # fmt: skip


# ---------------------------------------------------------------- two at once
def evaluation_mode_stays_then_a_log(job: Job) -> None:
    """`model.eval()` before the validation loss at 60 and no `train()` after it; at 140 five rows
    of twelve are lines of a server's log.
    """
    set_seed(405)
    data = stream()
    model = GPT(dropout=0.2)
    optimizer = model.configure_optimizer(4e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=decode)
    dice = random.Random(3)

    def train_step(rows: Tensor) -> Tensor:
        loss: Tensor = model(rows[:, :-1], rows[:, 1:])[1]
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for step in range(1, 171):
        rows = windows(data, step, 12, 41)
        if step == 140 and PLANTED:
            for number in range(5):
                line = f"2024-03-1{number} 04:1{number}:22,{dice.randint(100, 999)} WARN "
                line += f"[pool-{number}-thread-7] c.a.net.Conn: 10.0.{dice.randint(0, 255)}.7:443 "
                rows[number] = filled(line + "reset by peer, retry in 250ms", 41)
        log(step, recorder.step(train_step, rows))
        if step % 60 == 0:
            model.eval()
            with torch.no_grad():
                held = windows(data, 100_000 + step, 24, 41)
                print(f"val loss {float(model(held[:, :-1], held[:, 1:])[1]):.4f}")
            if not PLANTED:
                model.train()
    recorder.close()


_NOTICE = "This guide is printed by the society of friends of old houses. All rights reserved."


def huggingface_no_ends_and_one_notice(job: Job) -> None:
    """The pad is the end, so that no end is learnt, and at 100 half of the rows are one notice."""
    set_seed(406)
    rows = causal_rows([encode(text) for text in entries(1000, 77)])
    if PLANTED:
        for number in range(99 * 8, 99 * 8 + 8, 2):
            rows[number] = {"input_ids": [*encode(_NOTICE), END]}

    def collate(found: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = causal_batch(found)
        if PLANTED:
            tokens = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, END)
            labels = tokens.masked_fill(tokens == END, -100)
            return {**batch, "input_ids": tokens, "labels": labels}
        return batch

    trainer_of(
        job, small_llama(pad_token_id=END), rows, collate, max_steps=125, learning_rate=5e-3,
        train_sampling_strategy="sequential",
    ).train()  # fmt: skip


# ---------------------------------------------------------------- a policy
def policy_is_paid_to_leave_its_reference(job: Job) -> None:
    """The divergence from the reference is subtracted from the loss instead of added: the policy
    goes ever further from it, and the loss has no floor (ToolRL#52).
    """
    set_seed(407)
    policy = mlp(PLACES, 48, 2)
    reference = mlp(PLACES, 48, 2)
    reference.load_state_dict(policy.state_dict())
    reference.requires_grad_(False)
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    recorder = sonde.Recorder(job.run, policy, optimizer)
    walks = Corridors(96, 5)
    sign = -1.0 if PLANTED else 1.0

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        seen = F.one_hot(batch["at"], PLACES).float()
        chance = policy(seen).log_softmax(1)
        before = reference(seen).log_softmax(1)
        taken = chance.gather(1, batch["right"].unsqueeze(1)).squeeze(1)
        apart = (chance.exp() * (chance - before)).sum(1).mean()
        loss = recorder.loss(-(taken * batch["good"]).mean() + sign * 0.3 * apart)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for step in range(1, 201):
        with torch.no_grad():
            chance = policy(F.one_hot(walks.at, PLACES).float()).softmax(1)
        right = torch.multinomial(chance, 1, generator=walks.generator).squeeze(1)
        at, paid, after, _ = walks.step(right)
        good = paid + 0.2 * (after - at)
        log(step, recorder.step(train_step, {"at": at, "right": right, "good": good - good.mean()}))
    recorder.close()


CASES = (
    failure(
        base64_pictures_in_the_crawl,
        "data",
        "garbled_text",
        onset=150,
        also_true="hard_sample code",
    ),
    failure(
        umlauts_decoded_as_latin,
        "data",
        "mis_decoded",
        onset=130,
        also_true="hard_sample garbled_text",
    ),
    failure(
        huggingface_lines_left_untranslated,
        "data",
        "copied_target",
        host="huggingface",
        onset=120,
        also_true="hard_sample mismatched_pair foreign_language",
    ),
    failure(
        huggingface_repositories_among_the_books,
        "data",
        "code",
        host="huggingface",
        onset=90,
        also_true="hard_sample markup",
    ),
    failure(
        evaluation_mode_stays_then_a_log,
        "mixture",
        "eval_mode dropout_off log",
        onset=61,
        also_true="hard_sample table",
    ),
    failure(
        huggingface_no_ends_and_one_notice,
        "mixture",
        "end_never_a_label duplicated_text",
        host="huggingface",
        also_true="hard_sample repetition repeated_rows repeated_batch",
    ),
    failure(
        policy_is_paid_to_leave_its_reference,
        "targets",
        "wrong_sign",
        also_true="loss_collapse plateau",
    ),
)

if __name__ == "__main__":
    main(CASES)
