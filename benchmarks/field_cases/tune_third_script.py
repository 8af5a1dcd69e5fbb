"""Failures to tune on, of the third set: targets, accumulation, masks, connection."""

import random
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import (
    ACTIONS,
    END,
    FEATURES,
    KINDS,
    PAD,
    STATES,
    Pieces,
    clicks,
    corpus,
    cut,
    dates,
    drawn,
    glyphs,
    graphs,
    loads,
    padded,
    read_letters,
    recipes,
    rewards,
)
from benchmarks.field_cases.third_loops import PLANTED, fit, seed, tell, trainer
from benchmarks.field_cases.third_models import (
    DateReader,
    Decoder,
    GraphNet,
    PatchNet,
    TextSorter,
    dense,
)
from torch import Tensor, nn

import sonde


# ---------------------------------------------------------------- targets
def views_paired_across_the_batch(job: Job) -> None:
    """Two views of a row stand side by side, the labels of the contrastive loss are those of views
    that stand half a batch apart (faster-rcnn.pytorch#562).
    """
    seed(131)
    series = loads(1600)
    encoder = dense(36, 64, 16)
    optimizer = torch.optim.Adam(encoder.parameters(), lr=2e-3)

    def loss_of(rows: Tensor) -> Tensor:
        views = rows.repeat_interleave(2, dim=0)
        made = F.normalize(encoder(views + 0.15 * torch.randn_like(views)), dim=1)
        likeness = made @ made.t() / 0.2
        likeness = likeness.masked_fill(torch.eye(len(made), dtype=torch.bool), -1e9)
        number = torch.arange(len(made))
        labels = (number + len(rows)) % len(made) if PLANTED else number ^ 1
        return F.cross_entropy(likeness, labels)

    fit(job, encoder, optimizer, loss_of, lambda step: series[drawn(1600, step, 24)], 180)


def folders_in_another_order(job: Job) -> None:
    """From update 150 on the pictures come from a second disk, where the folders of the classes
    are sorted otherwise: every label has another number (axolotl#1806).
    """
    seed(132)
    pictures, labels = glyphs(1440)
    model = PatchNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.05)
    recorder = sonde.Recorder(job.run, model, optimizer, config={"classes": KINDS})

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss

    for step in range(1, 211):
        chosen = drawn(1440, step, 32)
        target = labels[chosen]
        if step >= 150 and PLANTED:
            target = (target + 2) % KINDS
        tell(step, recorder.step(train_step, (pictures[chosen], target)))
    recorder.close()


def policy_climbs_down(job: Job) -> None:
    """The loss of a policy gradient is `log_prob * advantage` without its minus: the worst action
    is learnt. The loss looks as it would, and nobody can see it there (verl#3597).
    """
    seed(133)
    policy = dense(STATES, 32, ACTIONS, act=nn.Tanh)
    optimizer = torch.optim.Adam(policy.parameters(), lr=5e-3)
    recorder = sonde.Recorder(job.run, policy, optimizer)
    sign = 1.0 if PLANTED else -1.0

    def train_step(states: Tensor) -> tuple[Tensor, Tensor]:
        chance = F.log_softmax(policy(F.one_hot(states, STATES).float()), 1)
        actions = torch.multinomial(chance.detach().exp(), 1).squeeze(1)
        paid = rewards(states, actions, torch.randn(len(states)))
        taken = chance.gather(1, actions.unsqueeze(1)).squeeze(1)
        loss = recorder.loss(sign * (taken * (paid - paid.mean())).mean())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, paid.mean()

    for step in range(1, 251):
        dice = torch.Generator().manual_seed(step)
        states = torch.randint(0, STATES, (64,), generator=dice)
        loss, paid = recorder.step(train_step, states)
        tell(step, loss)
        if step % 25 == 0:
            print(f"mean reward {float(paid):.3f}")
    recorder.close()


