"""Small models for the fourth set of cases, as people write them: a GPT whose head is its table, a
translator on `nn.Transformer`, adapters, nets for scenes, a listener, and small ones of Hugging
Face's.
"""

from typing import Any

import torch
import torch.nn.functional as F
from benchmarks.field_cases.fourth_data import BEGIN, END, MELS, PAD, PHONES, SHAPES, num_tokens
from torch import Tensor, nn


class SelfAttention(nn.Module):
    """Causal attention; `seen` is true where a position may be seen."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        batch, length, width = x.shape
        parts = self.c_attn(x).split(width, dim=2)
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in parts)
        rate = self.dropout if self.training else 0.0
        y = F.scaled_dot_product_attention(
            q, k, v, attn_mask=seen, dropout_p=rate, is_causal=seen is None
        )
        out: Tensor = self.c_proj(y.transpose(1, 2).reshape(batch, length, width))
        return out


class Layer(nn.Module):
    """A layer of the GPT."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.ln_1 = nn.LayerNorm(width)
        self.attn = SelfAttention(width, heads, dropout)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.c_out = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        x = x + self.drop(self.attn(self.ln_1(x), seen))
        out: Tensor = x + self.drop(self.c_out(F.gelu(self.c_fc(self.ln_2(x)))))
        return out


class GPT(nn.Module):
    """In the style of nanoGPT: returns scores and, if there are targets, the loss."""

    def __init__(
        self, *, width: int = 48, layers: int = 2, heads: int = 2, block: int = 128,
        dropout: float = 0.0, vocabulary: int = 0,
    ) -> None:  # fmt: skip
        super().__init__()
        size = vocabulary or num_tokens()
        self.wte = nn.Embedding(size, width)
        self.wpe = nn.Embedding(block, width)
        self.drop = nn.Dropout(dropout)
        self.h = nn.ModuleList(Layer(width, heads, dropout) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width)
        self.lm_head = nn.Linear(width, size, bias=False)
        self.lm_head.weight = self.wte.weight
        for parameter in self.parameters():
            if parameter.dim() == 2:
                nn.init.normal_(parameter, std=0.04)

    def forward(
        self,
        idx: Tensor,
        targets: Tensor | None = None,
        seen: Tensor | None = None,
        places: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        if places is None:
            places = torch.arange(idx.shape[1])
        x = self.drop(self.wte(idx) + self.wpe(places))
        for layer in self.h:
            x = layer(x, seen)
        logits: Tensor = self.lm_head(self.ln_f(x))
        if targets is None:
            return logits, torch.zeros(())
        loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.reshape(-1))
        return logits, loss

    def configure_optimizer(self, rate: float, decay: float = 0.1) -> torch.optim.Optimizer:
        """AdamW; matrices decay, the rest does not."""
        trained = [part for part in self.parameters() if part.requires_grad]
        groups = [
            {"params": [part for part in trained if part.dim() >= 2], "weight_decay": decay},
            {"params": [part for part in trained if part.dim() < 2], "weight_decay": 0.0},
        ]
        return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.95))


class Translator(nn.Module):
    """`nn.Transformer` with tables and a head, as the tutorial has it."""

    def __init__(self, width: int = 48, dropout: float = 0.0) -> None:
        super().__init__()
        self.table = nn.Embedding(num_tokens(), width, padding_idx=PAD)
        self.places = nn.Embedding(96, width)
        self.body = nn.Transformer(
            width, 2, 1, 1, 2 * width, dropout, batch_first=True, norm_first=True
        )
        self.out = nn.Linear(width, num_tokens())

    def read(self, tokens: Tensor) -> Tensor:
        """Tokens and their places as vectors."""
        out: Tensor = self.table(tokens) + self.places(torch.arange(tokens.shape[1]))
        return out

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        length = target.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        states = self.body(
            self.read(source), self.read(target), tgt_mask=later,
            src_key_padding_mask=source == PAD, memory_key_padding_mask=source == PAD,
        )  # fmt: skip
        out: Tensor = self.out(states)
        return out


class Adapter(nn.Module):
    """A frozen linear layer and a product of two thin ones beside it."""

    def __init__(self, base: nn.Linear, rank: int = 4, alpha: float = 8.0) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.lora_a = nn.Parameter(torch.randn(rank, base.in_features) / base.in_features**0.5)
        self.lora_b = nn.Parameter(torch.zeros(base.out_features, rank))
        self.scale = alpha / rank

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.base(x) + self.scale * (x @ self.lora_a.t() @ self.lora_b.t())
        return out


