"""`WandbCallback`: losses, the learning rate and hyper-parameters in Weights & Biases.

    WandbCallback(train_tensors=["loss"], wandb_name="first", wandb_project="translation", args=args)

On rank 0, after the first update and every `update_freq`. A run that is resumed goes on in the same W&B run. A missing or failing wandb never
stops training.
"""

import time
from collections.abc import Sequence
from typing import Any, ClassVar, final

from typing_extensions import override

from sonde.callbacks.base import Callback, Context
from sonde.callbacks.named_values import check_every, is_due, names_of, pick
from sonde.callbacks.wandb_session import WandbSession


@final
class WandbCallback(Callback):
    """Sends named values of the step to W&B every so often."""

    asks: ClassVar[bool] = False

    def __init__(
        self,
        train_tensors: str | Sequence[object] = (),
        wandb_name: str | None = None,
        wandb_project: str | None = None,
        args: Any = None,
        update_freq: int = 25,
    ) -> None:
        """`args` are the hyper-parameters: a dict or a namespace."""
        check_every("update_freq", update_freq)
        self._names = names_of(train_tensors)
        self._update_freq = update_freq
        self._session = WandbSession(wandb_name, wandb_project, args)
        self._epoch_started = time.monotonic()

    @override
    def on_run_start(self, context: Context) -> None:
        """Start or resume the W&B run."""
        if context.rank == 0:
            self._session.start(context)

    @override
    def on_epoch_start(self, context: Context) -> None:
        """Start the clock."""
        self._epoch_started = time.monotonic()

    @override
    def on_step_end(self, context: Context) -> None:
        """Send the values."""
        if context.rank == 0 and is_due(context.step, self._update_freq):
            values = pick(context.tensors, self._names)
            named = {name: _plain(value) for name, value in zip(self._names, values, strict=True)}
            self._session.log({**named, "LR": context.lr}, context.step)

    @override
    def on_epoch_end(self, context: Context) -> None:
        """Send how long the epoch took."""
        if context.rank == 0:
            seconds = time.monotonic() - self._epoch_started
            self._session.log({"epoch": context.epoch, "epoch_time": seconds}, context.step)

    @override
    def on_run_end(self, context: Context) -> None:
        """Finish the W&B run."""
        self._session.finish()

    @override
    def on_exception(self, context: Context, error: BaseException) -> None:
        """Finish it too: what was sent must not wait for a process that is ending."""
        self._session.finish()

    @override
    def state_dict(self) -> dict[str, Any]:
        """The id of the W&B run."""
        return {"wandb_id": self._session.run_id}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on with the same W&B run."""
        self._session.run_id = state.get("wandb_id")


def _plain(value: Any) -> Any:
    return value.item() if value.numel() == 1 else value.cpu().numpy()
