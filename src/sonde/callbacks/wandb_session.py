"""One run of Weights & Biases, as callbacks use it: joined if there is one, resumed by its id, and never in training's way.

Whatever wandb raises is said once, and from then on nothing is sent. The step is a value beside the others and the axis of all of them: W&B's
own step silently drops what goes back, as a resumed run does.
"""

import logging
from collections.abc import Callable, Mapping
from typing import Any, final

from sonde.callbacks.base import Context
from sonde.errors import SondeError
from sonde.records.manifest import read_manifest

_logger = logging.getLogger("sonde")


@final
class WandbSession:
    """Sends values to one run of W&B."""

    def __init__(self, name: str | None, project: str | None, settings: Any = None) -> None:
        self.run_id: str | None = None
        """The id of the run, by which it is resumed."""
        self._name = name
        self._project = project
        self._settings = settings
        self._run: Any = None
        self._owns_run = False

    def start(self, context: Context) -> None:
        """Join the run that is active in this process, or start one; a training with a run directory keeps its id."""
        self._try(self._start, context)

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Send some values of one step."""
        if self._run is not None:
            self._try(self._run.log, {**values, "step": step})

    def finish(self) -> None:
        """End the run, if it was started here."""
        if self._run is not None and self._owns_run:
            self._try(self._run.finish)
        self._run = None

    def _start(self, context: Context) -> None:
        import wandb  # here, because it may be missing, and costs a second

        self._run = wandb.run
        if self._run is None:
            self.run_id = self.run_id or _id_of(context)
            self._run = wandb.init(name=self._name, project=self._project, id=self.run_id, resume="allow")
            self._owns_run = True
            self._run.define_metric("step")
            self._run.define_metric("*", step_metric="step")
        self.run_id = self._run.id
        if self._settings is not None:
            plain = self._settings if isinstance(self._settings, Mapping) else vars(self._settings)
            self._run.config.update(dict(plain), allow_val_change=True)

    def _try(self, action: Callable[..., object], *arguments: object) -> None:
        try:
            action(*arguments)
        except Exception as error:  # noqa: BLE001  wandb may be missing, offline or broken: training goes on
            self._run = None
            _logger.warning("nothing more is sent to W&B: %s: %s", type(error).__name__, error)


def _id_of(context: Context) -> str | None:
    """The run's own id, in letters that W&B takes; None without a run directory."""
    if context.run_directory is None:
        return None
    try:
        run_id = read_manifest(context.run_directory).run_id
    except SondeError:
        return None
    return "".join(letter if letter.isalnum() or letter in "-_" else "-" for letter in run_id)
