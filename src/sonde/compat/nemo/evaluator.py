"""`EvaluatorCallback`: asks for evaluations and lets two user functions turn them into numbers.

    def on_batch(values, kept):                  # values: {name: [a tensor per rank]}, on rank 0
        kept.setdefault("losses", []).append(torch.stack(values["loss"]).mean().item())

    def on_done(kept):
        return {"eval_loss": sum(kept["losses"]) / len(kept["losses"])}

    EvaluatorCallback(["loss"], on_batch, on_done, tb_writer=writer, eval_step=500)

An evaluation leaves the generators, the model's mode and the data position unchanged. It runs
before the first update (`eval_at_start`), every `eval_step` updates, every `eval_epoch` epochs, and
at the end. Evaluators without `eval_data` share the trainer's evaluation, whichever of them asks;
one with `eval_data` has its own, at its own times. `user_epochs_done_callback` may return anything:
all of it goes to `tb_writer_func`, and the numbers in it go to TensorBoard, W&B and
`context.metrics`, where a checkpoint can be ranked by them.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

from sonde.callbacks.base import Order
from sonde.callbacks.context import Context
from sonde.callbacks.periodic import names_of, numbers_in
from sonde.compat.nemo.wandb import SendsToWandb, WandbSession
from sonde.errors import SettingError, check_at_least

Kept: TypeAlias = dict[Any, Any]
"""What the user's functions store during one evaluation."""


class EvaluatorCallback(SendsToWandb):
    """Asks for evaluations and logs the results of your functions.

    ```python
    from sonde import EvaluatorCallback

    def on_batch(values, kept):
        kept.setdefault("losses", []).extend(values["loss"])

    def on_done(kept):
        return {"eval_loss": float(max(kept["losses"]))}

    evaluator = EvaluatorCallback(["loss"], on_batch, on_done, eval_step=100)
    ```

    Pass it on: `trainer.train(stop=…, callbacks=[evaluator])`.
    """

    order: ClassVar[Order] = Order.EVALUATE
    only_rank_0: ClassVar[bool] = True

    def __init__(
        self,
        eval_tensors: str | Sequence[object],
        user_iter_callback: Callable[[dict[str, list[Any]], Kept], object],
        user_epochs_done_callback: Callable[[Kept], Any],
        tb_writer: Any = None,
        tb_writer_func: Callable[[Any, Any, int], object] | None = None,
        eval_step: int | None = 1,
        eval_epoch: int | None = None,
        wandb_name: str | None = None,
        wandb_project: str | None = None,
        eval_at_start: bool = True,
        *,
        eval_data: Callable[[], Iterable[Any]] | None = None,
    ) -> None:
        """Prepare to evaluate.

        Args:
            eval_tensors: Names of values of a batch, or handles with a `name`.
            user_iter_callback: Called for every batch: (values, a dict to keep things in).
            user_epochs_done_callback: Called at the end with that dict; returns the results.
            tb_writer: The TensorBoard writer.
            tb_writer_func: Writes the results: (writer, results, step); only with a `tb_writer`.
            eval_step: Evaluate every this many updates.
            eval_epoch: Evaluate every this many epochs.
            wandb_name: The name of the W&B run.
            wandb_project: The W&B project.
            eval_at_start: Evaluate before the first update, too.
            eval_data: Returns this rank's held-out batches, in place of the trainer's.
        """
        if eval_step is None and eval_epoch is None:
            raise SettingError(
                "neither eval_step nor eval_epoch was given: it would never evaluate"
            )
        given = {"eval_step": eval_step, "eval_epoch": eval_epoch}
        check_at_least(1, **{name: value for name, value in given.items() if value is not None})
        self.evaluation_tensors = names_of(eval_tensors)
        self.evaluation_data = eval_data
        self._on_batch = user_iter_callback
        self._on_done = user_epochs_done_callback
        self._writer = tb_writer
        self._write = tb_writer_func
        self._eval_step = eval_step
        self._eval_epoch = eval_epoch
        self._at_start = eval_at_start
        self._kept: Kept = {}
        self._uses_wandb = bool(wandb_name or wandb_project)
        self.session = WandbSession(wandb_name, wandb_project)

    def wants_evaluation(self, moment: str, context: Context) -> bool:
        """Return whether its own data are evaluated at this hook."""
        if moment == "on_run_start":
            return self._at_start and context.step == 0
        if moment == "on_step_end":
            return self._eval_step is not None and context.step % self._eval_step == 0
        if moment == "on_epoch_end":
            return self._eval_epoch is not None and context.num_epochs_done % self._eval_epoch == 0
        return True

    def on_run_start(self, context: Context) -> None:
        """Ask for an evaluation before the first update."""
        self._ask("on_run_start", context, "eval_at_start")
        context.close_at_end(self._writer)
        if self._uses_wandb:
            self.session.start(context)

    def on_step_end(self, context: Context) -> None:
        """Ask to evaluate every `eval_step` updates."""
        self._ask("on_step_end", context, f"eval_step={self._eval_step}")

    def on_epoch_end(self, context: Context) -> None:
        """Ask to evaluate every `eval_epoch` epochs."""
        self._ask("on_epoch_end", context, f"eval_epoch={self._eval_epoch}")

    def on_evaluation_start(self, context: Context) -> None:
        """Start with an empty store."""
        self._kept = {}

    def on_evaluation_batch(self, context: Context, values: Mapping[str, Any]) -> None:
        """Pass the values of one batch to the user's function."""
        self._on_batch({name: values[name] for name in self.evaluation_tensors}, self._kept)

    def on_evaluation_end(self, context: Context) -> None:
        """Log the results of the user's function."""
        results = self._on_done(self._kept)
        if results is None:
            return
        numbers = numbers_in(results)
        if self._writer is not None and self._write is not None:
            self._write(self._writer, results, context.step)
        elif self._writer is not None:
            for name, number in numbers.items():
                self._writer.add_scalar(name, number, context.step)
        self.session.log(numbers, context.step)
        context.add_metrics(numbers)

    def _ask(self, moment: str, context: Context, reason: str) -> None:
        """Ask for the trainer's evaluation; data of its own are evaluated without being asked."""
        if self.evaluation_data is None and self.wants_evaluation(moment, context):
            context.ask_to_evaluate(reason)
