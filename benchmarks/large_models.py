"""What the recorder costs a model of 100 million parameters: CPU time of a step and peak memory,
beside the bare loop.

    python benchmarks/large_models.py           about six minutes; 6 GB of memory, 5 GB of disk
    python benchmarks/large_models.py --only events      or `states`, or `overhead`

Time, measured in two ways, because whole steps differ by more than the recorder costs:

    own work       the model has all its tensors but does not compute its layers, so that the
                   microseconds of the recorder can be seen; as a share of the real step
    whole steps    three trainings make their steps in turns, and those of each round are compared.
                   Two of them are bare: they show what this machine cannot tell apart

Memory: each loop in a process of its own. The gates are for a run that keeps no states of its own
(`state_every=0`): at most 2 % of the step, and 1.05 times the memory.

Events: the loss jumps, or is not finite, or a gradient is not. What the process holds at most
before that step and after it shows whether the look at the scene took more than a step: at most
1.05 times as much. It may take `scene_seconds`, and what was begun before they were over.

States: what the first line says of their size, stall and memory, beside what they took.
"""

import argparse
import logging
import math
import os
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

import torch
import torch.nn.functional as F
from benchmarks.measure import in_child, markdown_table, peak_megabytes
from torch import Tensor, nn

from sonde.recorder.options import RecorderOptions
from sonde.recorder.recorder import Recorder
from sonde.spikes.detectors import ThresholdRule
from sonde.spikes.recorder import SpikeSettings

WIDTH: Final = 768
NUM_LAYERS: Final = 11
NUM_WORDS: Final = 16_384
SHAPE: Final = (1, 128)
NUM_STEPS: Final = 7
"""How many steps a loop makes whose memory is measured."""
NUM_ROUNDS: Final = 25
"""How many steps each of the loops makes whose time is measured."""
NUM_EMPTY_ROUNDS: Final = 400
_NUM_FIXED: Final = 64
MAX_SHARE: Final = 0.02
MAX_MEMORY: Final = 1.05
_BARE: Final = "bare loop"
_AGAIN: Final = "bare loop, once more"
_RECORDED: Final = "recorded, state_every=0"
TIMED: Final[dict[str, dict[str, Any] | None]] = {
    _BARE: None,
    _AGAIN: None,
    _RECORDED: {"state_every": 0},
}
EVENTS: Final = ("the loss jumps", "the loss is not finite", "a gradient is not finite")
EVENT_SHAPE: Final = (1, 512)
NUM_CALM: Final = 5
"""How many steps are made before an event: a rule with a fixed threshold needs few."""
LOOPS: Final = TIMED | {"recorded, a state every 3 steps": {"state_every": 3, "keep_states": 1}}


