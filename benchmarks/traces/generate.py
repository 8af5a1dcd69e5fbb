"""Generated loss curves with labelled spikes, to compare detectors on.

260 traces of 2,500 steps, 20 of each scenario, every one a pure function of its number and `SEED`.
They were frozen, by the digest in digest.txt, before any detector was tuned: traces with even
numbers are for tuning, odd ones are held out.

A label is what was put in on purpose: a spike at least 8 noise deviations high (14 where the noise
has heavy tails), a burst, a jump to a higher plateau, a slow divergence, NaN or Inf. Everything
else, however odd it looks, is clean.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

SEED: Final = 20261115
NUM_STEPS: Final = 2500
PER_SCENARIO: Final = 20
FIRST_SPIKE: Final = 200
"""No label before this step: a detector may learn the noise first."""
DIGEST_FILE: Final = Path(__file__).parent / "digest.txt"


@dataclass(frozen=True, slots=True)
class Label:
    """One thing to be found."""

    kind: str
    start: int
    """First bad step."""
    end: int
    """Last bad step."""


@dataclass(slots=True)
class Trace:
    """A loss curve, its noise, and what was put into it."""

    scenario: str
    losses: NDArray[np.float64]
    sigma: NDArray[np.float64]
    """Deviation of the noise at each step."""
    labels: list[Label] = field(default_factory=list)
    min_height: float = 8.0
    """Least height of a spike in noise deviations."""

    def height(self, draw: Generator, step: int, low: float, high: float) -> float:
        """The height of a spike at a step, in nats."""
        return max(
            float(draw.uniform(low, high)),
            self.min_height * float(draw.uniform(1, 2)) * float(self.sigma[step]),
        )


def base_trace(draw: Generator, scenario: str) -> Trace:
    """A curve that falls as a power law from about 10 to about 2, with noise; no spikes."""
    steps = np.arange(NUM_STEPS, dtype=np.float64)
    warmup = {"warmup": int(draw.integers(100, 400)), "decay": 5}.get(
        scenario, int(draw.integers(10, 100))
    )
    floor = draw.uniform(1.2, 3.0)
    start = draw.uniform(8.0, 11.0)
    rate = draw.uniform(0.5, 0.9) if scenario == "decay" else draw.uniform(0.3, 0.7)
    moved = np.maximum(steps - warmup, 0.0) / draw.uniform(20, 80)
    curve = floor + (start - floor) * (1 + moved) ** -rate
    low, high = {"quiet": (0.002, 0.006), "noisy": (0.08, 0.15)}.get(scenario, (0.01, 0.08))
    sigma = np.exp(draw.uniform(np.log(low), np.log(high))) * np.sqrt(curve / curve[-1])
    if scenario == "heavy":
        noise = draw.standard_t(draw.uniform(3.0, 6.0), NUM_STEPS)
    else:
        noise = draw.standard_normal(NUM_STEPS)
    carried = draw.choice([0.0, 0.0, 0.3])
    for step in range(1, NUM_STEPS):
        noise[step] = carried * noise[step - 1] + np.sqrt(1 - carried**2) * noise[step]
    return Trace(
        scenario, curve + sigma * noise, sigma, min_height=14.0 if scenario == "heavy" else 8.0
    )


def places(draw: Generator, number: int, room: int) -> list[int]:
    """Steps for `number` things, each with at least `room` steps to itself."""
    free = NUM_STEPS - FIRST_SPIKE - number * room
    cuts = np.sort(draw.integers(0, free, number))
    return [int(FIRST_SPIKE + cut + position * room) for position, cut in enumerate(cuts)]


def add_spike(draw: Generator, trace: Trace, step: int, height: float | None = None) -> None:
    """One bad step, and a recovery of none, some or many steps."""
    height = trace.height(draw, step, 0.2, 4.0) if height is None else height
    tail = float(draw.choice([0.0, 0.0, draw.uniform(1, 5), draw.uniform(5, 25)]))
    excess = height * np.exp(-np.arange(150) / tail) if tail else np.array([height])
    excess = excess[: NUM_STEPS - step]
    trace.losses[step : step + len(excess)] += excess
    seen = np.flatnonzero(excess > 3 * trace.sigma[step : step + len(excess)])
    trace.labels.append(Label("spike", step, step + int(seen[-1])))


def add_burst(draw: Generator, trace: Trace, step: int) -> None:
    """3 to 8 bad steps, with a good one now and then."""
    bad = [0, *(place for place in range(1, int(draw.integers(3, 9))) if draw.random() > 0.2)]
    for place in bad:
        trace.losses[step + place] += trace.height(draw, step, 0.3, 4.0)
    trace.labels.append(Label("burst", step, step + bad[-1]))


def add_jump(draw: Generator, trace: Trace, step: int) -> None:
    """From here on the loss is higher."""
    trace.losses[step:] += trace.height(draw, step, 0.25, 1.5)
    trace.labels.append(Label("jump", step, min(step + 30, NUM_STEPS - 1)))


def add_divergence(draw: Generator, trace: Trace, step: int) -> None:
    """The loss climbs for hundreds of steps, then stays or comes back."""
    length = min(int(draw.integers(150, 501)), NUM_STEPS - step)
    height = max(float(draw.uniform(0.5, 3.0)), 12 * trace.sigma[step])
    trace.losses[step : step + length] += height * np.linspace(0, 1, length) ** float(
        draw.uniform(1.0, 2.0)
    )
    rest = NUM_STEPS - step - length
    back = np.exp(-np.arange(rest) / 30) if draw.random() < 0.5 else np.ones(rest)
    trace.losses[step + length :] += height * back
    trace.labels.append(Label("divergence", step, step + length - 1))


def add_nonfinite(draw: Generator, trace: Trace, step: int, *, to_the_end: bool = False) -> None:
    """NaN or Inf for one step, for some, or for ever."""
    length = NUM_STEPS - step if to_the_end else int(draw.choice([1, 1, int(draw.integers(2, 20))]))
    trace.losses[step : step + length] = draw.choice([np.nan, np.nan, np.inf])
    trace.labels.append(Label("nonfinite", step, step + length - 1))


def add_aftershocks(draw: Generator, trace: Trace, step: int) -> None:
    """A high spike, then one to three lower ones, each 25 to 60 steps after the last."""
    height = trace.height(draw, step, 1.0, 5.0)
    trace.losses[step] += height
    trace.labels.append(Label("spike", step, step))
    for _ in range(int(draw.integers(1, 4))):
        step += int(draw.integers(25, 60))
        low = max(0.2 * height, 8 * trace.sigma[step])
        trace.losses[step] += max(low, float(draw.uniform(0.2, 0.6)) * height)
        trace.labels.append(Label("aftershock", step, step))


def add_drops(draw: Generator, trace: Trace) -> None:
    """The learning rate falls and the loss with it: no label."""
    for step in places(draw, int(draw.integers(2, 4)), 300):
        gain = float(draw.uniform(0.1, 0.4))
        trace.losses[step:] -= gain * (
            1 - np.exp(-np.arange(NUM_STEPS - step) / float(draw.uniform(2, 40)))
        )


def add_plateaus(draw: Generator, trace: Trace) -> None:
    """The loss rests for hundreds of steps and then falls on: no label."""
    for step in places(draw, 2, 500):
        length = int(draw.integers(150, 400))
        rest = np.clip(np.arange(NUM_STEPS) - step, 0, length) * 3e-4
        trace.losses += rest


def fill(draw: Generator, trace: Trace, number: int) -> None:
    """Put into a trace what its scenario holds."""
    scenario = trace.scenario
    kinds: dict[str, Sequence[Callable[[Generator, Trace, int], None]]] = {
        "burst": [add_burst],
        "nonfinite": [add_nonfinite, add_nonfinite, add_spike],
        "aftershock": [add_aftershocks],
        "mixed": [add_spike, add_burst, add_nonfinite, add_aftershocks],
    }
    if scenario == "clean":
        return
    if scenario == "divergence":
        add_divergence(draw, trace, int(draw.integers(FIRST_SPIKE + 200, NUM_STEPS - 600)))
        return
    if scenario == "plateau":
        add_plateaus(draw, trace)
        for step in places(draw, int(draw.integers(1, 3)), 500):
            add_jump(draw, trace, step)
        return
    if scenario == "lr_drop":
        add_drops(draw, trace)
    for step in places(draw, int(draw.integers(2, 7)), 280):
        options = kinds.get(scenario, [add_spike])
        options[int(draw.integers(len(options)))](draw, trace, step)
    if scenario == "nonfinite" and number % 10 < 2:
        last = trace.labels[-1].end + 150
        if last < NUM_STEPS:
            add_nonfinite(draw, trace, last, to_the_end=True)


SCENARIOS: Final = (
    "warmup",
    "decay",
    "quiet",
    "noisy",
    "lr_drop",
    "plateau",
    "burst",
    "divergence",
    "nonfinite",
    "aftershock",
    "heavy",
    "mixed",
    "clean",
)


def make_traces() -> list[Trace]:
    """All traces, in order of their numbers."""
    traces = []
    for number in range(len(SCENARIOS) * PER_SCENARIO):
        draw = np.random.default_rng([SEED, number])
        trace = base_trace(draw, SCENARIOS[number // PER_SCENARIO])
        fill(draw, trace, number)
        trace.losses = np.round(trace.losses, 6)
        traces.append(trace)
    return traces


def digest_of(traces: Sequence[Trace]) -> str:
    """SHA-256 over all losses and labels."""
    digest = hashlib.sha256()
    for trace in traces:
        digest.update(trace.losses.astype("<f8").tobytes())
        digest.update(
            repr([(label.kind, label.start, label.end) for label in trace.labels]).encode()
        )
    return digest.hexdigest()


def frozen_traces() -> list[Trace]:
    """All traces; refuses to go on when they are not those that were frozen."""
    traces = make_traces()
    frozen = DIGEST_FILE.read_text(encoding="utf-8").split()[0]
    if digest_of(traces) != frozen:
        raise SystemExit(
            "error: the traces are not the frozen ones: numpy or the generator has changed"
        )
    return traces
