"""The three seams of a replay: where states come from, where batches come from, and who makes an update.

    Seams(states=…, batches=…, updater=…)        # the trainer's are in trainer_seams.py; a loop of one's own brings its own

`Replay` is written against these alone, and the laboratory, the evidence and the causes against `Replay`: whatever can bring back a state, hand out
the batch of a step and make an update from it can be diagnosed. Steps count from 1; a state "after 80" is the one before step 81.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, final

import torch
from torch import nn

from sonde.errors import SettingError
from sonde.forensics.losses import Losses, SampleLoss
from sonde.forensics.tensor_watch import Watch
from sonde.forensics.verdict import Suspect
from sonde.train.settings import Precision
from sonde.train.step import StepResult

Name = tuple[str, int]
"""What a sample is called: its dataset and its number there, or a number made of its content. Below 0 it is no sample."""


class Row(NamedTuple):
    """One row of a batch: its name and its tokens."""

    name: Name
    target: Sequence[int]
    """What it has to predict."""
    source: Sequence[int] | None = None
    """What it predicts it from; None for a language model."""


class States(Protocol):
    """Where states come from. A state is a mapping with at least `model` and `optimizer`, each a state dict."""

    def steps(self) -> list[int]:
        """After which updates there is one, in order; 0 is the beginning, where that can be had."""

    def is_good(self, step: int) -> bool:
        """Is the one after `step` whole? May read all of it; asked once."""

    def load(self, step: int) -> Mapping[str, Any]:
        """The one after `step` updates, to keep; the training stays where it is. A damaged one raises."""

    def collect(self) -> Mapping[str, Any]:
        """The one that the training is in now; tensors may be its own."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put the training into a state; its tensors may be taken over."""


class Updater(Protocol):
    """Who makes an update, and what it is made of. Every rank must call the methods that compute."""

    @property
    def model(self) -> nn.Module:
        """What is trained, not wrapped."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """What moves it."""

    @property
    def precision(self) -> Precision:
        """What forward is made in."""

    def scheduled_rate(self, step: int) -> float | None:
        """The learning rate that the schedule has for a step; None when it is not known."""

    def update(
        self,
        step: int,
        batches: Sequence[Any],
        *,
        rate: float | None = None,
        precision: Precision | None = None,
        watch: Watch | None = None,
    ) -> StepResult:
        """Make update `step` from these micro-batches of this rank, with the random numbers that the run drew.

        `rate` and `precision` go before the run's own. `watch` looks at the model meanwhile.
        """

    def losses(self, step: int, batches: Sequence[Any], *, precision: Precision | None = None) -> Losses:
        """What that update would lose. Nothing moves, and generators are as before afterwards."""


class Batches(ABC):
    """Where batches come from, and what their rows are. What a source does not know keeps its default."""

    @abstractmethod
    def at(self, step: int) -> list[Any]:
        """This rank's micro-batches of any update. Nothing moves."""

    @abstractmethod
    def rows(self, batch: Any) -> list[Row]:
        """The rows of a micro-batch, in the order of its losses; empty when nothing is known about them."""

    def take(self, step: int) -> list[Any]:
        """Those of the next update, which is `step`; a position, if there is one, moves."""
        return self.at(step)

    def moved(self, num_updates: int) -> None:
        """The training was put to the state after so many updates."""
        del num_updates

    def without(self, batch: Any, names: Collection[Name]) -> Any:
        """The batch as it would be without these samples."""
        if not names:
            return batch
        raise SettingError(
            f"samples cannot be dropped from a {type(batch).__name__}",
            cause="nothing says which rows of a batch they are",
        )

    def fingerprints(self) -> Mapping[str, str]:
        """What the data is now, by the names of the manifest."""
        return {}

    def problems(self) -> tuple[str, ...]:
        """What is wrong with the files of the data; may read every byte."""
        return ()

    @property
    def corpus(self) -> "Corpus | None":
        """The texts that the batches are made from; None when tokens cannot be read as text."""
        return None


class Corpus(ABC):
    """The texts around a batch. Only what `Batches` can read as text has one."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Tokens as text."""

    def decode_source(self, tokens: Sequence[int]) -> str:
        """Tokens of the source of a pair as text."""
        return self.decode(tokens)

    @abstractmethod
    def some(self, num: int) -> list[Row]:
        """Up to so many samples from all over the corpus, always the same: what is usual here."""

    def parts(self, row: Row) -> list[tuple[int, int]]:
        """Where the documents of a row's target begin and end."""
        return [(0, len(row.target))]

    def suspect(self, row: Row, sample: SampleLoss, rank: int) -> Suspect:
        """A sample as a verdict names it: with its place, where known, and the beginning of its text."""
        text = self.decode(row.target)
        if row.source is not None:
            text = f"{self.decode_source(row.source)} → {text}"
        return Suspect(dataset=row.name[0], sample=row.name[1], rank=rank, loss=sample.loss, text=text[:400])

    def batch(self, rows: Sequence[Row]) -> Any | None:
        """A micro-batch of these rows; None when batches cannot be made here."""
        del rows
        return None

    def read(self, names: Sequence[Name]) -> list[Row] | None:
        """The rows of samples; None when they cannot be looked up."""
        del names
        return None

    def occurrences(self, tokens: Sequence[int]) -> int | None:
        """How often the corpus says the same; None when it cannot be searched."""
        del tokens
        return None

    def mistakes(self, step: int, place: int) -> Iterator[tuple[str, Any]]:
        """Micro-batches that a rank may have been fed by mistake as its `place`-th one of a step, with words for each."""
        del step, place
        yield from ()


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Seams:
    """The three of one training."""

    states: States
    batches: Batches
    updater: Updater
