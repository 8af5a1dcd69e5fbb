"""Is the first verdict right, the one that is made at the scene while training stands still?

    python benchmarks/scene.py --half tune            about ten minutes of one core
    python benchmarks/scene.py --half report          other texts, seeds and sizes
    python benchmarks/scene.py --half tune --fit      also print the confidences of
        causes/cause_rule.py from these outcomes

Loops of one's own, watched by a `Recorder`: a language model of bytes, a regression and a
classifier. Each is trained until it is calm, then one fault happens at one step. Counted is the
verdict that the recorder wrote within a few steps; a fault that made no event is counted as silent,
and says nothing about confidences.
"""

import argparse
import json
import logging
import math
import random
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.measure import markdown_table
from benchmarks.planted_texts import FOREIGN, garble

import sonde
from sonde.demo.corpus import read_docstrings
from sonde.forensics.causes import rules
from sonde.forensics.causes.cause_rule import CONFIDENCES, Family
from sonde.forensics.verdict import Cause, read_verdict_history

_CALM: Final = 130
"""Recorded steps before the fault; rows are watched from the 1,024th on."""
_WARM: Final = 150
"""Steps before the recorder."""
_AFTER: Final = 6
"""An event in this many steps is that of the fault."""
_LENGTH: Final = 64
_SURE: Final = 0.7
_BANDS: Final = ((0.0, 0.5), (0.5, 0.7), (0.7, 0.9), (0.9, 1.01))
_EDGES: Final = (0.0, 0.3, 0.5, 0.65, 0.8, 0.9, 1.0)
_HALVES: Final = {"tune": (1, 5), "report": (101, 4)}
"""The first seed of a half, and how often every fault is planted."""

_GARBLED: Final = frozenset({"garbled_text", "mis_decoded", "control_characters", "other_script"})
_ROWS: Final = frozenset({"hard_sample", "odd_values"})
_STATE: Final = frozenset({"not_known", "bad_weights"})


@dataclass
class Loop:
    """A training loop, and what a fault may change in it."""

    model: nn.Module
    batches: Iterator[Any]
    loss_of: Callable[[nn.Module, Any], Tensor]
    decode: Callable[[list[int]], str] | None
    rate: float = 3e-3
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=self.rate)


@dataclass(frozen=True)
class Fault:
    """Something that happens at one step."""

    accepted: frozenset[str]
    plant: Callable[[Loop, Any, random.Random], Any]
    """Returns the batch of the step; may change the loop."""
    loops: tuple[str, ...] = ("text", "regression", "classifier")