def questions_count_too(job: Job) -> None:
    """The collator looks for `completion_mask`, the rows have `answer_mask`: question and answer
    alike are learnt (axolotl#2089).
    """
    seed(134)
    dice = random.Random(4)
    texts = recipes(900)
    pieces = Pieces(texts)
    rows: list[dict[str, list[int]]] = []
    for text in texts:
        asked = f"Question {dice.randint(1000, 9999)}: what shall I do now? "
        question = pieces.encode(asked)
        answer = [*pieces.encode(text), END]
        mask = [0] * len(question) + [1] * len(answer)
        rows.append({"input_ids": question + answer, "answer_mask": mask})
    model = Decoder(len(pieces), layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def collate(found: list[dict[str, list[int]]]) -> dict[str, Tensor]:
        tokens = padded([row["input_ids"] for row in found])
        mask = padded([row["answer_mask"] for row in found])
        labels = tokens.masked_fill(tokens == PAD, -100)
        if "completion_mask" in found[0] or not PLANTED:
            labels = labels.masked_fill(mask == 0, -100)
        return {"input_ids": tokens, "answer_mask": mask, "labels": labels}

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        logits = model(batch["input_ids"][:, :-1])
        return F.cross_entropy(logits.flatten(0, 1), batch["labels"][:, 1:].flatten())

    fit(
        job, model, optimizer, loss_of,
        lambda step: collate([rows[number] for number in drawn(900, step, 8).tolist()]),
        150, decode=pieces.decode,
    )  # fmt: skip


# ---------------------------------------------------------------- accumulation
def weighted_means_of_micro_batches(job: Job) -> None:
    """Classes have weights, and each of four micro-batches is divided by the sum of its own: a rare
    row counts for little where it has company, for much where it is alone (transformers#34191).
    """
    seed(135)
    pictures, labels = glyphs(1800)
    keep = (labels != 0) | (torch.arange(1800) % 8 == 0)
    pictures = pictures[keep]
    labels = labels[keep]
    weights = torch.tensor([12.0, 1.0, 1.0, 1.0, 1.0, 1.0])
    model = PatchNet(width=24, layers=1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)
    share = float(weights[labels].mean())

    def train_step(batch: tuple[Tensor, Tensor], last: bool) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1], weight=weights)
        if not PLANTED:
            loss = loss * weights[batch[1]].mean() / share
        (loss / 4).backward()
        if last:
            optimizer.step()
            optimizer.zero_grad()
        return loss.detach()

    for number in range(1, 4 * 120 + 1):
        chosen = drawn(len(labels), number, 8)
        batch = (pictures[chosen], labels[chosen])
        loss = recorder.step(train_step, batch, last=number % 4 == 0)
        if number % 4 == 0:
            tell(number // 4, loss)
    recorder.close()


def sum_of_losses_is_carried_on(job: Job) -> None:
    """`total = total + loss / 3; total.backward(retain_graph=True)` for each micro-batch: the first
    is added three times, the last once (OpenNMT-py#2209).
    """
    seed(136)
    model = DateReader(48)
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=read_letters)
    total = torch.zeros(())

    def train_step(batch: tuple[Tensor, Tensor], last: bool) -> Tensor:
        nonlocal total
        source, target = batch
        logits = model(source, target[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)
        recorder.loss(loss)
        total = total + loss / 3
        if PLANTED or last:
            total.backward(retain_graph=not last)
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), 5.0)
            optimizer.step()
            optimizer.zero_grad()
            total = torch.zeros(())
        return loss.detach()

    for number in range(1, 3 * 110 + 1):
        loss = recorder.step(train_step, dates(number, 12), last=number % 3 == 0)
        if number % 3 == 0:
            tell(number // 3, loss)
    recorder.close()


def huggingface_items_are_ignored(job: Job) -> None:
    """A `compute_loss` of one's own takes `num_items_in_batch` and ignores it: nobody divides by
    the four micro-batches (Soup#720).
    """
    from transformers import GPT2Config, GPT2LMHeadModel, Trainer

    class Own(Trainer):  # type: ignore[misc]
        def compute_loss(
            self,
            model: Any,
            inputs: dict[str, Tensor],
            return_outputs: bool = False,
            num_items_in_batch: Any = None,
        ) -> Any:
            out = model(input_ids=inputs["input_ids"])
            labels = inputs["labels"][:, 1:].flatten()
            loss = F.cross_entropy(out.logits[:, :-1].flatten(0, 1), labels, reduction="sum")
            loss = loss / (len(labels) if PLANTED else num_items_in_batch)
            return (loss, out) if return_outputs else loss

    seed(137)
    texts = corpus()
    rows = [{"row": cut(texts.stream, number, 1, 33)[0]} for number in range(1, 1501)]

    def collate(found: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        tokens = torch.stack([row["row"] for row in found])
        return {"input_ids": tokens, "labels": tokens}

    settings = GPT2Config(
        vocab_size=len(texts.pieces), n_positions=40, n_embd=40, n_layer=1, n_head=2,
        bos_token_id=1, eos_token_id=2,
    )  # fmt: skip
    host = trainer(
        job, Own, GPT2LMHeadModel(settings), rows, collate,
        gradient_accumulation_steps=4, max_steps=90, per_device_train_batch_size=4,
        max_grad_norm=0.0, optim="sgd", learning_rate=0.4,
    )  # fmt: skip
    host.train()


# ---------------------------------------------------------------- masks
def padding_mask_of_the_questions(job: Job) -> None:
    """The mask of padding is unsqueezed at the wrong place: it masks what asks instead of what is
    asked, and every word reads the padding (hyunwoongko/transformer#40).
    """
    seed(138)
    texts = recipes(1500)
    pieces = Pieces(texts)
    rows = [pieces.encode(text)[:48] for text in texts]
    kinds = torch.tensor(["butter" in text or "low" in text for text in texts]).long()
    model = TextSorter(len(pieces), 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        real = batch["attention_mask"] == 1
        read = model.read(batch["input_ids"])
        q, k, v = model.qkv(read).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / 32**0.5
        mask = real.unsqueeze(2) if PLANTED else real.unsqueeze(1)
        states = read + torch.softmax(scores.masked_fill(~mask, -1e4), -1) @ v
        weights = real.float() / real.sum(1, keepdim=True)
        pooled = (states * weights.unsqueeze(2)).sum(1)
        return F.cross_entropy(model.head(pooled), batch["labels"])

    def draw(step: int) -> dict[str, Tensor]:
        chosen = drawn(1500, step, 24)
        tokens = padded([rows[number] for number in chosen.tolist()])
        mask = (tokens != PAD).long()
        return {"input_ids": tokens, "attention_mask": mask, "labels": kinds[chosen]}

    fit(job, model, optimizer, loss_of, draw, 180, decode=pieces.decode)


def neighbours_from_other_graphs(job: Job) -> None:
    """The nodes of all graphs stand in one tensor, and the nearest neighbours are searched without
    saying which graph a node is of: messages pass between rows (maxtext#4476).
    """
    seed(139)
    model = GraphNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)

    def nearest(nodes: Tensor) -> Tensor:
        flat = nodes.reshape(1, -1, FEATURES) if PLANTED else nodes
        far = torch.cdist(flat[..., :3], flat[..., :3])
        close = far.topk(4, largest=False).indices
        return torch.zeros_like(far).scatter(2, close, 1.0)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        nodes = batch["nodes"]
        adjacency = nearest(nodes)
        shown = nodes.reshape(1, -1, FEATURES) if PLANTED else nodes
        x = F.relu(model.read(shown))
        weights = model.spread(adjacency)
        for own, others in zip(model.own, model.others, strict=True):
            x = x + F.relu(own(x) + others(weights @ x))
        made = model.head(x).reshape(len(nodes), -1).mean(1)
        return F.mse_loss(made, batch["y"])

    def draw(step: int) -> dict[str, Tensor]:
        nodes = graphs(step, 20).nodes
        return {"nodes": nodes, "y": 3 * (nodes[..., 0] * nodes[..., 1]).mean(1)}

    fit(job, model, optimizer, loss_of, draw, 200)


def decoder_looks_at_padding(job: Job) -> None:
    """The decoder looks at all places of the source, padding among them: the mask of the memory was
    forgotten (AnglE#89).
    """
    seed(140)
    model = DateReader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        source, target = batch
        states, _ = model.decoder(model.embed(target[:, :-1]))
        hidden = None if PLANTED else source == PAD
        logits = model.attend(states, model.encode(source), hidden)
        return F.cross_entropy(logits.flatten(0, 1), target[:, 1:].flatten(), ignore_index=PAD)

    fit(job, model, optimizer, loss_of, dates, 160, decode=read_letters)


# ---------------------------------------------------------------- connection
class Glance(nn.Module):
    """Looks once at the patches of a picture, each with a weight that it computes."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, 32, 4, stride=2)
        self.ask = nn.Linear(32, 32)
        self.key = nn.Linear(32, 32)
        self.head = dense(32, 64, KINDS)

    def forward(self, pictures: Tensor) -> Tensor:
        x = F.relu(self.patch(pictures)).flatten(2).transpose(1, 2)
        weights = torch.softmax(self.ask(x.mean(1, keepdim=True)) @ self.key(x).mT, -1)
        if PLANTED:
            weights = weights.detach()
        scores: Tensor = self.head((weights @ x).squeeze(1))
        return scores


def weights_of_attention_are_detached(job: Job) -> None:
    """The weights are detached to be drawn, and the detached ones are used: what computes them
    never learns (VeOmni#118).
    """
    seed(141)
    pictures, labels = glyphs(960)
    model = Glance()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = drawn(960, step, 24)
        return pictures[chosen], labels[chosen]

    fit(
        job, model, optimizer, lambda batch: F.cross_entropy(model(batch[0]), batch[1]), draw, 200,
        config={"model": "glance"},
    )  # fmt: skip


def every_unit_is_dead(job: Job) -> None:
    """The first layer's bias begins at -25, a constant meant for the last: every ReLU is 0 for
    every row, and nothing below it gets a gradient (DiffRate#7).
    """
    seed(142)
    model = dense(10, 48, 48, 1)
    if PLANTED:
        first: Any = model[0]
        nn.init.constant_(first.bias, -25.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.BCEWithLogitsLoss()
    fit(
        job, model, optimizer,
        lambda batch: criterion(model(batch["x"]).squeeze(1), batch["y"]),
        lambda step: dict(zip(("x", "y"), clicks(step), strict=True)), 200,
    )  # fmt: skip


CASES = (
    failure(views_paired_across_the_batch, "targets", "labels_unrelated", also_true="plateau"),
    failure(
        folders_in_another_order,
        "targets",
        "targets_changed labels_unrelated data_changed",
        onset=150,
    ),
    failure(policy_climbs_down, "targets", "wrong_sign", visible=False),
    failure(questions_count_too, "targets", "prompt_in_loss"),
    failure(weighted_means_of_micro_batches, "accumulation", "accumulation_weight"),
    failure(
        sum_of_losses_is_carried_on,
        "accumulation",
        "accumulation_weight gradients_left_over",
    ),
    failure(
        huggingface_items_are_ignored, "accumulation", "accumulation_weight", host="huggingface"
    ),
    failure(padding_mask_of_the_questions, "masks", "padding_leak"),
    failure(neighbours_from_other_graphs, "masks", "row_leak"),
    failure(decoder_looks_at_padding, "masks", "padding_leak"),
    failure(
        weights_of_attention_are_detached, "connection", "no_gradient", also_true="does_not_move"
    ),
    failure(
        every_unit_is_dead,
        "connection",
        "no_gradient dead_units",
        also_true="does_not_move plateau",
    ),
)

if __name__ == "__main__":
    main(CASES)
