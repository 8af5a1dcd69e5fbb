"""How often states are kept: as often as the user says, or as time and disk allow.

Without a number from the user, a state is kept every 200 steps. The interval doubles until keeping
states takes at most 1 % of the time, as it was measured, and it is halved if the batches of so many
steps do not fit into the disk budget. It is planned after the first step, and measured again some
steps later and at every state.

All ranks plan with the same numbers, those of the slowest rank, and so keep the same states. They
exchange them where they meet for a state anyway. What is kept never changes the training.
"""

import logging
from time import perf_counter
from typing import Any, Final, NamedTuple

from sonde import ranks
from sonde.recorder.budget import StatePlan, size_in_words, steps_that_fit
from sonde.recorder.options import RecorderOptions
from sonde.run import Run

START_EVERY: Final = 200
"""How many steps lie between two states, if neither time nor disk forbid it."""
MAX_SHARE: Final = 0.01
"""How much of the time states may take."""
NUM_UNTIL_CHECK: Final = 20
"""After so many steps their time is known: the first one is slower than the others."""
EVENT: Final = "state_every"
"""The run event of another interval."""

_logger = logging.getLogger("sonde")


class StateCost(NamedTuple):
    """What states and steps cost, as it was measured on the slowest rank."""

    stall_seconds: float
    """How long training waits for a state; 0 if that is not known."""
    step_seconds: float
    """How long a step takes, with all that happens between steps; 0 if that is not known."""
    batch_bytes: int
    """What the batches of a step take on disk, those of all ranks; 0 if that is not known."""

    def share(self, every: int) -> float:
        """Return how much of the time states take; 0 if that is not known."""
        seconds = every * self.step_seconds
        return self.stall_seconds / seconds if seconds else 0.0


class Interval(NamedTuple):
    """How often a state is kept, and how many."""

    every: int
    num_states: int


def plan_interval(
    cost: StateCost, plan: StatePlan, max_bytes: int, every: int, *, at_least: int = 1
) -> Interval:
    """Return how often to keep a state that was kept every `every` steps until now. `plan` says how
    large one is and how many may be kept; the disk cannot write them more often than every
    `at_least` steps.

    Fewer states are kept rather than batches lost. If nothing else is left, the time counts.
    """
    least = float(at_least)
    if cost.step_seconds:
        least = max(least, cost.stall_seconds / (MAX_SHARE * cost.step_seconds))
    num_states = plan.num_states
    most = steps_that_fit(plan.state_bytes, num_states, cost.batch_bytes, max_bytes)
    while most < least and num_states > 1:
        num_states -= 1
        most = steps_that_fit(plan.state_bytes, num_states, cost.batch_bytes, max_bytes)
    wanted = _steps_between(least, most)
    if wanted < every <= most:
        # Times vary: twice as much time as measured must allow a shorter interval.
        wanted = min(every, _steps_between(2 * least, most))
    return Interval(wanted, num_states)


def _steps_between(least: float, most: float) -> int:
    """Return the usual number of steps, doubled to at least `least`, or halved to at most `most`
    where that leaves it above `least`.
    """
    every = START_EVERY
    while every < least:
        every *= 2
    while every > max(most, 1) and every // 2 >= least:
        every //= 2
    return every


class StateSchedule:
    """Says when the next state is kept."""

    def __init__(self, options: RecorderOptions, run: Run) -> None:
        self.is_adaptive = options.state_every is None
        """Whether the interval follows what is measured, because the user gave none."""
        self.every = START_EVERY if options.state_every is None else options.state_every
        """A state is kept every this many steps; 0 for never."""
        self.cost = StateCost(0.0, 0.0, 0)
        """What was measured last."""
        self.check_at = -1
        """After how many steps the interval is looked at though no state is due."""
        self._at_least = 1
        self._run = run
        self._max_bytes = options.max_bytes
        self._stall_seconds = 0.0
        self._kept_at = 0.0
        self._kept_after = 0
        self._step_seconds = 0.0
        self._has_told = False

    def is_due(self, num_updates: int) -> bool:
        """Return whether the state after `num_updates` updates is to be kept."""
        return self.every > 0 and num_updates % self.every == 0

    def kept(self, num_updates: int, stall_seconds: float, *, is_first: bool) -> None:
        """Note that a state was kept, for which training waited so long."""
        if not is_first:
            self._note_steps(num_updates)
        self._stall_seconds = stall_seconds
        self._kept_at = perf_counter()
        self._kept_after = num_updates
        self.check_at = num_updates + NUM_UNTIL_CHECK if is_first and self.is_adaptive else -1

    def adapt(self, num_updates: int, plan: StatePlan, batch_bytes: int, *, tells: bool) -> int:
        """Plan the interval anew, and return how many states to keep. `batch_bytes` are those of
        this rank and of one step; `tells` says whether a change is to be told. Every rank must
        call this.
        """
        if num_updates > self._kept_after:
            self._note_steps(num_updates)
        own = [self._stall_seconds, self._step_seconds, batch_bytes]
        of_ranks: list[Any] = ranks.gather(own)
        stalls, steps, sizes = zip(*of_ranks, strict=True)
        self.cost = StateCost(max(stalls), max(steps), sum(sizes))
        if not self.is_adaptive:
            return plan.num_states
        found = plan_interval(self.cost, plan, self._max_bytes, self.every, at_least=self._at_least)
        if found.every != self.every:
            self._change(num_updates, found.every, tells=tells)
        return found.num_states

    def slow_down(self, num_updates: int) -> None:
        """Keep states half as often, because the disk is still writing the one before. Every rank
        must call this.
        """
        if self.is_adaptive:
            self._at_least = 2 * self.every
            self._change(num_updates, self._at_least, tells=True)

    def in_words(self, state_bytes: int, num_ranks: int) -> str:
        """Return what a state costs; `num_ranks` is how many ranks share its copy in memory."""
        each = " on each rank" if num_ranks > 1 else ""
        text = f"copied in memory ({size_in_words(state_bytes / num_ranks)}{each})"
        if not self.cost.stall_seconds:
            return text
        return f"{text} while training waits {self._wait_in_words()}"

    def _wait_in_words(self) -> str:
        share = self.cost.share(self.every)
        of_time = f"{share:.1%}" if share >= 0.001 else "less than 0.1%"
        return f"{seconds_in_words(self.cost.stall_seconds)}, {of_time} of the time"

    def _note_steps(self, num_updates: int) -> None:
        count = max(num_updates - self._kept_after, 1)
        self._step_seconds = (perf_counter() - self._kept_at) / count

    def _change(self, num_updates: int, every: int, *, tells: bool) -> None:
        self.every = every
        if not tells:
            return
        self._run.event(
            EVENT,
            step=num_updates,
            every=every,
            stall_seconds=self.cost.stall_seconds,
            step_seconds=self.cost.step_seconds,
            batch_bytes=self.cost.batch_bytes,
        )
        if not self._has_told and self._run.rank == 0:
            self._has_told = True
            _logger.debug(
                "sonde: from step %d on, a state is kept every %s steps: training waits %s",
                *(num_updates, f"{every:,}", self._wait_in_words()),
            )


def seconds_in_words(seconds: float) -> str:
    """Return a duration as people read it."""
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{float(f'{seconds / factor:.2g}'):g} {unit}"
    return f"{seconds / 1e-6:.2g} µs"