class CharacterModel(nn.Module):
    """Predicts a byte from the three before it."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(256, size)
        self.mixture = nn.Conv1d(size, 2 * size, kernel_size=3)
        self.output = nn.Linear(2 * size, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        before = F.pad(self.embedding(tokens).transpose(1, 2), (2, 0))
        scores: Tensor = self.output(self.mixture(before).relu().transpose(1, 2))
        return scores


def _text_loop(half: str, seed: int) -> Loop:
    texts = read_docstrings(seed=7)
    half_way = len(texts) // 2
    texts = texts[:half_way] if half == "tune" else texts[half_way:]
    dice = random.Random(f"texts-{seed}")
    rows = 12 if seed % 2 else 24

    def batches() -> Iterator[Tensor]:
        while True:
            yield torch.stack([_bytes_of(dice.choice(texts)) for _ in range(rows)])

    def loss_of(model: nn.Module, tokens: Tensor) -> Tensor:
        scores = model(tokens[:, :-1])
        return F.cross_entropy(scores.flatten(0, 1), tokens[:, 1:].flatten())

    def decode(tokens: list[int]) -> str:
        return bytes(tokens).decode("utf-8", "replace")

    return Loop(CharacterModel(32), batches(), loss_of, decode)


def _bytes_of(text: str) -> Tensor:
    data = text.encode()[: _LENGTH + 1]
    return torch.tensor(list(data.ljust(_LENGTH + 1)), dtype=torch.int64)


def _numbers(seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randn(12, generator=generator)
    while True:
        inputs = torch.randn(24, 12, generator=generator)
        noise = 0.3 * torch.randn(24, generator=generator)
        yield inputs, (inputs @ weights).tanh() + noise


def _perceptron(num_outputs: int) -> nn.Module:
    return nn.Sequential(nn.Linear(12, 48), nn.Tanh(), nn.Linear(48, num_outputs))


def _regression(half: str, seed: int) -> Loop:
    del half

    def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.mse_loss(model(batch[0]).squeeze(1), batch[1])

    return Loop(_perceptron(1), _numbers(seed), loss_of, None)


def _classifier(half: str, seed: int) -> Loop:
    del half

    def batches() -> Iterator[tuple[Tensor, Tensor]]:
        for inputs, values in _numbers(seed):
            yield inputs, (values * 2).round().clamp(-2, 2).long() + 2

    def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    return Loop(_perceptron(5), batches(), loss_of, None)


_LOOPS: Final[dict[str, Callable[[str, int], Loop]]] = {
    "text": _text_loop,
    "regression": _regression,
    "classifier": _classifier,
}


def _some_rows(batch: Tensor, dice: random.Random) -> list[int]:
    return dice.sample(range(len(batch)), dice.choice((1, 1, 2, 3)))


def _garbled(loop: Loop, batch: Tensor, dice: random.Random) -> Tensor:
    del loop
    for row in _some_rows(batch, dice):
        text = bytes(batch[row].tolist()).decode("utf-8", "replace")
        batch[row] = _bytes_of(garble(text, dice.randrange(100), row)[1])
    return batch


def _foreign(loop: Loop, batch: Tensor, dice: random.Random) -> Tensor:
    del loop
    for row in _some_rows(batch, dice):
        text = FOREIGN[dice.choice(sorted(FOREIGN))]
        start = dice.randrange(max(len(text) - _LENGTH, 1))
        batch[row] = _bytes_of(text[start:])
    return batch


def _capitals(loop: Loop, batch: Tensor, dice: random.Random) -> Tensor:
    del loop
    for row in _some_rows(batch, dice):
        text = bytes(batch[row].tolist()).decode("utf-8", "replace")
        batch[row] = _bytes_of(text.upper())
    return batch


def _all_shuffled(loop: Loop, batch: Tensor, dice: random.Random) -> Tensor:
    """Every row holds its characters in another order: no few rows are to blame."""
    del loop
    for row in range(len(batch)):
        values = batch[row].tolist()
        dice.shuffle(values)
        batch[row] = torch.tensor(values)
    return batch


def _wrong_targets(
    loop: Loop, batch: tuple[Tensor, Tensor], dice: random.Random
) -> tuple[Tensor, Tensor]:
    inputs, targets = batch
    for row in _some_rows(inputs, dice):
        if targets.is_floating_point():
            targets[row] = dice.choice((-1, 1)) * dice.uniform(8, 60)
        else:
            inputs[row] = 6 * inputs[row]
            with torch.no_grad():
                targets[row] = int(loop.model(inputs[row]).argmin())
    return inputs, targets


def _far_inputs(
    loop: Loop, batch: tuple[Tensor, Tensor], dice: random.Random
) -> tuple[Tensor, Tensor]:
    inputs, targets = batch
    for row in _some_rows(inputs, dice):
        inputs[row] = dice.choice((20, 200)) * inputs[row]
        with torch.no_grad():
            if targets.is_floating_point():
                targets[row] = -4 * float(loop.model(inputs[row]))
            else:
                targets[row] = int(loop.model(inputs[row]).argmin())
    return inputs, targets


def _not_a_number(
    loop: Loop, batch: tuple[Tensor, Tensor], dice: random.Random
) -> tuple[Tensor, Tensor]:
    del loop
    inputs, targets = batch
    for row in _some_rows(inputs, dice):
        inputs[row, dice.randrange(12)] = dice.choice((math.nan, math.inf))
    return inputs, targets


def _high_rate(loop: Loop, batch: Any, dice: random.Random) -> Any:
    factor = dice.choice((15, 40, 100))
    for group in loop.optimizer.param_groups:
        group["lr"] *= factor
    return batch


def _noisy_weights(loop: Loop, batch: Any, dice: random.Random) -> Any:
    """Somebody else writes into the weights."""
    parameters = list(loop.model.parameters())
    with torch.no_grad():
        chosen = max(parameters, key=lambda parameter: parameter.numel())
        chosen.mul_(1 + dice.choice((2.0, 6.0)) * torch.randn_like(chosen))
    return batch


def _broken_weights(loop: Loop, batch: Any, dice: random.Random) -> Any:
    parameters = list(loop.model.parameters())
    with torch.no_grad():
        dice.choice(parameters).view(-1)[0] = math.inf
    return batch


FAULTS: Final[dict[str, Fault]] = {
    "garbled rows": Fault(_GARBLED, _garbled, ("text",)),
    "rows in another language": Fault(
        frozenset({"foreign_language", "other_script"}), _foreign, ("text",)
    ),
    "rows in capitals": Fault(frozenset({"shouting"}), _capitals, ("text",)),
    "all rows shuffled": Fault(_GARBLED | {"not_known"}, _all_shuffled, ("text",)),
    "wrong targets": Fault(_ROWS, _wrong_targets, ("regression", "classifier")),
    "inputs far out": Fault(_ROWS, _far_inputs, ("regression", "classifier")),
    "inputs not finite": Fault(
        frozenset({"bad_input"}), _not_a_number, ("regression", "classifier")
    ),
    "rate too high": Fault(frozenset({"learning_rate"}), _high_rate),
    "noise in the weights": Fault(_STATE, _noisy_weights),
    "weights not finite": Fault(frozenset({"bad_weights"}), _broken_weights),
}


def _first_cause(fault: Fault, loop: Loop, run: Path, dice: random.Random) -> Cause | None:
    """Train, plant the fault, and return the first cause of the first verdict."""

    def train_step(batch: Any) -> Tensor:
        loss = loop.loss_of(loop.model, batch)
        for recorder in watching:
            recorder.loss(loss)
        loss.backward()
        loop.optimizer.step()
        loop.optimizer.zero_grad()
        return loss

    watching: list[sonde.Recorder] = []
    for _ in range(_WARM):
        train_step(next(loop.batches))
    with sonde.Recorder(run, loop.model, loop.optimizer, decode=loop.decode) as recorder:
        watching.append(recorder)
        for _ in range(_CALM):
            recorder.step(train_step, next(loop.batches))
        recorder.step(train_step, fault.plant(loop, next(loop.batches), dice))
        for _ in range(_AFTER):
            recorder.step(train_step, next(loop.batches))
    verdicts = [verdict for verdict in read_verdict_history(run) if verdict.step > _CALM]
    return min(verdicts, key=lambda verdict: verdict.step).causes[0] if verdicts else None


def _score(family: Family, confidence: float) -> float:
    """The score that was given this confidence."""
    points = CONFIDENCES["scene"][family]
    for (low, below), (high, above) in pairwise(points):
        if confidence <= above:
            return low + (high - low) * (confidence - below) / max(above - below, 1e-9)
    return points[-1][0]


def _outcomes(half: str) -> Iterator[dict[str, Any]]:
    first_seed, times = _HALVES[half]
    for number, (name, fault) in enumerate(FAULTS.items()):
        for kind in fault.loops:
            for turn in range(times if len(fault.loops) > 1 else 2 * times):
                seed = first_seed + 10 * number + turn
                torch.manual_seed(seed)
                loop = _LOOPS[kind](half, seed)
                with tempfile.TemporaryDirectory() as folder:
                    cause = _first_cause(
                        fault, loop, Path(folder) / "run", random.Random(f"{half}-{seed}-{kind}")
                    )
                yield _outcome(name, kind, fault, cause)


def _outcome(name: str, kind: str, fault: Fault, cause: Cause | None) -> dict[str, Any]:
    known: dict[str, Any] = {"fault": name, "loop": kind, "cause": None}
    if cause is None:
        return known
    family = rules()[cause.cause].family
    return known | {
        "cause": cause.cause,
        "family": family,
        "confidence": cause.confidence,
        "score": _score(family, cause.confidence),
        "is_right": cause.cause in fault.accepted,
    }


def main() -> None:
    """Print tables of what was said to planted faults."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--half", choices=list(_HALVES), default="tune")
    parser.add_argument("--fit", action="store_true", help="also print the confidences")
    parser.add_argument("--json", type=Path, help="write the outcomes here, one a line")
    options = parser.parse_args()
    logging.getLogger("sonde").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    outcomes = []
    for outcome in _outcomes(options.half):
        outcomes.append(outcome)
        print(json.dumps(outcome), file=sys.stderr)
    if options.json:
        options.json.write_text("".join(json.dumps(outcome) + "\n" for outcome in outcomes))
    _print_tables(outcomes)
    if options.fit:
        _print_fit([outcome for outcome in outcomes if outcome["cause"]])


