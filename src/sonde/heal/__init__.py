"""A run that mends itself: an event that does not pass is diagnosed, and the run goes back and on by what the verdict says.

settings     how far it may go: times, samples, updates
watch        does it pass by itself? The callback that calls for help
decision     from a verdict to what is done: pure
history      what was called for, decided and done, in the run's events; a start that was killed is completed from it
mending      diagnose, decide, write it down, go back: on one rank
supervisor   `sonde train --heal`: train, mend, train on, on all ranks
story        what happened, what was done, what it cost, in words; no torch
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
