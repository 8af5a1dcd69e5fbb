"""Small models for the fifth set of cases: a nanochat with rotary places, a translator with cells
and attention, a ViT, a ResNet, a U-Net that also takes a time, an autoencoder, a listener, towers
for films, forecasters, and small ones of Hugging Face's.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.fifth_data import (
    BANDS,
    BEGIN,
    BRANDS,
    END,
    FILMS,
    NOTES,
    PAD,
    PEOPLE,
    num_tokens,
)
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def norm(x: Tensor) -> Tensor:
    """RMSNorm without weights."""
    return F.rms_norm(x, (x.shape[-1],))


def rotate(x: Tensor, places: Tensor) -> Tensor:
    """Rotary places for rows x heads x places x width."""
    half = x.shape[-1] // 2
    speeds = 10_000.0 ** (-torch.arange(half).float() / half)
    angles = places.unsqueeze(-1).float() * speeds
    while angles.dim() < x.dim():
        angles = angles.unsqueeze(-3)
    left = x[..., :half]
    right = x[..., half:]
    cos = angles.cos()
    sin = angles.sin()
    return torch.cat((left * cos + right * sin, right * cos - left * sin), -1).to(x.dtype)


class Block(nn.Module):
    """Attention with normed queries and keys, then a squared ReLU."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.proj = nn.Linear(width, width, bias=False)
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, places: Tensor, seen: Tensor | None) -> Tensor:
        rows, length, width = x.shape
        shape = (rows, length, 3, self.heads, width // self.heads)
        q, k, v = self.qkv(norm(x)).view(shape).permute(2, 0, 3, 1, 4)
        q = norm(rotate(q, places))
        k = norm(rotate(k, places))
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, is_causal=seen is None)
        x = x + self.proj(y.transpose(1, 2).reshape(rows, length, width))
        out: Tensor = x + self.down(F.relu(self.up(norm(x))).square())
        return out


