"""The reference Transformer: encoder-decoder and decoder-only from one set of blocks.

    settings      sizes and choices, checked
    positions     sinusoidal and rotary positions
    incremental   what the decoder remembers between steps: an explicit value, shared by the beams of a sentence
    attention     self- and cross-attention
    blocks        one layer
    transformer   the model; training and step-by-step decoding run the same code
    loss          label-smoothed loss, one number per token

Nothing here knows how tokens are searched for (`sonde.generate`) or how the model is trained (`sonde.train`).
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
