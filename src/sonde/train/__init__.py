"""The trainer: exact updates on one process or many, and a loop with stop conditions.

    from sonde.train import Schedule, StepOutput, StopWhen, Trainer

    class Task:                                                 # what a model must offer
        model = torch.nn.Linear(4, 1)

        def compute(self, batch):
            losses = (self.model(batch) - batch.sum(1, keepdim=True)).square()
            return StepOutput(loss_sum=losses.sum(), weight=len(batch))

    task = Task()
    optimizer = torch.optim.AdamW(task.model.parameters())
    trainer = Trainer(task, data, optimizer, schedule=Schedule(schedule="constant", lr=0.1),
        run=sonde.Run("runs/a"))
    trainer.train(stop=StopWhen(max_updates=30))

`data` is a `TokenLoader`, a DataLoader or any iterable.
`train_run(RecipeSettings(data="data/m30k"), "runs/a")` does what `sonde train` does: it uses the
built-in recipe, which a replay can rebuild.
"""

from sonde._public import public_names

__getattr__, __dir__, __all__ = public_names(__name__, __file__)