class Chat(nn.Module):
    """In the style of nanochat: `model(idx, targets)` is the loss, without targets the scores."""

    def __init__(
        self, width: int = 48, layers: int = 2, heads: int = 2, *, tied: bool = False,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.wte = nn.Embedding(num_tokens(), width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.drop = nn.Dropout(dropout)
        self.lm_head = nn.Linear(width, num_tokens(), bias=False)
        if tied:
            self.lm_head.weight = self.wte.weight
            nn.init.normal_(self.wte.weight, std=0.05)
        else:
            nn.init.zeros_(self.lm_head.weight)
        for block in self.h:
            nn.init.zeros_(block.proj.weight)  # type: ignore[union-attr, arg-type]
            nn.init.zeros_(block.down.weight)  # type: ignore[union-attr, arg-type]

    def forward(
        self,
        idx: Tensor,
        targets: Tensor | None = None,
        *,
        places: Tensor | None = None,
        seen: Tensor | None = None,
        reduction: str = "mean",
    ) -> Tensor:
        if places is None:
            places = torch.arange(idx.shape[1])
        x = self.drop(norm(self.wte(idx)))
        for block in self.h:
            x = self.drop(block(x, places, seen))
        logits: Tensor = self.lm_head(norm(x)).float()
        if targets is None:
            return logits
        return F.cross_entropy(
            logits.view(-1, logits.size(-1)), targets.reshape(-1), ignore_index=-100,
            reduction=reduction,
        )  # fmt: skip


class Translator(nn.Module):
    """A GRU reads, another writes and looks back at what was read."""

    def __init__(self, width: int = 56) -> None:
        super().__init__()
        self.table = nn.Embedding(num_tokens(), width, padding_idx=PAD)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.writer = nn.GRU(width, width, batch_first=True)
        self.look = nn.Linear(width, width, bias=False)
        self.out = nn.Linear(2 * width, num_tokens())

    def forward(self, source: Tensor, target: Tensor, *, masked: bool = True) -> Tensor:
        words = self.table(source)
        if masked:
            lengths = (source != PAD).sum(1)
            packed = pack_padded_sequence(words, lengths, batch_first=True, enforce_sorted=False)
            states, last = self.reader(packed)
            read, _ = pad_packed_sequence(states, batch_first=True, total_length=source.shape[1])
        else:
            read, last = self.reader(words)
        written, _ = self.writer(self.table(target), last)
        scores = self.look(written) @ read.transpose(1, 2)
        if masked:
            scores = scores.masked_fill((source == PAD).unsqueeze(1), -1e9)
        out: Tensor = self.out(torch.cat((written, scores.softmax(-1) @ read), -1))
        return out


class ViT(nn.Module):
    """Patches of four points, a token for the class, encoder layers of torch's."""

    def __init__(self, width: int = 40, classes: int = 10, dropout: float = 0.0) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 4, stride=4)
        self.cls = nn.Parameter(torch.zeros(1, 1, width))
        self.place = nn.Parameter(0.02 * torch.randn(1, 17, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, classes))

    def forward(self, pictures: Tensor) -> Tensor:
        x = self.patches(pictures).flatten(2).transpose(1, 2)
        x = torch.cat((self.cls.expand(len(x), -1, -1), x), 1) + self.place
        out: Tensor = self.head(self.body(x)[:, 0])
        return out


class Residual(nn.Module):
    """Two convolutions with BatchNorm, and a way around them."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer), nn.ReLU(),
            nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer),
        )  # fmt: skip
        self.around = nn.Conv2d(inner, outer, 1, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.around(x))


class ResNet(nn.Module):
    """Two residual blocks and a mean."""

    def __init__(self, classes: int = 10, width: int = 12) -> None:
        super().__init__()
        self.features = nn.Sequential(Residual(1, width, 1), Residual(width, 2 * width, 2))
        self.fc = nn.Linear(2 * width * 16, classes)

    def forward(self, pictures: Tensor) -> Tensor:
        x = F.adaptive_avg_pool2d(self.features(pictures), 4)
        out: Tensor = self.fc(x.flatten(1))
        return out


class UNet(nn.Module):
    """Two floors; with a time it takes the noise out of a picture, without one it outlines."""

    def __init__(self, width: int = 12) -> None:
        super().__init__()
        self.first = nn.Conv2d(1, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        self.middle = nn.Sequential(
            nn.GroupNorm(4, 2 * width), nn.SiLU(), nn.Conv2d(2 * width, 2 * width, 3, padding=1)
        )
        self.when = nn.Sequential(nn.Linear(16, 2 * width), nn.SiLU(), nn.Linear(2 * width, 24))
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Sequential(nn.SiLU(), nn.Conv2d(2 * width, 1, 3, padding=1))

    def forward(self, pictures: Tensor, times: Tensor | None = None) -> Tensor:
        high = self.first(pictures)
        low = self.down(F.silu(high))
        if times is not None:
            speeds = torch.exp(-math.log(1000.0) * torch.arange(8) / 8)
            angles = times.float().unsqueeze(1) * speeds
            low = low + self.when(torch.cat((angles.sin(), angles.cos()), 1)).view(-1, 24, 1, 1)
        low = low + self.middle(low)
        out: Tensor = self.out(torch.cat((high, self.up(F.silu(low))), 1))
        return out


class VAE(nn.Module):
    """A variational autoencoder of numerals."""

    def __init__(self, size: int = 256, width: int = 96, code: int = 10) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(size, width), nn.GELU(), nn.Linear(width, 2 * code))
        self.decoder = nn.Sequential(nn.Linear(code, width), nn.GELU(), nn.Linear(width, size))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_var = self.encoder(x).chunk(2, -1)
        code = mean + torch.exp(0.5 * log_var) * torch.randn_like(mean)
        divergence = 0.5 * (mean.square() + log_var.exp() - 1 - log_var).sum(-1).mean()
        return self.decoder(code), divergence


class Listener(nn.Module):
    """Frames to notes at half the speed, for CTC."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.conv = nn.Conv1d(BANDS, width, 5, stride=2, padding=2)
        self.cell = nn.LSTM(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, NOTES + 1)

    def forward(self, frames: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        x = F.gelu(self.conv(frames.transpose(1, 2))).transpose(1, 2)
        num = (num_frames - 1) // 2 + 1
        packed = pack_padded_sequence(x, num, batch_first=True, enforce_sorted=False)
        heard, _ = pad_packed_sequence(self.cell(packed)[0], batch_first=True)
        scores: Tensor = self.head(heard)
        return scores.log_softmax(-1), num


class Towers(nn.Module):
    """Factors of people and of films, each with layers of their own."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.people = nn.Embedding(PEOPLE, width)
        self.films = nn.Embedding(FILMS, width)
        self.person_tower = mlp(width, width, width)
        self.film_tower = mlp(width, width, width)

    def forward(self, people: Tensor, films: Tensor) -> Tensor:
        person = self.person_tower(self.people(people))
        out: Tensor = (person * self.film_tower(self.films(films))).sum(-1)
        return out


class Forecaster(nn.Module):
    """Reads 48 hours with convolutions and tells the twelve after them."""

    def __init__(self, hours: int = 48, ahead: int = 12, width: int = 24) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv1d(1, width, 5, padding=2), nn.ReLU(),
            nn.Conv1d(width, width, 5, stride=2, padding=2), nn.ReLU(), nn.Flatten(),
        )  # fmt: skip
        self.head = nn.Linear(width * ((hours + 1) // 2), ahead)

    def forward(self, past: Tensor) -> Tensor:
        out: Tensor = self.head(self.body(past.unsqueeze(1)))
        return out


class Appraiser(nn.Module):
    """A table of brands and the measured columns, through layers."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.brands = nn.Embedding(BRANDS, 8)
        self.layers = mlp(14, width, width, 1)

    def forward(self, brands: Tensor, columns: Tensor) -> Tensor:
        out: Tensor = self.layers(torch.cat((self.brands(brands), columns), 1)).squeeze(1)
        return out


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with GELU between."""
    layers: list[nn.Module] = []
    for place in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[place], sizes[place + 1]), nn.GELU()]
    return nn.Sequential(*layers[:-1])


class LoRA(nn.Module):
    """A frozen linear layer and a product of two thin ones beside it."""

    def __init__(self, base: nn.Linear, rank: int = 4) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + 2.0 * self.up(self.down(x))
        return out


def with_lora(model: nn.Module, *names: str, rank: int = 4) -> nn.Module:
    """Freeze a model, and put adapters at the linear layers of these names."""
    model.requires_grad_(False)
    for path, part in list(model.named_modules()):
        parent, _, name = path.rpartition(".")
        if name in names and isinstance(part, nn.Linear):
            setattr(model.get_submodule(parent), name, LoRA(part, rank))
    return model


def small_qwen(**changes: Any) -> Any:
    """A Qwen2 of one layer."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": num_tokens(), "hidden_size": 48, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1,
        "max_position_embeddings": 256, "tie_word_embeddings": False,
        "bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD, **changes,
    }  # fmt: skip
    return Qwen2ForCausalLM(Qwen2Config(**settings))


def small_neox(**changes: Any) -> Any:
    """A GPT-NeoX, as Pythia is, of one layer."""
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": num_tokens(), "hidden_size": 48, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 256,
        "bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD, **changes,
    }  # fmt: skip
    return GPTNeoXForCausalLM(GPTNeoXConfig(**settings))


def small_distilbert(kind: str = "DistilBertForSequenceClassification", **changes: Any) -> Any:
    """A DistilBERT of one layer."""
    import transformers

    settings: dict[str, Any] = {
        "vocab_size": num_tokens(), "dim": 40, "hidden_dim": 80, "n_layers": 1, "n_heads": 2,
        "max_position_embeddings": 128, "pad_token_id": PAD, **changes,
    }  # fmt: skip
    return getattr(transformers, kind)(transformers.DistilBertConfig(**settings))
