"""`CheckpointCallback`: has the trainer restore at the start, save by steps and epochs, and save at
the end.

    CheckpointCallback(folder="checkpoints", step_freq=1000, checkpoints_to_keep=4)

A checkpoint after n updates is `folder/step-n`. The newest `checkpoints_to_keep` are kept (0 or
less keeps all), and with `metric` also the best one. With `load_from_folder` the first start
restores from there; a restarted run resumes from what it saved itself.
"""

import logging
import os
from pathlib import Path
from typing import ClassVar, Literal

from sonde.callbacks.base import Callback, Order
from sonde.callbacks.context import CheckpointPlan, Context
from sonde.checkpoint.folder import Keep
from sonde.errors import SettingError, check_at_least
from sonde.records import disk
from sonde.records.storage import is_url

_logger = logging.getLogger("sonde")


class CheckpointCallback(Callback):
    """Sets where checkpoints are, and when to save one.

    ```python
    from sonde import CheckpointCallback

    saver = CheckpointCallback("checkpoints", step_freq=1000, checkpoints_to_keep=4)
    ```

    Pass it on: `trainer.train(stop=…, callbacks=[saver])`.
    """

    order: ClassVar[Order] = Order.SAVE
    critical: ClassVar[bool] = True  # a run that cannot save must not continue as if it could

    def __init__(
        self,
        folder: str | os.PathLike[str] | None,
        load_from_folder: str | os.PathLike[str] | None = None,
        step_freq: int = -1,
        epoch_freq: int = -1,
        checkpoints_to_keep: int = 4,
        force_load: bool = False,
        *,
        metric: str | None = None,
        mode: Literal["min", "max"] = "min",
    ) -> None:
        """Prepare to restore and save. With both frequencies at -1, it only restores.

        Args:
            folder: Where checkpoints are saved, and restored from.
            load_from_folder: Where the first start restores from, if not from `folder`.
            step_freq: Save every this many updates; -1 is off.
            epoch_freq: Save every this many epochs; -1 is off.
            checkpoints_to_keep: Keep the newest so many; 0 or less keeps all.
            force_load: Raise if no checkpoint can be restored.
            metric: An evaluation result; the checkpoint with the best value is kept too.
            mode: Whether a lower (`"min"`) or a higher (`"max"`) value is better.
        """
        if folder is None:  # `checkpoint_dir` of a trainer without a run
            raise SettingError(
                "folder is None: there is nowhere to save to",
                hint="name a folder, or give the trainer a run: Trainer(…, run=Run('runs/a'))",
            )
        given = {"step_freq": step_freq, "epoch_freq": epoch_freq}
        check_at_least(1, **{name: value for name, value in given.items() if value != -1})
        self._step_freq = step_freq
        self._epoch_freq = epoch_freq
        self._plan = CheckpointPlan(
            folder=os.fspath(folder),
            load_from=load_from_folder,
            must_load=force_load,
            saves=max(step_freq, epoch_freq) > 0,
            keep=Keep(newest=checkpoints_to_keep, metric=metric, mode=mode),
        )

    def on_setup(self, context: Context) -> None:
        """Tell the trainer where to restore from and save to."""
        if not self._plan.saves and context.rank == 0:
            _logger.warning(
                "CheckpointCallback(%s) only restores: neither step_freq nor epoch_freq was given,"
                " nothing will be saved",
                self._plan.folder,
            )
        if context.rank == 0 and not is_url(self._plan.folder):
            disk.make_directories(Path(self._plan.folder))
        context.plan_checkpoints(self._plan)

    def on_step_end(self, context: Context) -> None:
        """Ask to save every `step_freq` updates."""
        if self._step_freq > 0 and context.step % self._step_freq == 0:
            context.ask_to_save(f"step_freq={self._step_freq}")

    def on_epoch_end(self, context: Context) -> None:
        """Ask to save every `epoch_freq` epochs."""
        if self._epoch_freq > 0 and context.num_epochs_done % self._epoch_freq == 0:
            context.ask_to_save(f"epoch_freq={self._epoch_freq}")
