"""A small language model in a loop of one's own, for tests of `sonde check`: python
language_model.py RUN [--bug NAME]. Without a bug it is right.
"""

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sonde

BUGS = (
    "none",
    "unshifted",
    "shifted_twice",
    "shifted_by_five",
    "shifted_back",
    "labels_of_other_rows",
    "sees_future",
    "sees_one_ahead",
    "batch_first",
    "pads_count",
    "all_masked",
    "double_softmax",
    "no_zero_grad",
    "eval_mode",
    "detached",
    "not_in_optimizer",
    "other_model",
    "plain_list",
    "untied",
    "rate_zero",
    "ascends",
    "undivided",
    "divided_twice",
    "same_batch",
    "rows_twice",
    "sorted_by_length",
    "bfloat16_weights",
    "packed_leak",
    "ignores_positions",
    "dropout_in_eval",
    "bad_init",
)
parser = argparse.ArgumentParser()
parser.add_argument("run", type=Path)
parser.add_argument("--bug", choices=BUGS, default="none")
parser.add_argument("--steps", type=int, default=20)
args = parser.parse_args()
bug: str = args.bug
torch.manual_seed(1)
torch.set_num_threads(1)

VOCABULARY = 61
LENGTH = 24
ROWS = 8
PAD = 0
NUM_MICRO = 4 if bug in ("undivided", "divided_twice") else 1


class Attention(nn.Module):
    """Attention over earlier positions of the same document."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, documents: Tensor) -> Tensor:
        """Mix what may be seen."""
        query, key, value = self.qkv(x).chunk(3, -1)
        length = x.shape[1]
        diagonal = 1 if bug == "sees_one_ahead" else 0
        seen = torch.ones(length, length, dtype=torch.bool).tril(diagonal)
        if bug == "sees_future":
            seen = torch.ones(length, length, dtype=torch.bool)
        if bug != "packed_leak":
            seen = seen & (documents.unsqueeze(1) == documents.unsqueeze(2))
        mixed: Tensor = self.out(F.scaled_dot_product_attention(query, key, value, attn_mask=seen))
        return mixed


class Block(nn.Module):
    """Attention and a small network."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.attention = Attention(width)
        self.mlp = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor, documents: Tensor) -> Tensor:
        """One layer."""
        x = x + self.dropout(self.attention(self.norm(x), documents))
        if bug == "dropout_in_eval":
            x = F.dropout(x, 0.1)
        changed: Tensor = self.mlp(x)
        return x + changed


class Model(nn.Module):
    """Predicts the next token."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Embedding(LENGTH, width)
        blocks = [Block(width), Block(width)]
        self.blocks = blocks if bug == "plain_list" else nn.ModuleList(blocks)
        self.mixer = nn.MultiheadAttention(width, 2, batch_first=True)
        if bug == "batch_first":
            self.mixer = nn.MultiheadAttention(width, 2)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        nn.init.normal_(self.embedding.weight, std=1.0 if bug == "bad_init" else 0.02)
        if bug == "untied":
            self.head.weight = nn.Parameter(self.embedding.weight.detach().clone())
        else:
            self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        """Return the scores of the next tokens."""
        documents = (positions == 0).long().cumsum(1)
        if bug == "ignores_positions":
            positions = torch.arange(LENGTH)
        x = self.embedding(tokens) + self.positions(positions)
        if bug == "detached":
            x = x.detach()
        for number, block in enumerate(self.blocks):
            x = block(x, documents)
            if bug == "detached" and number == 0:
                x = x.detach()
        if bug == "batch_first":
            x = x + self.mixer(x, x, x, need_weights=False)[0]
        else:
            x = x + 0.0 * self.mixer.in_proj_weight.sum() + 0.0 * self.mixer.in_proj_bias.sum()
            x = x + 0.0 * self.mixer.out_proj.weight.sum() + 0.0 * self.mixer.out_proj.bias.sum()
        if bug == "bad_init":
            x = x * 8
        scores: Tensor = self.head(x)
        return scores


def batch_of(step: int) -> dict[str, Tensor]:
    """Return rows of different lengths, padded; each holds two documents."""
    generator = torch.Generator().manual_seed(0 if bug == "same_batch" else step)
    tokens = torch.randint(1, VOCABULARY, (ROWS, LENGTH), generator=generator)
    tokens[:, 1::2] = (tokens[:, 0::2] * 7 + 3) % (VOCABULARY - 1) + 1  # something to learn
    positions = torch.cat([torch.arange(10), torch.arange(LENGTH - 10)]).expand(ROWS, LENGTH)
    lengths = torch.randint(LENGTH - 8, LENGTH + 1, (ROWS, 1), generator=generator)
    if bug == "sorted_by_length":
        lengths = torch.full((ROWS, 1), 6 + step)
    if bug == "rows_twice":
        tokens[ROWS // 2 :] = tokens[: ROWS // 2]
        lengths[ROWS // 2 :] = lengths[: ROWS // 2]
    inside = torch.arange(LENGTH) < lengths
    tokens = torch.where(inside, tokens, PAD)
    labels = tokens.clone() if bug == "pads_count" else torch.where(inside, tokens, -100)
    if bug == "all_masked":
        labels[: ROWS - 2] = -100
    return {
        "input_ids": tokens,
        "labels": labels,
        "position_ids": positions.clone(),
        "attention_mask": inside.long(),
    }


model = Model()
trained = Model() if bug == "other_model" else model
if bug == "bfloat16_weights":
    model = model.to(torch.bfloat16)
parameters = list(trained.parameters())
if bug == "not_in_optimizer":
    parameters = parameters[:6]
rate = {"rate_zero": 0.0, "ascends": 3e-3, "bfloat16_weights": 1e-5}.get(bug, 3e-3)
optimizer = torch.optim.AdamW(parameters, lr=rate)
if bug == "eval_mode":
    model.eval()
recorder = sonde.Recorder(args.run, model, optimizer)


def loss_of(batch: dict[str, Tensor]) -> Tensor:
    """Return the mean loss of the next tokens."""
    scores = model(batch["input_ids"], batch["position_ids"]).float()
    labels = batch["labels"]
    shift = {"unshifted": 0, "shifted_twice": 2, "shifted_by_five": 5}.get(bug, 1)
    scores = scores[:, : LENGTH - shift]
    labels = labels[:, shift:]
    if bug == "shifted_back":
        scores = model(batch["input_ids"], batch["position_ids"])[:, 3:]
        labels = batch["labels"][:, :-3]
    if bug == "labels_of_other_rows":
        labels = labels.roll(1, 0)
    if bug == "double_softmax":
        scores = scores.softmax(-1)
    return F.cross_entropy(scores.flatten(0, 1), labels.flatten())


def train_step(batch: dict[str, Tensor], last: bool = True) -> Tensor:
    """Do all that happens to one batch."""
    loss = loss_of(batch)
    divided = loss / NUM_MICRO if bug != "undivided" else loss
    if bug == "divided_twice":
        divided = divided / NUM_MICRO
    if bug == "ascends":
        divided = -divided
    divided.backward()
    if last:
        optimizer.step()
        if bug != "no_zero_grad":
            optimizer.zero_grad()
    return loss.detach()


for step in range(args.steps * NUM_MICRO):
    is_last = (step + 1) % NUM_MICRO == 0
    if NUM_MICRO == 1:
        recorder.step(train_step, batch_of(step))
    else:
        recorder.step(train_step, batch_of(step), last=is_last)
recorder.close()
