"""Small models for the second set of cases, written as people write them: a model in the style of
nanoGPT that returns its loss, recurrent ones, a translator, encoders, pictures, a VAE, a denoiser.
"""

import itertools
import math
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.second_data import DIGITS, NUM_WORDS, PADDING
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Attention by hand, with a triangle of ones kept as a buffer."""

    def __init__(self, width: int, num_heads: int, block: int, *, qk_norm: bool = False) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.qk_norm = qk_norm
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)
        triangle = torch.tril(torch.ones(block, block, dtype=torch.bool))
        self.register_buffer("seen", triangle, persistent=False)
        self.scale = 1.0 / math.sqrt(width // num_heads)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        parts = self.c_attn(x).view(batch, length, 3, self.num_heads, -1)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if self.qk_norm:
            q = F.normalize(q, dim=-1) * 4.0
            k = F.normalize(k, dim=-1) * 4.0
        scores = q @ k.transpose(-2, -1) * self.scale
        if seen is None:
            buffer = self.get_buffer("seen")
            seen = buffer[:length, :length]
        scores = scores.masked_fill(~seen, float("-inf"))
        mixed = torch.softmax(scores, dim=-1) @ v
        out: Tensor = self.c_proj(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Layer(nn.Module):
    """One layer of a decoder."""

    def __init__(self, width: int, num_heads: int, block: int, dropout: float, **kind: Any) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = SelfAttention(width, num_heads, block, **kind)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(3 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        x = x + self.drop(self.attn(self.ln_1(x), seen))
        out: Tensor = x + self.drop(self.c_proj(F.gelu(self.c_fc(self.ln_2(x)))))
        return out


class NanoLM(nn.Module):
    """`logits, loss = model(x, y)`, as in nanoGPT; targets of -1 do not count.

    `kind` may say `tied` (the head is the embedding) and `qk_norm`.
    """

    def __init__(
        self,
        vocabulary: int = 256,
        *,
        width: int = 40,
        num_layers: int = 2,
        block: int = 64,
        dropout: float = 0.0,
        std: float = 0.05,
        **kind: bool,
    ) -> None:
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(block, width)
        self.h = nn.ModuleList(
            Layer(width, 2, block, dropout, qk_norm=kind.get("qk_norm", False))
            for _ in range(num_layers)
        )
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() == 2:
                shrink = math.sqrt(2 * num_layers) if name.endswith("c_proj.weight") else 1.0
                nn.init.normal_(parameter, std=std / shrink)
        if kind.get("tied"):
            self.lm_head.weight = self.wte.weight

    def hidden(self, x: Tensor, seen: Tensor | None = None, at: Tensor | None = None) -> Tensor:
        """The states before the head; `seen` is true where a position may be seen."""
        places = torch.arange(x.shape[1]) if at is None else at
        states: Tensor = self.wte(x) + self.wpe(places)
        for layer in self.h:
            states = layer(states, seen)
        out: Tensor = self.ln_f(states)
        return out

    def forward(
        self,
        x: Tensor,
        targets: Tensor | None = None,
        seen: Tensor | None = None,
        at: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        logits = self.lm_head(self.hidden(x, seen, at))
        if targets is None:
            return logits, None
        loss = F.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-1
        )
        return logits, loss


class StripeNet(nn.Module):
    """Convolutions with BatchNorm for colour pictures."""

    def __init__(self, num_classes: int = 5, width: int = 8, *, dropout: float = 0.0) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(2 * width)
        self.drop = nn.Dropout(dropout)
        self.fc = nn.Linear(2 * width, num_classes)

    def features(self, pictures: Tensor) -> Tensor:
        """One vector a picture."""
        x = F.relu(self.bn1(self.stem(pictures)))
        x = F.relu(self.bn2(self.conv2(x)))
        return x.amax(dim=(2, 3))

    def forward(self, pictures: Tensor) -> Tensor:
        scores: Tensor = self.fc(self.drop(self.features(pictures)))
        return scores


class WordLSTM(nn.Module):
    """A recurrent language model of words."""

    def __init__(self, vocabulary: int = NUM_WORDS, width: int = 48) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, width, batch_first=True)
        self.out = nn.Linear(width, vocabulary)

    def forward(self, words: Tensor, state: Any = None) -> tuple[Tensor, Any]:
        found, state = self.lstm(self.embed(words), state)
        return self.out(found), state


class Reverser(nn.Module):
    """An encoder and a decoder of `nn.Transformer`, with its three masks."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Embedding(DIGITS + 1, width)
        self.place = nn.Embedding(16, width)
        self.body = nn.Transformer(
            width, 2, 1, 1, 64, dropout=0.0, batch_first=True, norm_first=True
        )
        self.head = nn.Linear(width, DIGITS + 1)

    def read(self, tokens: Tensor) -> Tensor:
        """Tokens and their places as vectors."""
        out: Tensor = self.embed(tokens) + self.place(torch.arange(tokens.shape[1]))
        return out

    def forward(self, source: Tensor, target: Tensor, *, causal: bool = True) -> Tensor:
        length = target.shape[1]
        future = torch.triu(torch.ones(length, length, dtype=torch.bool), 1) if causal else None
        padding = source == PADDING
        states = self.body(
            self.read(source),
            self.read(target),
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        scores: Tensor = self.head(states)
        return scores


class WordEncoder(nn.Module):
    """An encoder of words that sees both ways; `padding` is true where nothing is to be seen."""

    def __init__(self, outputs: int = NUM_WORDS, width: int = 40, length: int = 24) -> None:
        super().__init__()
        self.embed = nn.Embedding(NUM_WORDS, width)
        self.place = nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(
            width, 2, 80, dropout=0.0, batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, outputs)

    def states(self, words: Tensor, padding: Tensor | None) -> Tensor:
        """A vector for each word."""
        read = self.embed(words) + self.place(torch.arange(words.shape[1]))
        out: Tensor = self.encoder(read, src_key_padding_mask=padding)
        return out

    def forward(self, words: Tensor, padding: Tensor | None = None) -> Tensor:
        scores: Tensor = self.head(self.states(words, padding))
        return scores


class VAE(nn.Module):
    """A variational autoencoder of series."""

    def __init__(self, length: int = 24, latent: int = 6) -> None:
        super().__init__()
        self.enc = nn.Sequential(nn.Linear(length, 64), nn.SiLU(), nn.Linear(64, 2 * latent))
        self.dec = nn.Sequential(nn.Linear(latent, 64), nn.SiLU(), nn.Linear(64, length))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        mean, log_variance = self.enc(x).chunk(2, dim=-1)
        drawn = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return self.dec(drawn), mean, log_variance


class TwoTowers(nn.Module):
    """Two views of a thing to two vectors, and a temperature that is learnt."""

    def __init__(self, left: int = 12, right: int = 12, width: int = 16) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(left, 48), nn.ReLU(), nn.Linear(48, width))
        self.right = nn.Sequential(nn.Linear(right, 48), nn.ReLU(), nn.Linear(48, width))
        self.logit_scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, left: Tensor, right: Tensor) -> Tensor:
        a = F.normalize(self.left(left), dim=-1)
        b = F.normalize(self.right(right), dim=-1)
        return self.logit_scale.exp() * a @ b.t()


class Denoiser(nn.Module):
    """Predicts the noise in a series at a time between 0 and 1."""

    def __init__(self, length: int = 24, width: int = 64) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(length + 8, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU(),
            nn.Linear(width, length),
        )  # fmt: skip

    def forward(self, noisy: Tensor, time: Tensor) -> Tensor:
        angles = time.unsqueeze(1) * torch.tensor([1.0, 2.0, 4.0, 8.0])
        out: Tensor = self.net(torch.cat((noisy, angles.sin(), angles.cos()), dim=1))
        return out


class LowRank(nn.Module):
    """A frozen layer with two small matrices beside it; the second begins at zero."""

    def __init__(self, base: Any, rank: int = 4, alpha: float = 8.0) -> None:
        super().__init__()
        self.base = base
        self.base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) * 0.05)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.alpha = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.alpha * (x @ self.lora_a.t() @ self.lora_b.t())
        return out


def mlp(*sizes: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between."""
    layers: list[nn.Module] = []
    for inputs, outputs in itertools.pairwise(sizes):
        layers += [nn.Linear(inputs, outputs), act()]
    return nn.Sequential(*layers[:-1])
