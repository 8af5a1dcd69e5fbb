"""Recorded events of a run, with the text of their worst samples and how hot each token of it is.

Only the worst few events get their text: those that a verdict is about, then those with the highest z. Decoding one event takes some
milliseconds. Text that cannot be found is said in the sample's `problem`.
"""

import math
import statistics
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from sonde.errors import SondeError
from sonde.spikes.decoding import DecodedSample, SampleDecoder
from sonde.spikes.spike_log import RecordedSpike, SpikeLog, read_spikes

MAX_EVENTS: Final = 5
MAX_SAMPLES: Final = 8
HOTTEST: Final = 9
"""Heat goes from 0, no more than was expected, to this."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class EventFacts:
    """One event."""

    spike: RecordedSpike
    """What was recorded."""
    samples: tuple[DecodedSample, ...] = ()
    """The worst of its samples, worst first; empty when this event is only listed."""
    num_samples: int = 0
    """How many samples its first step had."""
    cool: float = 0.0
    """A token's loss up to which it is not coloured: what was expected of the step, or the median of its tokens if that is more."""
    hot: float = 1.0
    """The greatest finite loss of a token."""

    def heat(self, loss: float) -> int:
        """From 0 to `HOTTEST`; a loss that is not finite is the hottest."""
        if not math.isfinite(loss):
            return HOTTEST
        if self.hot <= self.cool:
            return 0
        above = min(max((loss - self.cool) / (self.hot - self.cool), 0.0), 1.0)
        # Steeper than a straight line: what is a little above is common, and the eye should go to what is far above.
        return math.ceil(math.pow(above, 1.5) * HOTTEST)


def read_events(run: Path, diagnosed: Collection[int]) -> tuple[tuple[EventFacts, ...], list[str]]:
    """The events of a run in the order of their steps, and what could not be read. `diagnosed` are steps with a verdict."""
    try:
        log = read_spikes(run)
    except (SondeError, OSError) as error:
        return (), [f"the events cannot be read: {getattr(error, 'message', None) or error}"]
    problems = [f"{log.num_bad:,} records of events could not be understood"] if log.num_bad else []
    decoder = SampleDecoder(log.datasets)
    shown = {id(spike) for spike in _worst(log, diagnosed)}
    events = []
    for spike in log.spikes:
        facts, problem = event_facts(spike, decoder) if id(spike) in shown else (EventFacts(spike=spike), "")
        events.append(facts)
        problems += [problem] if problem else []
    return tuple(events), problems


def event_facts(spike: RecordedSpike, decoder: SampleDecoder, max_samples: int = MAX_SAMPLES) -> tuple[EventFacts, str]:
    """One event with the text of its worst samples; and what could not be read, if anything."""
    try:
        return _with_samples(spike, decoder, max_samples), ""
    except (SondeError, OSError, KeyError, TypeError, ValueError) as error:
        return EventFacts(spike=spike), f"the samples of step {spike.event.first_step} cannot be read: {error}"


def _worst(log: SpikeLog, diagnosed: Collection[int]) -> list[RecordedSpike]:
    def rank(spike: RecordedSpike) -> tuple[bool, float]:
        event = spike.event
        has_verdict = any(event.first_step <= step <= event.last_step for step in diagnosed)
        return not has_verdict, -(math.inf if math.isnan(event.z) else event.z)

    return sorted(log.spikes, key=rank)[:MAX_EVENTS]


def _with_samples(spike: RecordedSpike, decoder: SampleDecoder, max_samples: int) -> EventFacts:
    event = spike.event
    ranked = spike.samples() if event.first_step in spike.steps else []
    samples = tuple(decoder.decode(ranked[:max_samples], with_tokens=True))
    losses = [loss for sample in samples for loss in sample.ranked.token_losses or () if math.isfinite(loss)]
    expected = max(statistics.median(losses or [0.0]), event.baseline if event.metric == "loss" else 0.0)
    return EventFacts(
        spike=spike, samples=samples, num_samples=len(ranked), cool=expected, hot=max(losses, default=expected)
    )
