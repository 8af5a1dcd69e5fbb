"""NeMo's four callbacks, with the names and arguments of NeMo 0.10.

    from sonde import CheckpointCallback, EvaluatorCallback, SimpleLossLoggerCallback, WandbCallback

    saver = CheckpointCallback(folder=trainer.checkpoint_dir, step_freq=1000)
    trainer.train(stop=StopWhen(max_epochs=2), callbacks=[saver])

They observe a training like any callback (`sonde.callbacks`): the trainer evaluates and saves, a
callback only asks. What NeMo's factory holds, the trainer holds: `trainer.tb_writer`,
`trainer.checkpoint_dir`.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
