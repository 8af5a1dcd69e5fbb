"""`SondeCallback` for `transformers.Trainer` and its subclasses (such as TRL's trainers).

    trainer = Trainer(…, callbacks=[SondeCallback("runs/x")])

Trainer callbacks see neither batches nor losses before averaging. During training, the Trainer's
`training_step` is therefore routed through the recorder, and the accelerator's `backward` is
wrapped to read the loss; both are restored at the end. The gradient norm, the learning rate and the
end of an update come from the recorder's own hooks. The Trainer's checkpoints and `report_to` are
not affected.

In a replay, the script runs as usual up to its first training step; nothing is saved, logged or
evaluated before that.
"""

import contextlib
import copy
import inspect
import logging
from collections import UserDict
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any, Final

import torch
from transformers import Trainer, TrainerCallback

from sonde.integrations.hosts import (
    Hosted,
    checkpoint_to_replay,
    load_watch,
    note_checkpoint,
    note_state,
    resume_recording,
    save_watch,
    skip_list_of,
)
from sonde.integrations.trl_trainers import (
    TokenLossHook,
    fold_pairs,
    shows_token_losses,
    trains_on_pairs,
    unfold_pairs,
)
from sonde.recorder.options import OnEvent, RecorderOptions
from sonde.recorder.recorder import Recorder, deepspeed_refused
from sonde.recorder.samples import TAG, tag
from sonde.records.journal import RECORDER_NOTICE
from sonde.records.replay_order import order_of_process
from sonde.run import Run

_logger = logging.getLogger("sonde")

OLDEST: Final = "4.46"
"""The first release that passes the number of items in the batch to `training_step`."""
_HOST: Final = "huggingface"
_OWN: Final = "sonde"
"""The key under which a batch stores the Trainer's own values that a replay needs."""
_WHOLE: Final = "sonde.whole"
"""The key of a batch that is no dict, nor wraps one."""


