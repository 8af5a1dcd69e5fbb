"""Sealed failures of the third set for the check: masks and connection."""

import torch
import torch.nn.functional as F
from benchmarks.field_cases.declaration import Job, failure
from benchmarks.field_cases.script import main
from benchmarks.field_cases.third_data import (
    END,
    KINDS,
    PAD,
    Pieces,
    corpus,
    cut,
    drawn,
    glyphs,
    loads,
    padded,
    points,
    ratings,
    recipes,
)
from benchmarks.field_cases.third_loops import PLANTED, fit, seed, tell
from benchmarks.field_cases.third_models import (
    Factors,
    Forecaster,
    GlyphNet,
    PatchNet,
    dense,
)
from torch import Tensor, nn

import sonde


# ---------------------------------------------------------------- masks
class Reader(nn.Module):
    """One layer of attention by hand; the mask is added to the scores."""

    def __init__(self, vocabulary: int, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(48, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, vocabulary))

    def forward(self, tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        x = self.embed(tokens) + self.place(torch.arange(length))
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = q @ k.transpose(1, 2) / x.shape[-1] ** 0.5
        mask = torch.ones(length, length).tril()
        if not PLANTED:
            mask = mask.log()
        logits: Tensor = self.out(x + torch.softmax(scores + mask, -1) @ v)
        return logits


def ones_are_added_as_a_mask(job: Job) -> None:
    """The mask of ones and zeros is added to the scores, where zeros and minus infinity were meant:
    every position sees what follows (xformers#103).
    """
    seed(421)
    texts = corpus()
    model = Reader(len(texts.pieces))
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)

    def loss_of(rows: Tensor) -> Tensor:
        return F.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    draw = lambda step: cut(texts.stream, step, 12, 33)  # noqa: E731
    fit(job, model, optimizer, loss_of, draw, 170, decode=texts.pieces.decode)


def state_runs_through_documents(job: Job) -> None:
    """Several recipes stand in a row, with their numbers, and the state of the cell is not reset
    where a new one begins (LlamaFactory#10452).
    """
    seed(422)
    texts = corpus()
    num = len(texts.pieces)
    table = nn.Embedding(num, 40)
    cell = nn.GRUCell(40, 40)
    head = nn.Linear(40, num)
    model = nn.ModuleDict({"table": table, "cell": cell, "head": head})
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        read = table(batch["input_ids"])
        documents = batch["document_ids"]
        state = torch.zeros(len(read), 40)
        states: list[Tensor] = []
        for place in range(read.shape[1] - 1):
            if place > 0 and not PLANTED:
                goes_on = documents[:, place] == documents[:, place - 1]
                state = state * goes_on.unsqueeze(1)
            state = cell(read[:, place], state)
            states.append(state)
        labels = batch["input_ids"][:, 1:].clone()
        labels[documents[:, 1:] != documents[:, :-1]] = -100
        return F.cross_entropy(head(torch.stack(states, 1)).transpose(1, 2), labels)

    def draw(step: int) -> dict[str, Tensor]:
        rows = cut(texts.stream, step, 12, 41)
        ended = (rows == END).long().cumsum(1)
        return {"input_ids": rows, "document_ids": ended - (rows == END).long()}

    fit(job, model, optimizer, loss_of, draw, 150, decode=texts.pieces.decode)