def _print_tables(outcomes: list[dict[str, Any]]) -> None:
    rows = []
    for name in FAULTS:
        chosen = [outcome for outcome in outcomes if outcome["fault"] == name]
        said = [outcome for outcome in chosen if outcome["cause"]]
        wrong = [outcome for outcome in said if not outcome["is_right"]]
        rows.append(
            [
                name,
                str(len(chosen)),
                str(len(chosen) - len(said)),
                str(len(said) - len(wrong)),
                str(sum(outcome["confidence"] >= _SURE for outcome in wrong)),
                ", ".join(sorted({outcome["cause"] for outcome in wrong})),
            ]
        )
    heads = ("fault", "planted", "silent", "right", "wrong, surely", "wrong causes")
    print(markdown_table(heads, rows))
    said = [outcome for outcome in outcomes if outcome["cause"]]
    bands = []
    for low, high in _BANDS:
        chosen = [outcome for outcome in said if low <= outcome["confidence"] < high]
        right = sum(outcome["is_right"] for outcome in chosen)
        share = f"{right / len(chosen):.0%}" if chosen else "–"
        bands.append([f"{low:.1f} to {min(high, 1.0):.1f}", str(len(chosen)), share])
    print()
    print(markdown_table(("confidence said", "verdicts", "right"), bands))


def _print_fit(said: list[dict[str, Any]]) -> None:
    """Print how often a first cause of a family with such a score was right."""
    for family in CONFIDENCES["scene"]:
        of_family = [outcome for outcome in said if outcome["family"] == family]
        for low, high in pairwise(_EDGES):
            chosen = [outcome for outcome in of_family if low < outcome["score"] <= high]
            if chosen:
                right = sum(outcome["is_right"] for outcome in chosen)
                fitted = (right + 1) / (len(chosen) + 2)
                print(f"{family} {low}-{high}: {right} of {len(chosen)}, {fitted:.2f}")


if __name__ == "__main__":
    main()
