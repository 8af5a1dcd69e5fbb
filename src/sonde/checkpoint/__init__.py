"""Checkpoints: save a training state atomically, verify, prune and restore it. Never pickled.

For example:

    from sonde.checkpoint import CheckpointStore, Keep, load_weights

    store = CheckpointStore(Path("checkpoints"))
    store.save(100, {"model": model.state_dict(), "note": "any plain data"})
    step, rejected = store.folder.newest()  # newest valid one; what is wrong with newer ones
    state = store.load(step)
    store.folder.prune(Keep(newest=2))
    load_weights("checkpoints", model)      # only the weights
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
