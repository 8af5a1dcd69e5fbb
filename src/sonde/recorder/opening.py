"""The one line at the start that says what is watched, what is not, and what it may cost."""

import logging
import sys
from typing import TextIO

from sonde import ranks
from sonde.recorder.budget import size_in_words, steps_that_fit
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
    kept = _what_is_kept(training, keeper)
    parts = [f"recording {training.run.directory}: {', '.join(watched)}"]
    if missing:
        parts.append(f"not watched: {', '.join(missing)}")
    parts.append(kept)
    _logger.info("sonde: %s", "; ".join(parts))


def _what_is_kept(training: Training, keeper: Keeper) -> str:
    """Say what is kept, and how far replay reaches back."""
    options = training.options
    limit = f"at most {size_in_words(options.max_bytes)} in {training.run.layout.kept}"
    if keeper.keeps_states and keeper.plan is not None:
        return f"{_which_states(keeper)}, {limit}; {_reach_of_states(training, keeper)}"
    if not options.max_bytes:
        return "neither states nor batches are kept, so steps cannot be replayed"
    each = keeper.bytes_per_update() * training.run.world_size
    reach = options.max_bytes // each if each else 0
    batches = f"the batches of about {reach:,} steps" if reach else "batches"
    return (
        f"no states are kept, but {batches}, {limit}; replay from a checkpoint of your own: sonde"
        f" replay {training.run.directory} --step N -- COMMAND, which resumes from it"
    )


def _which_states(keeper: Keeper) -> str:
    """Say how large a state is, how often one is kept, what that costs, and how many remain."""
    assert keeper.plan is not None
    schedule = keeper.schedule
    states = "the last one" if keeper.num_states == 1 else f"the last {keeper.num_states}"
    num_ranks = ranks.world_size() if keeper.is_sharded else 1
    size = keeper.plan.state_bytes
    return (
        f"a state of {size_in_words(size)} every {schedule.every:,} steps,"
        f" {schedule.in_words(size, num_ranks)}, {states}, and the batches since"
    )


def _reach_of_states(training: Training, keeper: Keeper) -> str:
    """Say how far replay reaches back."""
    assert keeper.plan is not None
    num_states = keeper.num_states
    of_batches = steps_that_fit(
        keeper.plan.state_bytes,
        num_states,
        keeper.schedule.cost.batch_bytes,
        training.options.max_bytes,
    )
    reach = int(num_states * min(keeper.schedule.every, of_batches))
    return f"replay reaches back up to {reach:,} steps"
