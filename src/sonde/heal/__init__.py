"""Self-healing runs: an anomaly that does not pass is diagnosed, and the run rolls back and resumes
according to the verdict.

    from sonde.heal import Heal, describe, train_healing
    from sonde.train import RecipeSettings

    # The same as `sonde train --heal 5`.
    train_healing(RecipeSettings(data="data/m30k"), "runs/a", Heal(max_times=5))
    # What happened, what was done, and what it cost.
    for chapter in describe("runs/a"):
        print(*chapter)

Every action is written to the run's events before it is carried out. If the process is killed, the
next start completes it.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
