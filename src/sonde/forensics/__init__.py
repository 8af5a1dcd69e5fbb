"""From a spike to its cause: replay a step, find the cause by experiment, and plan the rollback.

    from sonde import diagnose
    from sonde.forensics import Replay, write_verdict

    verdict = diagnose(Path("runs/a"))                          # the worst event, or step=1734
    first = verdict.causes[0]
    first.cause, first.confidence, first.evidence, first.suspects
    # `sonde rollback` and the report read it
    write_verdict(Path("runs/a"), verdict)

Each cause is one file in `causes/`, each kind of text one line. "Not known" is an allowed answer.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
