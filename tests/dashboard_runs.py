"""Runs for the dashboard's browser tests and its benchmark: a million steps with spikes of one
step, and many small ones.
"""

import math
from pathlib import Path

import numpy as np
from eventful_run import prepare_hostile_corpus

from sonde.data.datasets import open_pairs
from sonde.run import Run
from sonde.spikes.detectors import ThresholdRule
from sonde.spikes.recorder import SpikeRecorder, SpikeSettings

NUM_SPIKES = 40


def long_run(directory: Path, num_steps: int) -> list[int]:
    """A run of `num_steps` recorded updates, 40 of which jump for one step; returns those. Its data
    lies in the folder above.
    """
    draw = np.random.default_rng(3)
    spikes = np.sort(
        draw.choice(np.arange(num_steps // 1000 + 2, num_steps - 20), NUM_SPIKES, replace=False)
    )
    losses = (
        2 + 6 * np.exp(-np.arange(num_steps) / (num_steps / 6)) + draw.normal(0, 0.05, num_steps)
    )
    losses[spikes] += draw.uniform(2, 6, NUM_SPIKES)
    norms = 0.4 + np.abs(draw.normal(0, 0.05, num_steps))
    data = prepare_hostile_corpus(directory.parent)
    with Run(directory, config={"lr": 0.001, "max_updates": num_steps}) as run:
        with run.records("steps").path.open("ab") as file:
            for start in range(0, num_steps, 50_000):
                end = min(start + 50_000, num_steps)
                rows = zip(
                    range(start, end),
                    losses[start:end].tolist(),
                    norms[start:end].tolist(),
                    strict=True,
                )
                file.write(
                    "".join(step_line(step + 1, loss, norm) for step, loss, norm in rows).encode()
                )
        for step in range(num_steps // 100, num_steps, num_steps // 100):
            run.logger.log(step, {"train.ips": 3000 + 50 * math.sin(step)})
        _record_events(run, data, [(int(place) + 1, float(losses[place])) for place in spikes])
    return [int(place) + 1 for place in spikes]


def step_line(step: int, loss: float, norm: float = 0.5) -> str:
    """A record of an update as the trainer writes it."""
    numbers = f'"loss":{loss!r},"weight":4096.0,"grad_norm":{norm:.6g},"lr":0.001'
    return f'{{"type":"STEP","step":{step},"epoch":1,{numbers}}}\n'


def many_runs(folder: Path, num_runs: int, num_steps: int) -> None:
    """Small runs of a sweep."""
    for number in range(num_runs):
        settings = {"lr": 10.0 ** -(number % 4), "dim": 128 << number % 3, "max_updates": num_steps}
        with Run(folder / f"sweep-{number:03d}", config=settings, seeds={"torch": number}) as run:
            draw = np.random.default_rng(number)
            losses = (
                2
                + draw.random()
                + 6 * np.exp(-np.arange(num_steps) / num_steps * 8)
                + draw.normal(0, 0.05, num_steps)
            )
            lines = [step_line(step, loss) for step, loss in enumerate(losses.tolist(), 1)]
            run.records("steps").path.write_text("".join(lines))


def _record_events(run: Run, data: Path, spikes: list[tuple[int, float]]) -> None:
    settings = SpikeSettings(rule=ThresholdRule(above=1.0), grad_norm_rule=None)
    samples = open_pairs(data)
    lengths = [len(samples[row].target) for row in range(5)]
    tokens = [
        [3.0 + row * place / length for place in range(length)]
        for row, length in enumerate(lengths)
    ]
    with SpikeRecorder(
        run.records("spikes"), settings=settings, datasets={"train": samples}
    ) as recorder:
        for step, loss in spikes:
            for number in range(step - 1, step + 14):
                bad = number == step
                recorder.observe(
                    number,
                    loss if bad else 0.5,
                    sample_ids=[("train", row) for row in range(5)],
                    sample_losses=[3.1, 3.0, 2.9, 17.2, 3.3] if bad else [0.5] * 5,
                    token_losses=tokens,
                    token_counts=lengths,
                )
