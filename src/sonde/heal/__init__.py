"""Self-healing runs: an anomaly that does not pass is diagnosed, and the run rolls back and resumes according to the verdict.

    from sonde.heal import Heal, told, train_healing
    from sonde.train import RecipeSettings

    train_healing(RecipeSettings(data="data/m30k"), "runs/a", Heal(max_times=5))    # = sonde train --heal 5
    for chapter in told("runs/a"):                                                  # what happened, what was done, what it cost
        print(*chapter)

Every action is written to the run's events before it is carried out. If the process is killed, the next start completes
it.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
