"""Callbacks: observers of a training run.

    from sonde.callbacks import Callback, CheckpointCallback

    class Beep(Callback):
        def on_step_end(self, context):
            if context.step % 1000 == 0:
                print("beep")

    trainer = Trainer(task, data, optimizer, schedule=schedule)
    trainer.train(stop=StopWhen(max_updates=500), callbacks=[Beep(),
        CheckpointCallback("checkpoints", step_freq=100)])

`base.py` shows the hooks of a run as pseudocode. The callbacks are in the files beside it. A
callback that raises is reported once and disabled; it cannot stop the training.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