class LanguageModel(nn.Module):
    """Embedding, Transformer layers, output layer."""

    def __init__(self, *, computes: bool = True) -> None:
        """Without `computes` the layers are there, but the loss is that of a few fixed numbers."""
        super().__init__()
        self.computes = computes
        self.scale = nn.Parameter(torch.ones(()))
        self.fixed = torch.randn(*SHAPE, _NUM_FIXED)
        self.embedding = nn.Embedding(NUM_WORDS, WIDTH)
        layers = [
            nn.TransformerEncoderLayer(WIDTH, 12, 4 * WIDTH, batch_first=True)
            for _ in range(NUM_LAYERS)
        ]
        self.layers = nn.Sequential(*layers)
        self.head = nn.Linear(WIDTH, NUM_WORDS)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the loss."""
        if not self.computes:
            logits = self.scale * self.fixed[:, 1:]
            return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten() % _NUM_FIXED)
        logits = self.head(self.layers(self.embedding(tokens[:, :-1])))
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Loop:
    """A training; without options it is not recorded."""

    def __init__(
        self, options: dict[str, Any] | None, folder: str, *, computes: bool = True
    ) -> None:
        torch.manual_seed(1)
        self.model = LanguageModel(computes=computes)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        self.recorder: Recorder | None = None
        if options is not None:
            own = RecorderOptions(**options)
            self.recorder = Recorder(folder, self.model, self.optimizer, options=own)

    def train_step(self, tokens: Tensor) -> Tensor:
        """Make one update."""
        self.optimizer.zero_grad()
        loss: Tensor = self.model(tokens)
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return loss

    def cpu_seconds(self, tokens: Tensor) -> float:
        """Make one update and return its CPU time, with all that is written for it."""
        started = time.process_time()
        if self.recorder is None:
            self.train_step(tokens)
        else:
            self.recorder.step(self.train_step, tokens)
            self.recorder.flush()
        return time.process_time() - started

    def close(self) -> None:
        """End the recording."""
        if self.recorder is not None:
            self.recorder.close()


def train(options: dict[str, Any] | None, folder: str) -> None:
    """Make some updates in this process, whose memory is measured."""
    loop = Loop(options, folder)
    for _ in range(NUM_STEPS):
        loop.cpu_seconds(torch.randint(NUM_WORDS, SHAPE))
    loop.close()


def steps_in_turns(folder: Path, num_rounds: int, *, computes: bool) -> dict[str, list[float]]:
    """Return the CPU seconds of the steps of each loop."""
    loops = {
        name: Loop(options, str(folder / "run"), computes=computes)
        for name, options in TIMED.items()
    }
    found: dict[str, list[float]] = {name: [] for name in TIMED}
    for number in range(num_rounds + 1):
        tokens = torch.randint(NUM_WORDS, SHAPE)
        names = list(TIMED)
        random.Random(number).shuffle(names)
        for name in names:
            seconds = loops[name].cpu_seconds(tokens)
            if number:  # the first update makes the moments
                found[name].append(seconds)
    loops[_RECORDED].close()
    return found


class Event(NamedTuple):
    """What an event did to a training."""

    seconds: float
    """How much longer the step of the event took than others."""
    cpu_seconds: float
    before: float
    """The most memory before the event, in megabytes."""
    after: float
    verdict: str


def make_event(kind: str, folder: str) -> Event:
    """Train until an event, and return what it took. The fault is inside the model, so that it is
    there again when the step is run again.
    """
    rule = SpikeSettings(rule=ThresholdRule(above=15.0))
    loop = Loop({"state_every": 0, "spikes": rule}, folder)
    told = _Told()
    logging.getLogger("sonde").addHandler(told)
    walls: list[float] = []
    cpus: list[float] = []
    before = math.nan
    for step in range(NUM_CALM + 1):
        if step == NUM_CALM:
            before = peak_megabytes()
            plant(kind, loop.model)
        started = time.perf_counter()
        cpus.append(loop.cpu_seconds(torch.randint(NUM_WORDS, EVENT_SHAPE)))
        walls.append(time.perf_counter() - started)
    after = peak_megabytes()
    loop.close()
    verdict = next((text for text in told.texts if text.startswith("step ")), "nothing was told")
    return Event(
        seconds=walls[-1] - statistics.median(walls[:-1]),
        cpu_seconds=cpus[-1] - statistics.median(cpus[:-1]),
        before=before,
        after=after,
        verdict=verdict.partition(": ")[2].partition(" (")[0],
    )


def plant(kind: str, model: LanguageModel) -> None:
    """Make the model fail from now on."""
    if kind == EVENTS[0]:
        # Before the hook of the recorder, which takes the loss.
        model.register_forward_hook(lambda *given: given[-1] * 3.0, prepend=True)
        return
    layer = model.get_submodule(f"layers.{NUM_LAYERS // 2}.linear2")
    if kind == EVENTS[1]:
        layer.register_forward_hook(lambda *given: given[-1] * math.inf)
        return
    layer.register_full_backward_hook(lambda *given: (given[1][0] * math.inf,))


class _Told(logging.Handler):
    """Collects what the recorder tells."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Take a message."""
        self.texts.append(record.getMessage())


class Kept(NamedTuple):
    """What kept states took."""

    opening: str
    """What is told at the start."""
    megabytes: float
    """The size of a state on disk."""
    wait: float
    """How long training waits for a state."""
    slower: float
    """How much longer a step takes in which a state is kept, and is being written."""
    peak: float
    """The most memory, in megabytes."""


