"""Loss spikes: detected automatically, recorded with the steps before them, and decoded to the text
that caused them.

    with sonde.Run("runs/x") as run:
        recorder = run.spikes()
        for step, batch in enumerate(batches, 1):
            event = recorder.observe(step, loss, sample_ids=ids, sample_losses=losses, lr=lr)
            if event:
                print(event.kind, event.first_step, event.z)

    from sonde.spikes import read_spikes, read_worst

    spike = read_spikes("runs/x").spikes[0]         # over ranks and restarts; needs no torch
    spike.samples()[0]                              # the worst sample
    read_worst("runs/x", 20)                        # the samples with the highest losses over the
                                                    # whole run

The detection rules are pure (`detectors.py`, `robust_rule.py`). ATorch's interface is in
`sonde.compat.atorch`.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
