"""The one line at the start that says what is watched, what is not, and what it may cost."""

import logging
import sys
from typing import TextIO

from sonde.recorder.keeper import Keeper
from sonde.recorder.training import Training

_logger = logging.getLogger("sonde")


class _UntilConfigured(logging.StreamHandler[TextIO]):
    """Shows messages on stderr as long as the script has not set up logging of its own."""

    def emit(self, record: logging.LogRecord) -> None:
        """Show a message."""
        if not logging.getLogger().handlers:
            self.setStream(sys.stderr)
            super().emit(record)


def make_visible() -> None:
    """Let people see what the recorder tells, unless they have set up logging themselves."""
    if any(isinstance(handler, _UntilConfigured) for handler in _logger.handlers):
        return
    _logger.addHandler(_UntilConfigured(sys.stderr))
    if _logger.level == logging.NOTSET:
        _logger.setLevel(logging.INFO)


def tell_what_is_watched(training: Training, keeper: Keeper, why_no_rows: str) -> None:
    """Tell once, after the first update, when it is known what can be seen. `why_no_rows` says why
    rows are not, and is empty if they are.
    """
    if training.run.rank != 0:
        return
    make_visible()
    watched = ["loss", "gradient norm"]
    missing = []
    if not why_no_rows:
        watched.append("rows")
    elif training.options.spikes.sample_risk is not None:
        missing.append(f"rows ({why_no_rows})")
    kept = "no states are kept, so steps cannot be replayed"
    if keeper.keeps_states:
        options = training.options
        kept = (
            f"a state every {options.state_every} steps and all batches, at most"
            f" {options.max_bytes / 1e9:.3g} GB in {training.run.layout.kept}"
        )
    parts = [f"recording {training.run.directory}: {', '.join(watched)}"]
    if missing:
        parts.append(f"not watched: {', '.join(missing)}")
    parts.append(kept)
    _logger.info("sonde: %s", "; ".join(parts))
