"""Checkpoints: what a training state is, saved atomically, verified, pruned, restored. Never pickled.

state          any training state as one JSON document and a set of named tensors, and back
tensor_image   a safetensors file in memory that is allocated once
folder         a directory of checkpoints: appear whole, are verified, fall back to the newest valid one (no torch)
retention      which of them stay: pure
store          training states in such a folder
background     saving while training goes on
sharded        tensors that ranks hold in parts: a rank's file, and reading them back
shard_saver    such a state saved by all ranks together, without a collective outside of the copy
weights        the weights alone: `load_weights`, averaging
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