# transformers is Any to the type checker
class SondeCallback(Hosted, TrainerCallback):  # type: ignore[misc]
    """A callback that records one Trainer into one run directory.

    ```python
    import torch
    from transformers import Trainer, TrainingArguments
    from sonde.integrations.huggingface import SondeCallback

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def forward(self, x, labels):
            return {"loss": (self.layer(x) - labels).square().mean()}

    rows = [{"x": torch.randn(4), "labels": torch.randn(1)} for _ in range(32)]
    arguments = TrainingArguments("out", max_steps=4, use_cpu=True, report_to=[])
    callback = SondeCallback("runs/mine")
    Trainer(Model(), arguments, train_dataset=rows, callbacks=[callback]).train()
    ```
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        decode: Callable[[list[int]], str] | None = None,
        on_event: OnEvent = "record",
        options: RecorderOptions | None = None,
    ) -> None:
        """Prepare to record; the run is opened when training begins.

        Args:
            directory: The directory of the run.
            decode: Converts a list of tokens to text. Without it, the Trainer's `processing_class`
                does.
            on_event: What to do at an event, and who gets a message, as for a `Recorder`.
            options: The options of the recorder.
        """
        super().__init__("transformers", OLDEST, directory, on_event, options)
        self._decode = decode
        self._model: Any = None
        self._num_micro = 1
        self._ids: Any = None
        self._like: Any = None
        self._token_losses: TokenLossHook | None = None

    def on_init_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """In a replay, disable trackers and everything that would write, and resume from the
        checkpoint that the replay begins at.
        """
        if order_of_process() is None:
            return
        trainer = _trainer_above()
        _silence(trainer)
        if checkpoint_to_replay():
            _resume_from(trainer, checkpoint_to_replay())

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Open the run and start recording."""
        self._end()
        if self._is_off:
            return
        trainer = self._trainer = _trainer_above()
        if trainer.is_deepspeed_enabled:
            raise deepspeed_refused("TrainingArguments.deepspeed")
        if order_of_process() is not None:
            _silence(trainer)
        self.run = Run(
            self._directory,
            config=trainer.args.to_sanitized_dict(),
            seeds={"torch": trainer.args.seed},
        )
        if state.is_world_process_zero:
            _tell_long_warm_up(self.run, args, state.max_steps)
        self._training_step = self._wrap(trainer, "training_step", self._watched_step)
        self._backward = self._wrap(trainer.accelerator, "backward", self._watched_backward)
        tag(kwargs.get("train_dataloader"), skip_list_of(self.run))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Complete the update, also if a gradient scaler skipped it."""
        if self._recorder is not None:
            self._recorder.end_update()
            if control.should_save:
                # After a kill it resumes behind this step, so the record must be there.
                self._recorder.flush()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Copy what the Trainer logs into the run."""
        if self.run is not None and state.is_world_process_zero:
            logs = kwargs.get("logs") or {}
            numbers = {
                name: value for name, value in logs.items() if isinstance(value, (int, float))
            }
            self.run.logger.log(step=state.global_step, data=numbers)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record the checkpoint that the Trainer saved."""
        note_state(self._recorder, _checkpoint(args, state))
        if self.run is not None and state.is_world_process_zero:
            path = _checkpoint(args, state)
            note_checkpoint(self.run, _HOST, state.global_step, path)
            save_watch(self.run, path)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop recording and close the run."""
        self._end()

    def _end(self) -> None:
        if self._token_losses is not None:
            self._token_losses.close()
            self._token_losses = None
        super()._end()

    def _watched_step(
        self, model: Any, inputs: Any, num_items_in_batch: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        """Replaces the Trainer's `training_step`."""
        # a subclass with more arguments: its step cannot be replayed, so it is only passed through
        if args or kwargs:
            return self._training_step(model, inputs, num_items_in_batch, *args, **kwargs)
        trainer = self._trainer
        recorder = self._recorder or self._begin(model)
        self._ids = inputs.pop(TAG, None) if isinstance(inputs, MutableMapping) else None
        self._like = inputs
        is_flat = type(inputs) is dict or isinstance(inputs, UserDict)
        num_micro = getattr(
            trainer, "current_gradient_accumulation_steps", trainer.args.gradient_accumulation_steps
        )
        batch = dict(inputs) if is_flat else {_WHOLE: inputs}
        rows = None if num_items_in_batch is None else _num_rows(batch)
        is_last = bool(trainer.accelerator.sync_gradients)
        own = {"items": num_items_in_batch, "micro": num_micro, "last": is_last, "rows": rows}
        if is_flat and trains_on_pairs(trainer):
            batch, own["pairs"] = fold_pairs(inputs)
        return recorder.step(self._step, {**batch, _OWN: own})

    def _watched_backward(self, loss: torch.Tensor, **kwargs: Any) -> None:
        """Replaces the accelerator's `backward`. The loss is that of one micro-batch."""
        if self._recorder is not None:
            tokens = None if self._token_losses is None else self._token_losses.take()
            whole = loss if self._num_micro == 1 else loss * self._num_micro
            self._recorder.loss(whole, token_losses=tokens)
        self._backward(loss, **kwargs)

    def _begin(self, model: Any) -> Recorder:
        trainer = self._trainer
        num_updates = self._trainer.state.global_step
        decode = self._decode or getattr(trainer.processing_class, "decode", None)
        scaler = getattr(trainer.accelerator, "scaler", None)
        assert self.run is not None
        self._model = model
        self._num_micro = 1
        self._recorder = Recorder(
            self.run,
            model,
            getattr(trainer.optimizer, "optimizer", trainer.optimizer),
            decode=decode,
            sample_ids=lambda _: self._ids,
            on_event=self._on_event,
            options=self._options,
            scheduler=trainer.lr_scheduler,
            **({} if scaler is None else {"scaler": scaler}),
        )
        self._recorder.leave_saves_to_the_host()
        if shows_token_losses(trainer):
            self._token_losses = TokenLossHook(model)
        if num_updates and not self.run.is_replay:
            resume_recording(self._recorder, num_updates)
            load_watch(self.run, _checkpoint(trainer.args, trainer.state))
        return self._recorder

    def _step(self, batch: dict[str, Any]) -> Any:
        """Process one micro-batch. In a replay this includes the update, which the Trainer
        otherwise makes.
        """
        trainer = self._trainer
        model = self._model
        flat = dict(batch)
        own = flat.pop(_OWN)
        flat = unfold_pairs(flat, own.get("pairs", []))
        inputs = self._as_collated(flat)
        num_items = own["items"]
        is_last = own["last"]
        self._num_micro = trainer.current_gradient_accumulation_steps = own["micro"]
        if self.run is None or not self.run.is_replay:
            return self._training_step(model, inputs, num_items)
        if num_items is not None and _num_rows(flat) != own["rows"]:  # some samples were skipped
            num_items = num_items * (_num_rows(flat) / own["rows"])
        accelerator = trainer.accelerator
        accelerator.sync_gradients = is_last
        with contextlib.nullcontext() if is_last else accelerator.no_sync(model):
            loss = self._training_step(model, inputs, num_items)
        if is_last:
            if trainer.args.max_grad_norm and trainer.args.max_grad_norm > 0:
                accelerator.clip_grad_norm_(model.parameters(), trainer.args.max_grad_norm)
            trainer.optimizer.step()
            if not isinstance(trainer.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
                trainer.lr_scheduler.step()
            model.zero_grad()
        return loss

    def _as_collated(self, flat: dict[str, Any]) -> Any:
        """Return a batch in the type that the collator makes: a step may use its methods."""
        if _WHOLE in flat:
            return flat[_WHOLE]
        if not isinstance(self._like, UserDict):
            return flat
        made = copy.copy(self._like)
        made.data = flat
        return made


def _trainer_above() -> Any:
    """Find the calling Trainer on the stack, because callbacks do not receive it."""
    frame = inspect.currentframe()
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, Trainer):
            return caller
        frame = frame.f_back
    raise RuntimeError("SondeCallback must be called by a transformers.Trainer")


def _silence(trainer: Any) -> None:
    """Remove all trackers and disable saving and evaluation; the process will end at one of its
    first steps.
    """
    for callback in list(trainer.callback_handler.callbacks):
        if type(callback).__module__.startswith("transformers.integrations"):
            trainer.remove_callback(callback)
    trainer.args.eval_on_start = False
    trainer.args.save_strategy = "no"
    trainer.args.eval_strategy = "no"


def _resume_from(trainer: Any, checkpoint: str) -> None:
    """Let `trainer.train` resume from a checkpoint, unless the script names one itself."""
    train = trainer.train

    def resumed(resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        is_named = isinstance(resume_from_checkpoint, (str, Path))
        return train(resume_from_checkpoint if is_named else checkpoint, *args, **kwargs)

    trainer.train = resumed


def _num_rows(inputs: Any) -> int:
    return next(
        (
            len(value)
            for value in inputs.values()
            if isinstance(value, torch.Tensor) and value.dim()
        ),
        0,
    )


def _tell_long_warm_up(run: Run, args: Any, num_steps: int) -> None:
    """Tell if the warm-up of the rate lasts longer than the training."""
    num_warming = args.get_warmup_steps(num_steps)
    if args.lr_scheduler_type == "constant" or not 0 < num_steps <= num_warming:
        return
    message = (
        f"sonde: the learning rate warms up for {num_warming:,} steps, and the training has"
        f" {num_steps:,}: it never gets to {args.learning_rate:.3g}. Look at warmup_steps and"
        " max_steps"
    )
    _logger.warning("%s", message)
    run.event(RECORDER_NOTICE, what="check learning_rate", message=message, since=1)


def _checkpoint(args: Any, state: Any) -> Path:
    return Path(args.output_dir, f"checkpoint-{state.global_step}")
