"""A small language model with three bugs that no loss curve shows, for `sonde demo --check`.

    sonde check -- python -m sonde.demo.three_bugs RUN

Attention sees one token ahead, padding counts in the loss, and the optimizer was made before the
head. The loss falls all the same.
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sonde.recorder.recorder import Recorder

_VOCABULARY = 64
_LENGTH = 32
_WIDTH = 32
_PADDING = 0


class Attention(nn.Module):
    """Attention over the positions before."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Mix what may be seen."""
        query, key, value = self.qkv(x).chunk(3, -1)
        seen = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril(1)  # bug: not tril()
        return F.scaled_dot_product_attention(query, key, value, attn_mask=seen)


class LanguageModel(nn.Module):
    """Predicts the next token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = nn.Embedding(_VOCABULARY, _WIDTH)
        self.attention = Attention()
        self.head = nn.Linear(_WIDTH, 2 * _VOCABULARY)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the scores of the next tokens."""
        x = self.tokens(tokens)
        scores: Tensor = self.head(x + self.attention(x))
        return scores


def batch_of(step: int) -> Tensor:
    """Return rows of different lengths, padded."""
    generator = torch.Generator().manual_seed(step)
    rows = torch.randint(1, _VOCABULARY, (8, _LENGTH), generator=generator)
    lengths = torch.randint(_LENGTH // 2, _LENGTH, (8, 1), generator=generator)
    return torch.where(torch.arange(_LENGTH) < lengths, rows, _PADDING)


def main(directory: str) -> None:
    """Train."""
    torch.manual_seed(1)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    model.head = nn.Linear(_WIDTH, _VOCABULARY)  # bug: the optimizer does not hold this one
    recorder = Recorder(directory, model, optimizer)

    def train_step(rows: Tensor) -> Tensor:
        scores = model(rows[:, :-1])
        # bug: no ignore_index
        loss = F.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        model.zero_grad()
        return loss.detach()

    for step in range(40):
        recorder.step(train_step, batch_of(step))
    recorder.close()


if __name__ == "__main__":
    main(sys.argv[1])
