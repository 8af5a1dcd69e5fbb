"""The sizes and options of a Transformer, checked when created."""

from dataclasses import dataclass
from typing import Literal, final, get_args

from sonde.errors import SettingError, check_at_least, check_choice

Norm = Literal["pre", "post"]
Positions = Literal["sinusoidal", "rotary"]
Tie = Literal["none", "output", "all"]
Activation = Literal["relu", "gelu"]


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class TransformerSettings:
    """The settings of a Transformer."""

    vocab_size: int
    """Vocabulary size of the decoder."""

    source_vocab_size: int | None = None
    """Vocabulary size of the encoder; None if source and target share one vocabulary."""

    model_dim: int = 256
    """Width of the residual stream."""

    num_heads: int = 4
    """Number of attention heads; must divide `model_dim`."""

    ffn_dim: int = 1024
    """Width of the hidden feed-forward layer."""

    encoder_layers: int = 6
    """Number of encoder layers; 0 makes a decoder-only model."""

    decoder_layers: int = 6
    """Number of decoder layers."""

    dropout: float = 0.1
    """Dropout on the embeddings and on the output of every sub-layer."""

    attention_dropout: float = 0.0
    """Dropout on attention weights."""

    norm: Norm = "pre"
    """Layer norm before each sub-layer ("pre", trains without warm-up tricks) or after the residual sum ("post", the 2017 paper)."""

    positions: Positions = "sinusoidal"
    """Position encoding: sinusoids added to the embeddings, or rotary queries and keys."""

    activation: Activation = "relu"
    """The non-linearity of the feed-forward layers."""

    tie: Tie = "all"
    """Which embeddings are shared: "none", "output" (decoder and output projection), "all" (also the encoder's)."""

    pad: int = 1
    """Id of the padding token, which is never attended to and not counted as a position."""

    def __post_init__(self) -> None:
        check_at_least(1, vocab_size=self.vocab_size, model_dim=self.model_dim, num_heads=self.num_heads)
        check_at_least(1, ffn_dim=self.ffn_dim, decoder_layers=self.decoder_layers)
        check_at_least(0, encoder_layers=self.encoder_layers, pad=self.pad)
        check_choice(get_args(Norm), norm=self.norm)
        check_choice(get_args(Positions), positions=self.positions)
        check_choice(get_args(Activation), activation=self.activation)
        check_choice(get_args(Tie), tie=self.tie)
        for name in ("dropout", "attention_dropout"):
            if not 0.0 <= getattr(self, name) < 1.0:
                raise SettingError(
                    f"{name} is {getattr(self, name)!r}", hint="use a rate from 0 up to, not including, 1"
                )
        self._check_agreement()

    def _check_agreement(self) -> None:
        if self.model_dim % self.num_heads:
            raise SettingError(
                f"model_dim {self.model_dim} is not a multiple of num_heads {self.num_heads}",
                hint="every head gets model_dim / num_heads dimensions",
            )
        if self.model_dim % 2 or (self.positions == "rotary" and self.head_dim % 2):
            raise SettingError(
                f"{self.positions} positions need an even width, but model_dim is {self.model_dim} in heads of {self.head_dim}",
                hint="use an even model_dim, and an even model_dim / num_heads for rotary positions",
            )
        if self.pad >= self.vocab_size:
            raise SettingError(f"pad is {self.pad}, outside the vocabulary of {self.vocab_size}")
        if self.source_vocab_size is not None:
            check_at_least(1, source_vocab_size=self.source_vocab_size)
            if self.encoder_layers and self.tie == "all" and self.source_vocab_size != self.vocab_size:
                raise SettingError(
                    f"tie='all' shares one embedding, but source_vocab_size is {self.source_vocab_size} and vocab_size {self.vocab_size}",
                    hint="use tie='output', or one joint vocabulary",
                )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.model_dim // self.num_heads

    @property
    def is_decoder_only(self) -> bool:
        """Whether there is no encoder."""
        return self.encoder_layers == 0
