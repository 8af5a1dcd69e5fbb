"""The trainer: one exact step, on one process or many, and a loop that knows when to stop.

loop                     the trainer: epochs, updates, evaluations, saving, callbacks
step                     one update; optimizer_step, scaling, gradients, wrapped, finiteness are parts of it
task, any_data           what a model and its data must be; a DataLoader or any iterable as training data
schedule, rates          the learning rate as a function of the update; a schedule, torch scheduler or callable at work
stopping, signals        which condition ends a run; SIGTERM and Ctrl-C
evaluation, reporting    held-out data; what an update did, for log, records and progress
state, saving            what a checkpoint holds; when it is written and found again
determinism, randomness, parameters    what must be the same for every run and rank; checked before training
settings, recipe_settings              of the loop; of the built-in recipe
recipe, transformer_task               settings turned into model, data, optimiser
session, launch, tensorboard           what `sonde train` does
translation              a trained run that translates; BLEU in training
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
