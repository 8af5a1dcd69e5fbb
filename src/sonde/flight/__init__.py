"""The flight recorder: the whole loop of sonde inside a training loop of one's own.

    recorder.py         `FlightRecorder`: follows the steps, judges them before the optimiser moves, hands everything on
    settings.py         what it watches for and keeps
    ring.py             the last updates: batches, random numbers and autocast, enough to run a forward again bit for bit
    batch_tree.py       any batch as a plain tree and a list of tensors; its rows, their tokens and their names
    row_losses.py       losses of the rows of a batch, from the graph of its loss
    sample_tags.py      samples that keep their numbers on the way through a data loader
    loader_order.py     the order in which a loader draws its batches, noted and taken up again
    moment.py           generators and autocast at one moment, and how to go back there
    gradient_norm.py    the norm that the user's own clipping computes
    again.py            a forward made again, while the training stands still
    scene.py            what is done at an event: the step's forward again, other batches, losses of tokens
    token_losses.py     losses of tokens, taken from `F.cross_entropy` while a forward runs
    first_verdict.py    data or state: what the numbers of the scene say (pure)
    training_state.py   what a training is: model, optimiser, named objects, generators
    parts.py            what a recorder is made of, handed around
    watch.py            listens to the loop through hooks of torch
    judgement.py        the event that an update begins, what is done about it, and its record
    over_ranks.py       what an update came to over all ranks
    kept_training.py    the seams of a replay: kept states, kept batches, the script's step function
    takeover.py         what happens at the first step of a script that a replay started
    launching.py        starts a script again for a replay
    keeper.py           kept states and batches, in the background, within a budget of disk
    leaving_out.py      a dataset without the samples that a run skips
    batch_file.py       the file of kept batches (docs/formats/flight.md)

It stands above `forensics`, whose causes and replay it uses, and below `report`. Training watched equals training unwatched, bit for bit.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
