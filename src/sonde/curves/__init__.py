"""Curves that other tools recorded: read whatever has a loss in it, and say what happened.

    from sonde.curves import find_sources, judge, loss_curve

    for source in find_sources("trainer_state.json"):
        curve = loss_curve(source.points)
        for finding in judge(curve):
            print(finding.first_step, finding.title)

Readers find a format by its content and return points (`recognise.py`). A point is a step and its
numbers. Which of them is the loss is decided in `names.py`, and what a restart made again in
`loss_curves.py`. The rules are those that watch a training (`spikes`); what an event probably is
follows from the curves around it (`judgement.py`). `together.py` compares runs: what recurs at the
same step under other weights is the data's. Needs neither torch nor the tools that wrote the files.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
