"""Small models for the third set of cases, written as people write them: a decoder with rotary
positions, a transformer of patches, a translator with attention, causal convolutions, factors of
users and items, graphs as dense matrices, a listener, a VAE of pictures, a denoiser of points.
"""

import itertools

import torch
import torch.nn.functional as F
from benchmarks.field_cases.third_data import (
    BANDS,
    FEATURES,
    ITEMS,
    KINDS,
    LETTERS,
    PAD,
    SYMBOLS,
    USERS,
)
from torch import Tensor, nn


def dense(*sizes: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), act()]
    return nn.Sequential(*layers[:-1])


class RMSNorm(nn.Module):
    """Divide by the root of the mean square."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6)


def turned(x: Tensor, places: Tensor) -> Tensor:
    """Turn pairs of columns by an angle that grows with the place."""
    half = x.shape[-1] // 2
    speed = 100.0 ** (-torch.arange(half) / half)
    angle = places.to(x.dtype).unsqueeze(-1) * speed.to(x.dtype)
    first = x[..., :half]
    second = x[..., half:]
    return torch.cat(
        (first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()), -1
    )


class RotaryAttention(nn.Module):
    """Attention with turned queries and keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.to_q = nn.Linear(width, width, bias=False)
        self.to_kv = nn.Linear(width, 2 * width, bias=False)
        self.to_out = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, places: Tensor, seen: Tensor | None) -> Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q = turned(self.to_q(x).view(shape).transpose(1, 2), places)
        keys, values = self.to_kv(x).chunk(2, -1)
        k = turned(keys.view(shape).transpose(1, 2), places)
        v = values.view(shape).transpose(1, 2)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None)
        out: Tensor = self.to_out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Gated(nn.Module):
    """A gated network, as in Llama."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 2 * width, bias=False)
        self.up = nn.Linear(width, 2 * width, bias=False)
        self.down = nn.Linear(2 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.down(F.silu(self.gate(x)) * self.up(x))
        return out


class DecoderLayer(nn.Module):
    """Attention, then a gated network."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.norm_1 = RMSNorm(width)
        self.attention = RotaryAttention(width, heads)
        self.norm_2 = RMSNorm(width)
        self.network = Gated(width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, places: Tensor, seen: Tensor | None) -> Tensor:
        x = x + self.drop(self.attention(self.norm_1(x), places, seen))
        out: Tensor = x + self.drop(self.network(self.norm_2(x)))
        return out


class Decoder(nn.Module):
    """A language model; `seen` is true where a position may be seen, and None is causal."""

    def __init__(
        self, vocabulary: int, *, width: int = 48, layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(DecoderLayer(width, 2, dropout) for _ in range(layers))
        self.norm = RMSNorm(width)
        self.head = nn.Linear(width, vocabulary, bias=False)
        nn.init.normal_(self.embed.weight, std=0.3)

    def forward(
        self, tokens: Tensor, seen: Tensor | None = None, places: Tensor | None = None
    ) -> Tensor:
        if places is None:
            places = torch.arange(tokens.shape[1])
        x: Tensor = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, places, seen)
        logits: Tensor = self.head(self.norm(x))
        return logits


class PatchLayer(nn.Module):
    """A layer of a transformer of patches."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.norm_1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.network = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.drop = nn.Dropout(dropout)

    def scores(self, q: Tensor, k: Tensor) -> Tensor:
        """How much each patch looks at each other."""
        out: Tensor = q @ k.transpose(1, 2) / q.shape[-1] ** 0.5
        return out

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm_1(x)).chunk(3, -1)
        x = x + self.drop(self.project(torch.softmax(self.scores(q, k), -1) @ v))
        out: Tensor = x + self.drop(self.network(self.norm_2(x)))
        return out


class PatchNet(nn.Module):
    """A transformer of the patches of a picture, in the manner of ViT."""

    def __init__(
        self, outputs: int = KINDS, *, width: int = 32, layers: int = 2, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, width, 4, stride=4)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        self.layers = nn.ModuleList(PatchLayer(width, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, outputs)

    def features(self, pictures: Tensor) -> Tensor:
        """One vector a picture."""
        x = self.patch(pictures).flatten(2).transpose(1, 2)
        x = torch.cat((self.token.expand(len(x), -1, -1), x), 1) + self.place
        for layer in self.layers:
            x = layer(x)
        out: Tensor = self.norm(x)[:, 0]
        return out

    def forward(self, pictures: Tensor) -> Tensor:
        scores: Tensor = self.head(self.features(pictures))
        return scores


class DateReader(nn.Module):
    """A translator of dates: a recurrent encoder, and a recurrent decoder that looks at it."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(LETTERS), width)
        self.encoder = nn.GRU(width, width, batch_first=True)
        self.decoder = nn.GRU(width, width, batch_first=True)
        self.look = nn.Linear(width, width)
        self.head = nn.Linear(2 * width, len(LETTERS))

    def encode(self, source: Tensor) -> Tensor:
        """A state for each letter of the source."""
        out: Tensor = self.encoder(self.embed(source))[0]
        return out

    def attend(self, states: Tensor, memory: Tensor, hidden: Tensor | None) -> Tensor:
        """Scores of the next letter; `hidden` is true where there is nothing to look at."""
        weights = self.look(states) @ memory.transpose(1, 2) / memory.shape[-1] ** 0.5
        if hidden is not None:
            weights = weights.masked_fill(hidden.unsqueeze(1), float("-inf"))
        found = torch.softmax(weights, -1) @ memory
        out: Tensor = self.head(torch.cat((states, found), -1))
        return out

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        states, _ = self.decoder(self.embed(target))
        return self.attend(states, self.encode(source), source == PAD)


