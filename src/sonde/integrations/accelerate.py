"""`SondeTracker` for Accelerate: writes what `accelerator.log` receives into a run.

    run = sonde.Run("runs/x")
    accelerator = Accelerator(log_with=SondeTracker(run))

The training loop is your own, so use a recorder with it as in any other loop
(docs/integrations.md).
"""

from collections.abc import Mapping
from typing import Any, Final

from accelerate.tracking import GeneralTracker

from sonde.integrations.hosts import require
from sonde.run import Run

OLDEST: Final = "1.0"


class SondeTracker(GeneralTracker):  # type: ignore[misc]  # accelerate is Any to the type checker
    """An Accelerate tracker that writes into an existing run. The caller closes the run."""

    name = "sonde"
    requires_logging_directory = False
    main_process_only = True

    def __init__(self, run: Run) -> None:
        require("accelerate", OLDEST)
        super().__init__()
        self._run = run

    @property
    def tracker(self) -> Run:
        """The run."""
        return self._run

    def store_init_configuration(self, values: Mapping[str, Any]) -> None:
        """Record the settings passed to `init_trackers` as an event of the run."""
        self._run.event("settings", settings=dict(values))

    def log(self, values: Mapping[str, Any], step: int | None = None, **kwargs: Any) -> None:
        """Log one record."""
        del kwargs
        self._run.logger.log(step=step or 0, data=dict(values))

    def finish(self) -> None:
        """Flush the log when training ends."""
        self._run.logger.flush()
