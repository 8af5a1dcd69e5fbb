"""A run that mends itself: an event that does not pass is diagnosed, and the run goes back and on by what the verdict says.

    from sonde.heal import Heal, told, train_healing
    from sonde.train import RecipeSettings

    train_healing(RecipeSettings(data="data/m30k"), "runs/a", Heal(max_times=5))    # = sonde train --heal 5
    for chapter in told("runs/a"):                                                  # what happened, what was done, what it cost
        print(*chapter)

Every act is written into the run's events before it is done; a start that was killed completes it.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