class Forecaster(nn.Module):
    """Causal convolutions over hours: predicts the next one at each."""

    def __init__(self, width: int = 24, outputs: int = 1) -> None:
        super().__init__()
        self.first = nn.Conv1d(1, width, 1)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, 3, dilation=2**depth) for depth in range(3)
        )
        self.last = nn.Conv1d(width, outputs, 1)

    def forward(self, series: Tensor) -> Tensor:
        x = self.first(series.unsqueeze(1))
        for depth, layer in enumerate(self.layers):
            reach = 2 * 2**depth
            x = x + F.relu(layer(F.pad(x, (reach, 0))))
        out: Tensor = self.last(x).transpose(1, 2)
        return out


class Factors(nn.Module):
    """Users and items as vectors; their product is the rating."""

    def __init__(self, width: int = 12, *, sparse: bool = False) -> None:
        super().__init__()
        self.users = nn.Embedding(USERS, width, sparse=sparse)
        self.items = nn.Embedding(ITEMS, width, sparse=sparse)
        self.user_bias = nn.Embedding(USERS, 1, sparse=sparse)
        self.item_bias = nn.Embedding(ITEMS, 1, sparse=sparse)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.3)
        for table in (self.user_bias, self.item_bias):
            nn.init.zeros_(table.weight)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        product = (self.users(users) * self.items(items)).sum(1)
        out: Tensor = 3 + product + (self.user_bias(users) + self.item_bias(items)).squeeze(1)
        return out


class GraphNet(nn.Module):
    """Two rounds of messages between neighbours."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.read = nn.Linear(FEATURES, width)
        self.own = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.others = nn.ModuleList(nn.Linear(width, width) for _ in range(2))
        self.head = dense(width, width, 1)

    def spread(self, adjacency: Tensor) -> Tensor:
        """The weight of each neighbour."""
        return adjacency / adjacency.sum(-1, keepdim=True).clamp(min=1)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Tensor:
        x = F.relu(self.read(nodes))
        weights = self.spread(adjacency)
        for own, others in zip(self.own, self.others, strict=True):
            x = x + F.relu(own(x) + others(weights @ x))
        out: Tensor = self.head(x).squeeze(-1).mean(-1)
        return out


class Listener(nn.Module):
    """Frames of a sound to symbols, for CTC."""

    def __init__(self, width: int = 40, outputs: int = SYMBOLS + 1) -> None:
        super().__init__()
        self.conv = nn.Conv1d(BANDS, width, 3, padding=1)
        self.gru = nn.GRU(width, width // 2, batch_first=True, bidirectional=True)
        self.head = nn.Linear(width, outputs)

    def forward(self, frames: Tensor) -> Tensor:
        x = F.relu(self.conv(frames.transpose(1, 2))).transpose(1, 2)
        out: Tensor = self.head(self.gru(x)[0]).log_softmax(-1)
        return out


class GlyphVAE(nn.Module):
    """A variational autoencoder of pictures."""

    def __init__(self, latent: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, 8, 4, 2, 1), nn.SiLU(), nn.Conv2d(8, 16, 4, 2, 1), nn.SiLU(),
            nn.Flatten(), nn.Linear(256, 2 * latent),
        )  # fmt: skip
        self.decoder = nn.Sequential(
            nn.Linear(latent, 256), nn.SiLU(), nn.Unflatten(1, (16, 4, 4)),
            nn.ConvTranspose2d(16, 8, 4, 2, 1), nn.SiLU(), nn.ConvTranspose2d(8, 1, 4, 2, 1),
        )  # fmt: skip

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.encoder(pictures).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        return self.decoder(code), mean, log_variance


class PointDenoiser(nn.Module):
    """Predicts the noise in points at a time from 0 to 1."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.net = dense(2 + 8, width, width, 2, act=nn.SiLU)

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        angle = time.unsqueeze(1) * torch.tensor([1.5, 3.0, 6.0, 12.0])
        out: Tensor = self.net(torch.cat((noisy, angle.sin(), angle.cos()), 1))
        return out


class TextSorter(nn.Module):
    """A bag of attention over a text: which kind of text it is."""

    def __init__(self, vocabulary: int, outputs: int, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.place = nn.Embedding(64, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, outputs)

    def read(self, tokens: Tensor) -> Tensor:
        """Tokens and their places as vectors."""
        out: Tensor = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        return out


class GlyphNet(nn.Module):
    """Convolutions with GroupNorm for grey pictures."""

    def __init__(self, outputs: int = KINDS, width: int = 12) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(1, width, 5, stride=2, padding=2), nn.GroupNorm(3, width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.GroupNorm(3, 2 * width),
            nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(2 * width * 16, outputs)

    def forward(self, pictures: Tensor) -> Tensor:
        scores: Tensor = self.head(self.body(pictures))
        return scores
