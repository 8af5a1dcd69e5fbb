"""Small models: a GPT, a convolutional classifier, networks for regression, a translator.

A step of each takes a few milliseconds on one core.
"""

import torch
import torch.nn.functional as F
from benchmarks.field_cases.texts import NUM_CHARACTERS
from torch import Tensor, nn


class Attention(nn.Module):
    """Attention of several heads; `mask` is true where a position may be seen."""

    def __init__(self, width: int, num_heads: int, *, causal: bool) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.causal = causal
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, 3, self.num_heads, width // self.num_heads)
        q, k, v = self.qkv(x).view(shape).permute(2, 0, 3, 1, 4)
        causal = self.causal and mask is None
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        out: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """Attention and a small network, each beside a way past it."""

    def __init__(self, width: int, num_heads: int, dropout: float, *, causal: bool) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.attention = Attention(width, num_heads, causal=causal)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        x = x + self.dropout(self.attention(self.attention_norm(x), mask))
        out: Tensor = x + self.dropout(self.mlp(self.mlp_norm(x)))
        return out


class GPT(nn.Module):
    """Predicts the next token; with `causal=False`, any token from all others."""

    def __init__(
        self,
        vocabulary: int = NUM_CHARACTERS,
        *,
        width: int = 48,
        num_layers: int = 2,
        block_size: int = 96,
        dropout: float = 0.1,
        causal: bool = True,
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.positions = nn.Embedding(block_size, width)
        self.blocks = nn.ModuleList(
            Block(width, 2, dropout, causal=causal) for _ in range(num_layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.05)

    def forward(
        self, x: Tensor, mask: Tensor | None = None, positions: Tensor | None = None
    ) -> Tensor:
        if positions is None:
            positions = torch.arange(x.shape[1], device=x.device)
        hidden = self.tokens(x) + self.positions(positions)
        for block in self.blocks:
            hidden = block(hidden, mask)
        logits: Tensor = self.head(self.norm(hidden))
        return logits


class ConvNet(nn.Module):
    """Classifies small pictures of one channel."""

    def __init__(self, num_classes: int = 4, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1),
            nn.BatchNorm2d(8),
            nn.ReLU(),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(2),
            nn.Flatten(),
        )
        self.dropout = nn.Dropout(dropout)
        self.head = nn.Linear(64, num_classes)

    def forward(self, pictures: Tensor) -> Tensor:
        scores: Tensor = self.head(self.dropout(self.features(pictures)))
        return scores


def network(inputs: int = 16, outputs: int = 1, width: int = 64) -> nn.Sequential:
    """Three layers, for regression and classification of vectors."""
    return nn.Sequential(
        nn.Linear(inputs, width),
        nn.GELU(),
        nn.Linear(width, width),
        nn.GELU(),
        nn.Linear(width, outputs),
    )


class Translator(nn.Module):
    """Reads a source with one recurrent network and predicts the target with another."""

    def __init__(self, vocabulary: int = NUM_CHARACTERS, width: int = 64) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.writer = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(2 * width, vocabulary)

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, last = self.reader(self.tokens(source))
        written, _ = self.writer(self.tokens(target), last)
        weights = torch.softmax(written @ states.transpose(1, 2) / 8.0, dim=-1)
        scores: Tensor = self.head(torch.cat((written, weights @ states), dim=-1))
        return scores


class Pictures:
    """Bright bars on a noisy ground; the class is where the bar lies."""

    def __init__(self, num: int = 640, num_classes: int = 4, *, noise: float = 0.5) -> None:
        generator = torch.Generator().manual_seed(1)
        self.labels = torch.randint(0, num_classes, (num,), generator=generator)
        self.pixels = torch.randn(num, 1, 12, 12, generator=generator) * noise
        for picture, label in zip(self.pixels, self.labels.tolist(), strict=True):
            at = label % 4 * 3
            picture[0, at : at + 2] += 1.0

    def batch(self, step: int, size: int = 16, seed: int = 5) -> tuple[Tensor, Tensor]:
        """The batch of a step, from 0."""
        per_epoch = len(self.labels) // size
        generator = torch.Generator().manual_seed(seed * 1000 + step // per_epoch)
        order = torch.randperm(len(self.labels), generator=generator)
        chosen = order[step % per_epoch * size :][:size]
        return self.pixels[chosen], self.labels[chosen]


def measurements(step: int, size: int = 16) -> tuple[Tensor, Tensor]:
    """Vectors and a smooth function of them with a little noise: the batch of a step."""
    generator = torch.Generator().manual_seed(10_000 + step)
    x = torch.randn(size, 16, generator=generator)
    clean = (x[:, :4].sum(1).tanh() + 0.5 * x[:, 5] * x[:, 6]).unsqueeze(1)
    return x, clean + 0.1 * torch.randn(size, 1, generator=generator)
