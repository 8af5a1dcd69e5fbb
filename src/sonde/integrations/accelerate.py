"""`SondeTracker` for Accelerate: writes what `accelerator.log` receives into a run.

    run = sonde.Run("runs/x")
    accelerator = Accelerator(log_with=SondeTracker(run))

Registered by its class, Accelerate opens the run: the project's name is its directory.

    register_tracker_class(SondeTracker)
    accelerator = Accelerator(log_with="sonde")
    accelerator.init_trackers("runs/x", config=vars(args))

The training loop is your own, so use a recorder with it as in any other loop
(docs/integrations.md).
"""

import os
from collections.abc import Mapping
from typing import Any, Final

from accelerate.tracking import GeneralTracker

from sonde.integrations.hosts import require
from sonde.run import Run

OLDEST: Final = "1.0"


class SondeTracker(GeneralTracker):  # type: ignore[misc]  # accelerate is Any to the type checker
    """An Accelerate tracker that writes into a run."""

    name = "sonde"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, run: Run | str | os.PathLike[str]) -> None:
        """`run` is a run that you opened and will close, or a directory: then the tracker opens
        it, with the settings passed to `init_trackers`, and closes it when training ends.
        """
        require("accelerate", OLDEST)
        super().__init__()
        self._run = run if isinstance(run, Run) else None
        self._owned_directory = None if isinstance(run, Run) else run

    @property
    def tracker(self) -> Run:
        """The run."""
        return self._open({})

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record the settings passed to `init_trackers`: in the manifest of a run that the tracker
        opens, otherwise as an event.
        """
        if self._run is None:
            self._open(values)
        else:
            self._run.event("settings", settings=dict(values))

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log one record."""
        del kwargs
        self.tracker.logger.log(step=step or 0, data=dict(values))

    def finish(self) -> None:
        """Flush the log when training ends, and close the run if the tracker opened it."""
        self.tracker.logger.flush()
        if self._owned_directory is not None:
            self.tracker.close()

    def _open(self, settings: Mapping[str, Any]) -> Run:
        if self._run is None:
            assert self._owned_directory is not None
            self._run = Run(self._owned_directory, config=dict(settings))
        return self._run