def add_adapters(model: nn.Module, names: tuple[str, ...], **settings: Any) -> nn.Module:
    """Freeze a model, and put adapters at the linear layers of these names."""
    model.requires_grad_(False)
    found = [
        (path, part)
        for path, part in model.named_modules()
        if path.rpartition(".")[2] in names and isinstance(part, nn.Linear)
    ]
    for path, part in found:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, Adapter(part, **settings))
    return model


class SceneNet(nn.Module):
    """Convolutions with BatchNorm; one head says what it is, the other where."""

    def __init__(self, width: int = 12, dropout: float = 0.0) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, width, 3, stride=2, padding=1), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.BatchNorm2d(2 * width),
            nn.ReLU(), nn.Flatten(), nn.Dropout(dropout),
        )  # fmt: skip
        self.kind = nn.Linear(2 * width * 25, SHAPES)
        self.box = nn.Linear(2 * width * 25, 4)

    def forward(self, pictures: Tensor) -> tuple[Tensor, Tensor]:
        features = self.backbone(pictures)
        return self.kind(features), self.box(features)


class Segmenter(nn.Module):
    """Down, up, and a bridge between: a U-Net of two floors."""

    def __init__(self, width: int = 10) -> None:
        super().__init__()
        self.down = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), nn.ReLU())
        self.below = nn.Sequential(
            nn.Conv2d(width, 2 * width, 3, stride=2, padding=1), nn.GroupNorm(2, 2 * width),
            nn.ReLU(), nn.Conv2d(2 * width, 2 * width, 3, padding=1), nn.ReLU(),
        )  # fmt: skip
        self.up = nn.ConvTranspose2d(2 * width, width, 2, stride=2)
        self.out = nn.Conv2d(2 * width, SHAPES + 1, 3, padding=1)

    def forward(self, pictures: Tensor) -> Tensor:
        bridge = self.down(pictures)
        out: Tensor = self.out(torch.cat((bridge, self.up(self.below(bridge))), 1))
        return out


class Listener(nn.Module):
    """Frames to phones at half the speed, for CTC."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.conv = nn.Conv1d(MELS, width, 3, stride=2, padding=1)
        self.cell = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, PHONES + 1)

    def forward(self, frames: Tensor, num_frames: Tensor) -> tuple[Tensor, Tensor]:
        x = F.relu(self.conv(frames.transpose(1, 2))).transpose(1, 2)
        scores: Tensor = self.head(self.cell(x)[0])
        return scores.log_softmax(-1), (num_frames - 1) // 2 + 1


def mlp(*sizes: int) -> nn.Sequential:
    """Linear layers with SiLU between."""
    layers: list[nn.Module] = []
    for place in range(len(sizes) - 1):
        layers += [nn.Linear(sizes[place], sizes[place + 1]), nn.SiLU()]
    return nn.Sequential(*layers[:-1])


def small_gpt2(**changes: Any) -> Any:
    """GPT-2 of one layer."""
    from transformers import GPT2Config, GPT2LMHeadModel

    settings: dict[str, Any] = {
        "vocab_size": num_tokens(), "n_positions": 160, "n_embd": 48, "n_layer": 1, "n_head": 2,
        "bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD, **changes,
    }  # fmt: skip
    return GPT2LMHeadModel(GPT2Config(**settings))


def small_llama(**changes: Any) -> Any:
    """A Llama of one layer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    settings: dict[str, Any] = {
        "vocab_size": num_tokens(), "hidden_size": 48, "intermediate_size": 96,
        "num_hidden_layers": 1, "num_attention_heads": 2, "max_position_embeddings": 256,
        "bos_token_id": BEGIN, "eos_token_id": END, "pad_token_id": PAD, **changes,
    }  # fmt: skip
    return LlamaForCausalLM(LlamaConfig(**settings))


def small_t5(**changes: Any) -> Any:
    """A T5 of one layer a side."""
    from transformers import T5Config, T5ForConditionalGeneration

    settings: dict[str, Any] = {
        "vocab_size": num_tokens(), "d_model": 48, "d_kv": 24, "d_ff": 96, "num_layers": 1,
        "num_heads": 2, "dropout_rate": 0.05, "decoder_start_token_id": PAD,
        "pad_token_id": PAD, "eos_token_id": END, **changes,
    }  # fmt: skip
    return T5ForConditionalGeneration(T5Config(**settings))


def small_bert(num_labels: int = 2, **changes: Any) -> Any:
    """A BERT of one layer that sorts texts."""
    from transformers import BertConfig, BertForSequenceClassification

    settings: dict[str, Any] = {
        "vocab_size": num_tokens(), "hidden_size": 40, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 80, "max_position_embeddings": 128,
        "num_labels": num_labels, "pad_token_id": PAD, **changes,
    }  # fmt: skip
    return BertForSequenceClassification(BertConfig(**settings))
