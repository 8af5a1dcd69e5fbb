"""The sizes and options of a Transformer, checked when created."""

from dataclasses import dataclass
from typing import Literal

from sonde.errors import SettingError
from sonde.fields import Count, Positive, Rate, check_fields


@dataclass(frozen=True, kw_only=True)
class TransformerShape:
    """The sizes and options of a Transformer that do not depend on its vocabulary."""

    model_dim: Positive = 256
    """Width of the residual stream."""
    num_heads: Positive = 4
    """Number of attention heads; must divide model_dim."""
    ffn_dim: Positive = 512
    """Width of the hidden feed-forward layer."""
    encoder_layers: Count = 3
    """Number of encoder layers; 0 makes a decoder-only model, as does data of one language."""
    decoder_layers: Positive = 3
    """Number of decoder layers."""
    dropout: Rate = 0.1
    """Dropout on the embeddings and on the output of every sub-layer."""
    norm: Literal["pre", "post"] = "pre"
    """Place of the layer norm: "pre" is before each sub-layer, "post" is after the residual sum, as
    in the 2017 paper.
    """
    positions: Literal["sinusoidal", "rotary"] = "sinusoidal"
    """Position encoding: sinusoids added to the embeddings, or rotary queries and keys."""
    tie: Literal["none", "output", "all"] = "all"
    """Which embeddings are shared: "none", "output" (decoder and output projection), or "all", the
    encoder's too.
    """

    def __post_init__(self) -> None:
        check_fields(self)
        if self.model_dim % self.num_heads:
            raise SettingError(
                f"model_dim {self.model_dim} is not a multiple of num_heads {self.num_heads}",
                hint="every head gets model_dim / num_heads dimensions",
            )
        if self.model_dim % 2 or (self.positions == "rotary" and self.head_dim % 2):
            raise SettingError(
                f"{self.positions} positions need an even width, but model_dim is {self.model_dim}"
                f" in heads of {self.head_dim}",
                hint=(
                    "use an even model_dim, and an even model_dim / num_heads for rotary positions"
                ),
            )

    @property
    def head_dim(self) -> int:
        """Width of one attention head."""
        return self.model_dim // self.num_heads


@dataclass(frozen=True, kw_only=True)
class TransformerSettings(TransformerShape):
    """The settings of a Transformer."""

    vocab_size: Positive
    """Vocabulary size of the decoder."""
    source_vocab_size: Positive | None = None
    """Vocabulary size of the encoder; None if source and target share one vocabulary."""
    pad: Count = 1
    """Id of the padding token, which is never attended to and not counted as a position."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.pad >= self.vocab_size:
            raise SettingError(f"pad is {self.pad}, outside the vocabulary of {self.vocab_size}")
        if (
            self.encoder_layers
            and self.tie == "all"
            and self.source_vocab_size not in (None, self.vocab_size)
        ):
            raise SettingError(
                f"tie='all' shares one embedding, but source_vocab_size is {self.source_vocab_size}"
                f" and vocab_size {self.vocab_size}",
                hint="use tie='output', or one joint vocabulary",
            )

    @property
    def is_decoder_only(self) -> bool:
        """Whether there is no encoder."""
        return self.encoder_layers == 0
