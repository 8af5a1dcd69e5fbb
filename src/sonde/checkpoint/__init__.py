"""Checkpoints: what a training state is, saved atomically, verified, pruned, restored. Never pickled.

state       any training state as one JSON document and a set of named tensors, and back
store       a directory of checkpoints: appear whole, are verified when read, fall back to the newest valid one
"""
