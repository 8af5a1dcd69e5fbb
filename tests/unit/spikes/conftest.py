"""A small prepared corpus, made once, and a run directory with a spike in it."""

from collections.abc import Callable
from pathlib import Path

import pytest

from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.datasets import open_pairs
from sonde.run import Run
from sonde.spikes.detectors import ThresholdRule
from sonde.spikes.recorder import SpikeRecorder, SpikeSettings


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten pairs of sentences and their data directory; line 3 is empty, so sample 2 is line 4."""
    folder = tmp_path_factory.mktemp("corpus")
    sources = [f"source number {line}" for line in range(1, 11)]
    targets = [f"target of line {line}" for line in range(1, 11)]
    sources[2] = targets[2] = ""
    for name, lines in (("text.en", sources), ("text.de", targets)):
        (folder / name).write_text("".join(f"{line}\n" for line in lines))
    splits = {"train": {"en": folder / "text.en", "de": folder / "text.de"}}
    prepare(PrepareSettings(splits=splits, out=folder / "data", tokenizer="word", vocab_size=None))
    return folder / "data"


@pytest.fixture
def spiked_run(tmp_path: Path, corpus: Path) -> Path:
    """A finished run whose step 8 spiked; sample ("train", 5) has most of its loss."""
    directory = tmp_path / "run"
    with Run(directory) as run:
        recorder = SpikeRecorder(
            run.records("spikes"),
            settings=SpikeSettings(rule=ThresholdRule(above=5.0), ring_steps=3),
            datasets={"train": open_pairs(corpus)},
        )
        with recorder:
            for step in range(30):
                recorder.observe(
                    step,
                    9.0 if step == 8 else 2.0,
                    sample_ids=[("train", 1), ("train", 5), ("train", step % 9)],
                    sample_losses=[2.0, 20.0, 5.0] if step == 8 else [2.0, 2.0, 2.0],
                    token_losses=[[2.0] * 5, [1.0, 1.0, 1.0, 60.0, 1.0], [5.0] * 5],
                    token_counts=[5, 5, 5],
                )
    return directory


@pytest.fixture
def record_on() -> Callable[[Path, int, float], None]:
    """A function that records one spike of step 8 on a rank of a run directory."""

    def record(directory: Path, rank: int, loss: float) -> None:
        with Run(directory, rank=rank, world_size=4) as run:
            settings = SpikeSettings(rule=ThresholdRule(above=5.0))
            with SpikeRecorder(run.records("spikes"), settings=settings, rank=rank) as recorder:
                recorder.observe(7, 1.0, sample_ids=[("a", rank)], sample_losses=[1.0])
                recorder.observe(8, 9.0, sample_ids=[("a", 10 + rank)], sample_losses=[loss])

    return record
