"""A small GPT on a text of one's own, as people write such scripts; sonde rides along in eight
lines, marked with `# sonde`.

python examples/nano_gpt.py TEXT RUN            a minute on two cores; then
sonde spikes RUN                                what jumped
sonde diagnose RUN -- python examples/nano_gpt.py TEXT RUN        why
"""

import argparse
import math
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import sonde  # sonde

parser = argparse.ArgumentParser()
parser.add_argument("text", type=Path, help="a text file to learn")
parser.add_argument("run", type=Path, help="where to record the run")
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--batch-size", type=int, default=12)
parser.add_argument("--block-size", type=int, default=64)
parser.add_argument("--lr", type=float, default=3e-3)
parser.add_argument(
    "--lr-fault-at", type=int, default=0, help="make one update at 40 times the learning rate"
)
args = parser.parse_args()
torch.manual_seed(1337)

# ---------------------------------------------------------------- data
text = args.text.read_text(encoding="utf-8")
characters = sorted(set(text))
number_of = {character: number for number, character in enumerate(characters)}
data = torch.tensor([number_of[character] for character in text])


def decode(tokens: list[int]) -> str:
    """Tokens as text."""
    return "".join(characters[token] for token in tokens)


def get_batch(step: int) -> tuple[Tensor, Tensor]:
    """Rows that lie side by side in the text, a new place each step; every row is seen once an
    epoch.
    """
    num_rows = (len(data) - 1) // args.block_size
    order = torch.randperm(
        num_rows, generator=torch.Generator().manual_seed(step * args.batch_size // num_rows)
    )
    rows = [
        int(order[(step * args.batch_size + row) % num_rows]) * args.block_size
        for row in range(args.batch_size)
    ]
    x = torch.stack([data[at : at + args.block_size] for at in rows])
    y = torch.stack([data[at + 1 : at + 1 + args.block_size] for at in rows])
    return x, y


# ---------------------------------------------------------------- model
class Block(nn.Module):
    """Attention and a small network, each beside a way past it."""

    def __init__(self, width: int, num_heads: int) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.attention_norm = nn.LayerNorm(width)
        self.mlp_norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        """One layer."""
        batch, length, width = x.shape

        def in_heads(part: Tensor) -> Tensor:
            return part.view(batch, length, self.num_heads, -1).transpose(1, 2)

        q, k, v = self.qkv(self.attention_norm(x)).split(width, 2)
        mixed = F.scaled_dot_product_attention(
            in_heads(q), in_heads(k), in_heads(v), is_causal=True
        )
        x = x + self.dropout(self.out(mixed.transpose(1, 2).reshape(batch, length, width)))
        return x + self.dropout(self.mlp(self.mlp_norm(x)))


class GPT(nn.Module):
    """Predicts the next character."""

    def __init__(
        self,
        vocab_size: int,
        block_size: int,
        width: int = 64,
        num_heads: int = 4,
        num_layers: int = 2,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, width)
        self.positions = nn.Embedding(block_size, width)
        self.blocks = nn.Sequential(*(Block(width, num_heads) for _ in range(num_layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab_size)

    def forward(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of the next characters, and their loss."""
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
        logits = self.head(self.norm(self.blocks(h)))
        return logits, F.cross_entropy(logits.flatten(0, 1), y.flatten())


# ---------------------------------------------------------------- training
model = GPT(len(characters), args.block_size)
optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
run = sonde.Run(args.run, config=vars(args))  # sonde
recorder = sonde.Recorder(run, model, optimizer, decode=decode)  # sonde


def get_lr(step: int) -> float:
    """A warm-up, then half a cosine."""
    warm = min(1.0, (step + 1) / 40)
    return args.lr * warm * (0.1 + 0.45 * (1 + math.cos(math.pi * step / args.steps)))


def train_step(batch: tuple[Tensor, Tensor]) -> Tensor:  # sonde: the body stood in the loop before
    """All that happens to one batch."""
    x, y = batch
    _, loss = model(x, y)
    loss.backward()
    nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return loss.detach()  # sonde


start = recorder.restore()  # sonde: after a kill or a rollback it goes on from a kept state
for step in range(start, args.steps):
    for group in optimizer.param_groups:
        group["lr"] = get_lr(step) * (40 if step + 1 == args.lr_fault_at else 1)
    loss = recorder.step(train_step, get_batch(step))  # sonde
    if step % 100 == 0 or step + 1 == args.steps:
        print(f"step {step + 1}: loss {loss.item():.4f}")
run.close()  # sonde