class Shifted(nn.Module):
    """Each token is blended with the one before it, as in RWKV, then read by convolutions."""

    def __init__(self, vocabulary: int, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.blend = nn.Parameter(torch.full((width,), 0.5))
        self.cell = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        other = torch.roll(x, -1, dims=1) if PLANTED else F.pad(x, (0, 0, 1, 0))[:, :-1]
        x = x + self.blend * (other - x)
        logits: Tensor = self.head(self.cell(x)[0])
        return logits


def tokens_are_rolled_the_wrong_way(job: Job) -> None:
    """`torch.roll(x, -1)` where `1` was meant: each token is blended with the next, which is to be
    predicted (flash-attention#2381).
    """
    seed(423)
    texts = corpus()
    model = Shifted(len(texts.pieces))
    optimizer = torch.optim.RMSprop(model.parameters(), lr=2e-3)
    recorder = sonde.Recorder(job.run, model, optimizer, decode=texts.pieces.decode)

    def train_step(rows: Tensor) -> Tensor:
        loss = F.cross_entropy(model(rows[:, :-1]).transpose(1, 2), rows[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss

    for step in range(1, 171):
        tell(step, recorder.step(train_step, cut(texts.stream, step, 12, 33)))
    recorder.close()


def centred_over_the_batch(job: Job) -> None:
    """The mean is taken over dimension 0 instead of 1, so that patches are centred over the
    pictures of the batch and not over their own (pytorch#25100).
    """
    seed(424)
    pictures, labels = glyphs(960)
    model = PatchNet()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        x = model.patch(batch[0]).flatten(2).transpose(1, 2)
        x = x - x.mean(0 if PLANTED else 1, keepdim=True)
        x = torch.cat((model.token.expand(len(x), -1, -1), x), 1) + model.place
        for layer in model.layers:
            x = layer(x)
        return F.cross_entropy(model.head(model.norm(x)[:, 0]), batch[1])

    def draw(step: int) -> tuple[Tensor, Tensor]:
        chosen = drawn(960, step, 24)
        return pictures[chosen], labels[chosen]

    fit(job, model, optimizer, loss_of, draw, 180)


def last_state_of_padded_rows(job: Job) -> None:
    """A text is summed up by the state of the last place, which is padding in most rows
    (AnglE#89).
    """
    seed(425)
    texts = recipes(1500)
    pieces = Pieces(texts)
    rows = [pieces.encode(text)[:44] for text in texts]
    ends = ("minutes.", "overnight.", "skin.", "care.")
    kinds = torch.tensor([text.endswith(ends) for text in texts]).long()
    table = nn.Embedding(len(pieces), 40)
    cell = nn.GRU(40, 48, batch_first=True)
    head = nn.Linear(48, 2)
    model = nn.ModuleDict({"table": table, "cell": cell, "head": head})
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)

    def loss_of(batch: dict[str, Tensor]) -> Tensor:
        states, _ = cell(table(batch["input_ids"]))
        last = batch["attention_mask"].sum(1) - 1
        if PLANTED:
            last = torch.full_like(last, states.shape[1] - 1)
        return F.cross_entropy(head(states[torch.arange(len(last)), last]), batch["labels"])

    def draw(step: int) -> dict[str, Tensor]:
        chosen = drawn(1500, step, 24)
        tokens = padded([rows[number] for number in chosen.tolist()])
        mask = (tokens != PAD).long()
        return {"input_ids": tokens, "attention_mask": mask, "labels": kinds[chosen]}

    fit(job, model, optimizer, loss_of, draw, 180, decode=pieces.decode)


def normed_over_the_hours_to_come(job: Job) -> None:
    """Each series is standardised over all its hours inside the model, so that the forecast of an
    early hour knows the level of the later ones (LlamaFactory#7318).
    """
    seed(426)
    series = loads(2000)
    model = Forecaster(width=20)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

    def loss_of(rows: Tensor) -> Tensor:
        shown = rows[:, :-1]
        known = shown if PLANTED else shown[:, :6]
        level = known.mean(1, keepdim=True)
        spread = known.std(1, keepdim=True) + 0.1
        made = model((shown - level) / spread).squeeze(2) * spread + level
        return F.mse_loss(made[:, 6:], rows[:, 7:])

    fit(job, model, optimizer, loss_of, lambda step: series[drawn(2000, step, 32)], 220)


# ---------------------------------------------------------------- connection
def critic_is_never_thawed(job: Job) -> None:
    """`requires_grad_(False)` for the critic while the maker learns, and nobody sets it back: from
    the second step on the critic stays as it is (VeOmni#118).
    """
    seed(427)
    maker = dense(4, 48, 2)
    critic = dense(2, 48, 48, 1)
    model = nn.ModuleDict({"maker": maker, "critic": critic})
    of_maker = torch.optim.Adam(maker.parameters(), lr=1e-3, betas=(0.5, 0.99))
    of_critic = torch.optim.Adam(critic.parameters(), lr=2e-3, betas=(0.5, 0.99))
    recorder = sonde.Recorder(job.run, model, of_maker, critic_optimizer=of_critic)

    def train_step(real: Tensor) -> Tensor:
        if not PLANTED:
            critic.requires_grad_(True)
        made = maker(torch.randn(len(real), 4))
        of_critic.zero_grad()
        doubt = F.relu(1 - critic(real)).mean() + F.relu(1 + critic(made)).mean()
        doubt.backward(retain_graph=True)
        of_critic.step()
        critic.requires_grad_(False)
        of_maker.zero_grad()
        loss = recorder.loss(-critic(maker(torch.randn(len(real), 4))).mean())
        loss.backward()
        of_maker.step()
        return loss.detach()

    for step in range(1, 201):
        tell(step, recorder.step(train_step, points(step)))
    recorder.close()


def features_of_the_first_epoch(job: Job) -> None:
    """Features are cached by the number of their picture to save time, and the cache is never
    emptied: after the first epoch what makes them learns no more (DiffRate#7).
    """
    seed(428)
    pictures, labels = glyphs(960)
    body = GlyphNet(32)
    head = nn.Linear(32, KINDS)
    model = nn.ModuleDict({"body": body, "head": head})
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-4)
    recorder = sonde.Recorder(job.run, model, optimizer, sample_ids=lambda batch: batch["ids"])
    cache: dict[int, Tensor] = {}

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        numbers = batch["ids"].tolist()
        if PLANTED and all(number in cache for number in numbers):
            found = torch.stack([cache[number] for number in numbers])
        else:
            found = body(batch["pictures"])
            cache.update(zip(numbers, found.detach(), strict=True))
        loss = F.cross_entropy(head(F.relu(found)), batch["labels"])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for step in range(1, 181):
        ids = drawn(960, step, 24)
        batch = {"ids": ids, "pictures": pictures[ids], "labels": labels[ids]}
        tell(step, recorder.step(train_step, batch))
    recorder.close()


class LowRankHead(nn.Module):
    """A frozen layer and two small matrices beside it."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, base.in_features) * 0.1)
        self.up = nn.Parameter(torch.zeros(base.out_features, rank))
        if PLANTED:
            nn.init.zeros_(self.down)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + x @ self.down.t() @ self.up.t()
        return out


def both_small_matrices_are_zero(job: Job) -> None:
    """Both matrices of an adapter begin at zero: neither ever gets a gradient (LLaVA#1301)."""
    seed(429)
    pictures, labels = glyphs(960)
    model = GlyphNet()
    first = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for step in range(1, 81):
        chosen = drawn(960, step, 32)
        F.cross_entropy(model(pictures[chosen]), labels[chosen]).backward()
        first.step()
        first.zero_grad()
    model.requires_grad_(False)
    model.head = LowRankHead(nn.Linear(model.head.in_features, KINDS))  # type: ignore[assignment]
    found = [value for value in model.parameters() if value.requires_grad]
    optimizer = torch.optim.AdamW(found, lr=5e-3, weight_decay=0.0)
    turned = (labels + 2) % KINDS
    recorder = sonde.Recorder(job.run, model, optimizer, config={"rank": 4})

    def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:
        loss = F.cross_entropy(model(batch[0]), batch[1])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    for step in range(1, 161):
        chosen = drawn(960, step, 24)
        tell(step, recorder.step(train_step, (pictures[chosen], turned[chosen])))
    recorder.close()


def optimizer_of_the_first_fold(job: Job) -> None:
    """Cross-validation builds a new model for each fold and keeps the optimizer of the first: the
    model that is trained never moves (VeOmni#118).
    """
    seed(430)
    series = loads(1500)
    target = series[:, 30:].mean(1)

    def build() -> nn.Sequential:
        return dense(24, 48, 1, act=nn.GELU)

    model = build()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model = build()
    if not PLANTED:
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    recorder = sonde.Recorder(job.run, model, optimizer)

    def train_step(batch: dict[str, Tensor]) -> Tensor:
        loss = F.mse_loss(model(batch["x"]).squeeze(1), batch["y"])
        loss.backward()
        optimizer.step()
        model.zero_grad()
        return loss.detach()

    for step in range(1, 161):
        chosen = drawn(1500, step, 32)
        batch = {"x": series[chosen][:, :24], "y": target[chosen]}
        tell(step, recorder.step(train_step, batch))
    recorder.close()


def tables_in_neither_group(job: Job) -> None:
    """Parameters are put in groups by name: those with `embedding`, and those with `bias`. The
    tables are called `users` and `items`, and are in neither (OneTrainer threads).
    """
    seed(431)
    users, items, stars = ratings()
    model = Factors()
    named = dict(model.named_parameters())
    groups = [[value for name, value in named.items() if "bias" in name]]
    words = ("embedding",) if PLANTED else ("users", "items")
    tables = [value for name, value in named.items() if name.startswith(words)]
    if tables:
        groups.append(tables)
    optimizer = torch.optim.Adam([{"params": found} for found in groups], lr=2e-2)
    fit(
        job, model, optimizer,
        lambda rows: F.mse_loss(model(users[rows], items[rows]), stars[rows]),
        lambda step: drawn(4000, step, 64), 220,
    )  # fmt: skip


CASES = (
    failure(ones_are_added_as_a_mask, "masks", "future_leak", also_true="loss_collapse"),
    failure(state_runs_through_documents, "masks", "document_leak"),
    failure(tokens_are_rolled_the_wrong_way, "masks", "future_leak", also_true="loss_collapse"),
    failure(centred_over_the_batch, "masks", "row_leak"),
    failure(last_state_of_padded_rows, "masks", "padding_leak"),
    failure(normed_over_the_hours_to_come, "masks", "future_leak"),
    failure(critic_is_never_thawed, "connection", "no_gradient does_not_move", onset=2),
    failure(
        features_of_the_first_epoch,
        "connection",
        "no_gradient",
        onset=41,
        also_true="does_not_move",
    ),
    failure(
        both_small_matrices_are_zero,
        "connection",
        "no_gradient does_not_move bad_init",
        also_true="plateau",
    ),
    failure(
        optimizer_of_the_first_fold,
        "connection",
        "not_in_optimizer does_not_move",
        also_true="plateau",
    ),
    failure(
        tables_in_neither_group, "connection", "not_in_optimizer", also_true="does_not_move plateau"
    ),
)

if __name__ == "__main__":
    main(CASES)
