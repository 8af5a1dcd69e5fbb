"""`WandbCallback`: sends losses, the learning rate and hyper-parameters to Weights & Biases.

    WandbCallback(train_tensors=["loss"], wandb_name="first", wandb_project="translation",
        args=args)

It sends on rank 0, after the first update and every `update_freq`. A resumed run continues the same
W&B run. A missing or failing wandb never stops training: its error is reported once, and nothing is
sent from then on. The step is logged as a value and used as the axis of all metrics, because W&B
silently drops records whose own step goes back, as it does when a run resumes.
"""

import logging
import re
import time
from abc import ABC
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sonde.callbacks.base import Callback
from sonde.callbacks.context import Context
from sonde.callbacks.periodic import PeriodicCallback
from sonde.errors import check_at_least
from sonde.records.manifest import read_manifest

_logger = logging.getLogger("sonde")


class SendsToWandb(Callback, ABC):
    """A callback that sends to a W&B run. The run is finished however training ends, and a resumed
    training continues it.
    """

    session: "WandbSession"
    """What sends."""

    def on_run_end(self, context: Context) -> None:
        """Finish the W&B run, if it was started here."""
        self.session.finish()

    def on_exception(self, context: Context, error: BaseException) -> None:
        """Finish the W&B run, so that everything is sent before the process ends."""
        self.session.finish()

    def state_dict(self) -> dict[str, Any]:
        """Return the id of the W&B run."""
        return {"wandb_id": self.session.run_id}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume the same W&B run."""
        self.session.run_id = state.get("wandb_id")


class WandbCallback(SendsToWandb, PeriodicCallback):
    """Sends named values of the step to W&B every `update_freq` updates.

    ```python
    from sonde import WandbCallback

    to_wandb = WandbCallback(["loss"], wandb_project="mine", args={"lr": 1e-3}, update_freq=25)
    ```

    Pass it on: `trainer.train(stop=…, callbacks=[to_wandb])`.
    """

    def __init__(
        self,
        train_tensors: str | Sequence[object] = (),
        wandb_name: str | None = None,
        wandb_project: str | None = None,
        args: Any = None,
        update_freq: int = 25,
    ) -> None:
        """Prepare to send.

        Args:
            train_tensors: Names of values of the step, or handles with a `name`.
            wandb_name: The name of the W&B run.
            wandb_project: The W&B project.
            args: The hyperparameters: a dict or a namespace.
            update_freq: Send after the first update and every this many.
        """
        check_at_least(1, update_freq=update_freq)
        super().__init__(update_freq, tensors=train_tensors)
        self.session = WandbSession(wandb_name, wandb_project, args)

    def on_run_start(self, context: Context) -> None:
        """Start or resume the W&B run."""
        self.session.start(context)

    def log(self, context: Context) -> None:
        """Send the values and the learning rate."""
        values = [
            value.item() if value.numel() == 1 else value.cpu().numpy()
            for value in self.values(context)
        ]
        self.session.log(
            {**dict(zip(self.names, values, strict=True)), "LR": context.lr}, context.step
        )

    def on_epoch_end(self, context: Context) -> None:
        """Send the duration of the epoch."""
        seconds = time.monotonic() - self.epoch_started
        self.session.log({"epoch": context.epoch, "epoch_time": seconds}, context.step)


class WandbSession:
    """Sends values to one W&B run."""

    def __init__(self, name: str | None, project: str | None, config: Any = None) -> None:
        self.run_id: str | None = None
        """The id of the run, used to resume it."""
        self._name = name
        self._project = project
        self._config = config
        self._run: Any = None
        self._owns_run = False

    def start(self, context: Context) -> None:
        """Join the active W&B run of this process, or start one. A training with a run directory
        keeps its id.
        """
        self._try(self._start, context)

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Send some values of one step."""
        if self._run is not None:
            self._try(self._run.log, {**values, "step": step})

    def finish(self) -> None:
        """Finish the run, if it was started here."""
        if self._run is not None and self._owns_run:
            self._try(self._run.finish)
        self._run = None

    def _start(self, context: Context) -> None:
        import wandb  # imported here because it may be missing, and takes a second

        self._run = wandb.run
        if self._run is None:
            self.run_id = self.run_id or _id_of(context)
            self._run = wandb.init(
                name=self._name, project=self._project, id=self.run_id, resume="allow"
            )
            self._owns_run = True
            self._run.define_metric("step")
            self._run.define_metric("*", step_metric="step")
        self.run_id = self._run.id
        if self._config is not None:
            plain = self._config if isinstance(self._config, Mapping) else vars(self._config)
            self._run.config.update(dict(plain), allow_val_change=True)

    def _try(self, action: Callable[..., object], *arguments: object) -> None:
        try:
            action(*arguments)
        except Exception as error:  # noqa: BLE001
            # wandb may be missing, offline or broken: training goes on
            self._run = None
            _logger.warning("nothing more is sent to W&B: %s: %s", type(error).__name__, error)


def _id_of(context: Context) -> str | None:
    """Return the run's id in characters that W&B accepts; None without a run directory."""
    if context.run_directory is None:
        return None
    return re.sub(r"[^\w-]", "-", read_manifest(context.run_directory).run_id)