def keep_states(folder: str) -> Kept:
    """Train with kept states, and measure what they take."""
    told = _Told()
    logging.getLogger("sonde").addHandler(told)
    logging.getLogger("sonde").setLevel(logging.INFO)
    loop = Loop({"state_every": 3, "keep_states": 1}, folder)
    assert loop.recorder is not None
    keeper = loop.recorder.keeper
    waits: list[float] = []
    keep = keeper.keep_state

    def timed(num_updates: int) -> None:
        started = time.perf_counter()
        keep(num_updates)
        waits.append(time.perf_counter() - started)

    keeper.keep_state = timed  # type: ignore[method-assign, assignment]
    with_state: list[float] = []
    without: list[float] = []
    for step in range(10):
        loop.recorder.flush()
        started = time.perf_counter()
        loop.recorder.step(loop.train_step, torch.randint(NUM_WORDS, SHAPE))
        seconds = time.perf_counter() - started
        if step > 0:
            (without if step % 3 else with_state).append(seconds)
    loop.close()
    newest = max(Path(folder, "flight", "states").glob("step-*"))
    return Kept(
        opening=next(text for text in told.texts if text.startswith("sonde: recording")),
        megabytes=sum(path.stat().st_size for path in newest.iterdir()) / 1e6,
        wait=statistics.median(waits[1:]),  # the first one also waits for the disk
        slower=statistics.median(with_state) - statistics.median(without),
        peak=peak_megabytes(),
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", choices=("overhead", "events", "states"))
    only = parser.parse_args().only
    parts = {"overhead": compare, "events": tell_events, "states": tell_states}
    for name, part in parts.items():
        if only in (None, name):
            part()


def tell_events() -> None:
    """Print what looks at scenes took."""
    rows = []
    is_met = True
    for kind in EVENTS:
        with tempfile.TemporaryDirectory(prefix="sonde-large-") as folder:
            found: Event = in_child(make_event, kind, str(Path(folder, "run"))).result
        ratio = found.after / found.before
        is_met = is_met and ratio <= MAX_MEMORY
        memory = (f"{found.before:.0f}", f"{found.after:.0f}", f"{ratio:.3f}")
        rows.append(
            (kind, f"{found.seconds:.1f}", f"{found.cpu_seconds:.1f}", *memory, found.verdict)
        )
    columns = ["event", "seconds", "CPU seconds", "peak MB before", "after", "ratio", "told"]
    print(markdown_table(columns, rows), "\n")
    print(f"Gate: the scene takes at most {MAX_MEMORY} of the memory: {_met(is_met)}.")


def tell_states() -> None:
    """Print what is told of kept states, and what they took."""
    with tempfile.TemporaryDirectory(prefix="sonde-large-") as folder:
        kept: Kept = in_child(keep_states, str(Path(folder, "run"))).result
        bare = in_child(train, None, str(Path(folder, "bare"))).peak_megabytes
    print(f"told: {kept.opening}")
    print(
        f"on disk {kept.megabytes:.0f} MB; training waits {kept.wait:.2f} s; a step in which one is"
        f" written takes {kept.slower:.2f} s longer; memory {kept.peak - bare:+.0f} MB"
    )


def _met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def compare() -> None:
    """Print what the recorder adds to a step, and to the memory."""
    with tempfile.TemporaryDirectory(prefix="sonde-large-") as folder:
        empty = steps_in_turns(Path(folder, "empty"), NUM_EMPTY_ROUNDS, computes=False)
        whole = steps_in_turns(Path(folder, "whole"), NUM_ROUNDS, computes=True)
    step = statistics.median(whole[_BARE])
    num_parameters = sum(parameter.numel() for parameter in LanguageModel().parameters())
    millions = f"{num_parameters / 1e6:.0f} million parameters"
    print(
        f"{millions}, float32, AdamW, {SHAPE[1]} tokens a step; a bare step {step:.2f} s of CPU\n"
    )
    shares = {"own work": _over_bare(empty, step), "whole steps": _over_bare(whole, step)}
    rows = [
        (way, name, f"{over.median:+.3%}", f"± {over.error:.3%}")
        for way, of_loops in shares.items()
        for name, over in of_loops.items()
    ]
    print(markdown_table(["measured by", "loop", "of a bare step", "error"], rows), "\n")
    peaks = _peaks()
    sizes = [(name, f"{peak:.0f}", f"{peak / peaks[_BARE]:.3f}") for name, peak in peaks.items()]
    print(markdown_table(["loop", "peak MB", "of the bare loop"], sizes), "\n")
    for way, of_loops in shares.items():
        print(f"Gate: at most {MAX_SHARE:.0%} of the step, by {way}: {_judged(of_loops)}.")
    is_small = peaks[_RECORDED] <= MAX_MEMORY * peaks[_BARE]
    print(f"Gate: at most {MAX_MEMORY} of the memory: {_met(is_small)}.")


class Over(NamedTuple):
    """How much longer the steps of a loop take than bare ones, as a share of a step."""

    median: float
    error: float
    """Two standard errors of the median."""


def _over_bare(seconds: dict[str, list[float]], step: float) -> dict[str, Over]:
    found = {}
    for name in (_AGAIN, _RECORDED):
        pairs = zip(seconds[name], seconds[_BARE], strict=True)
        shares = [(own - bare) / step for own, bare in pairs]
        low, median, high = statistics.quantiles(shares, n=4)
        # The standard error of a median is 1.25 sigma / sqrt(n); the middle half is 1.35 sigma.
        found[name] = Over(median, 2 * 1.25 * (high - low) / 1.35 / math.sqrt(len(shares)))
    return found


def _judged(of_loops: dict[str, Over]) -> str:
    """Judge the recorded loop; not if two bare loops cannot be told apart well enough."""
    again = of_loops[_AGAIN]
    recorded = of_loops[_RECORDED]
    unsure = max(abs(again.median), again.error, recorded.error)
    if abs(recorded.median - MAX_SHARE) <= unsure:
        return f"cannot tell within {unsure:.2%}"
    return "met" if recorded.median <= MAX_SHARE else "missed"


def _peaks() -> dict[str, float]:
    """Return the most memory that each loop held, in megabytes."""
    peaks = {}
    for name, options in LOOPS.items():
        with tempfile.TemporaryDirectory(prefix="sonde-large-") as folder:
            cost = in_child(train, options, str(Path(folder, "run")))
        peaks[name] = cost.peak_megabytes
    return peaks


if __name__ == "__main__":
    main()
