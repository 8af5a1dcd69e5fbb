"""The reference Transformer: encoder-decoder and decoder-only from one set of blocks.

    from sonde.models import Transformer, TransformerSettings, token_losses

    # `encoder_layers=0` makes a decoder-only model
    model = Transformer(TransformerSettings(vocab_size=8000))
    logits = model(decoder_input, source)                       # [B, T, V]
    loss = token_losses(logits, target, pad=1).mean()           # `.losses` has one number per token

Training and incremental decoding run the same code. Nothing here depends on search
(`sonde.generate`) or training (`sonde.train`).
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
