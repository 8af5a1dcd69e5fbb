"""The three seams of a replay: where states come from, where batches come from, and what makes an
update.

    Seams(states=…, batches=…, updater=…)        # the trainer's are in trainer_seams.py; your own
                                                 # loop brings its own

`Replay` depends only on these, and the laboratory, the evidence and the causes only on `Replay`:
any training that can restore a state, return the batch of a step and make an update from it can be
diagnosed. Steps count from 1; the state "after 80" is the one before step 81.

An updater records the tensors of an update in a `ModuleWatch`: the size of every module's output
and gradient, and of every parameter.

    watch = ModuleWatch()
    with watch.on(model):
        …forward and backward…
    watch.modules()            # activations in order of execution, gradients in order of the
                               # backward pass, then parameters

Tensors are found and measured as by the probe. Values are only read, so the update stays bitwise
the same. The outputs of a module in all micro-batches of an update count as one tensor, with a
common norm. Repeated calls of a module within one forward pass are distinguished by `#2`, `#3`, …
Norms and maxima cover the finite elements; the others are counted.
"""

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from sonde.errors import SettingError
from sonde.forensics.verdict import ModuleStatistics, Suspect
from sonde.probe import torch_tensors
from sonde.probe.walk import Framework, Indexes, Later, Leaf, walk
from sonde.train.settings import Precision
from sonde.train.step import StepResult

ACTIVATION: Final = "activation"
GRADIENT: Final = "gradient"
PARAMETER: Final = "parameter"

_PARTS: Final = (ACTIVATION, GRADIENT, PARAMETER, GRADIENT)
"""What is recorded, in order: two of the modules, two of the parameters."""
MODEL: Final = "model"
"""The name of the model itself among its modules."""
_MAX_TEXT: Final = 400

Name = tuple[str, int]
"""The name of a sample: its dataset and its number there, or a number derived from its content. A
negative number is not a sample.
"""


class Row(NamedTuple):
    """One row of a batch: its name and its tokens."""

    name: Name
    target: Sequence[int]
    """The tokens to predict."""
    source: Sequence[int] | None = None
    """The tokens of the source; None for a language model."""


class SampleLoss(NamedTuple):
    """The loss of one sample of this rank."""

    sample_id: Any
    """The sample's id in the task: (dataset, number) in sonde's own datasets."""
    loss: float | None
    """The mean loss per token, without label smoothing."""
    num_tokens: int | None
    """The number of target tokens."""
    token_losses: Sequence[float] | None
    """The loss of each target token."""


class Losses(NamedTuple):
    """The losses of an update that is not applied."""

    loss: float
    """The mean loss per unit of weight over all ranks, equal to `StepResult.loss`."""
    of_batches: Sequence[Sequence[SampleLoss]]
    """The samples of this rank, by micro-batch."""

    @property
    def samples(self) -> list[SampleLoss]:
        """The samples of this rank, in order."""
        return [sample for samples in self.of_batches for sample in samples]


class ModuleWatch:
    """Records one update of one model."""

    def __init__(self) -> None:
        self._leaves: defaultdict[tuple[int, str], list[Leaf]] = defaultdict(list)
        """By place in `_PARTS` and name."""
        self._laters: list[Later] = []
        self._num_calls: dict[str, int] = {}
        self._factors = [1.0, 1.0, 1.0, 1.0]

    @contextmanager
    def on(self, model: nn.Module) -> Iterator[None]:
        """Record what the model does in this block. Parameters are read before it, their gradients
        after it.
        """
        for name, parameter in model.named_parameters():
            self._see(2, name, parameter)
        handles = [model.register_forward_pre_hook(lambda *_: self._num_calls.clear())]
        handles += [
            module.register_forward_hook(partial(self._look, name or MODEL))
            for name, module in model.named_modules()
        ]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()
        for name, parameter in model.named_parameters():
            self._see(3, name, parameter.grad)

    def scale(self, gradients: float, parameter_gradients: float) -> None:
        """Scale gradients by these factors, so that they are those of the mean loss before
        clipping.
        """
        self._factors = [1.0, gradients, 1.0, parameter_gradients]

    def modules(self) -> tuple[ModuleStatistics, ...]:
        """Return everything that was recorded."""
        while self._laters:
            self._laters.pop()()
        ordered = sorted(self._leaves.items(), key=lambda item: item[0][0])  # by part
        return tuple(
            _statistics(name, _PARTS[part], leaves, self._factors[part])
            for (part, name), leaves in ordered
        )

    def _look(self, name: str, _module: nn.Module, _arguments: object, output: object) -> None:
        number = self._num_calls[name] = self._num_calls.get(name, 0) + 1
        walk(output, partial(self._look_at, name if number == 1 else f"{name}#{number}"))

    def _look_at(self, call: str, tensor: Any, _: Indexes, framework: Framework) -> Leaf:
        if framework.NAME == torch_tensors.NAME and tensor.is_floating_point():
            self._see(0, call, tensor)
            torch_tensors.on_gradient(tensor, lambda gradient, _: self._see(1, call, gradient))
        return {}

    def _see(self, part: int, name: str, tensor: Tensor | None) -> None:
        # what nothing uses has no gradient, as some outputs of DistributedDataParallel
        if tensor is not None:
            self._leaves[part, name].append(torch_tensors.describe(tensor, "", self._laters))


def _statistics(name: str, kind: str, leaves: Sequence[Leaf], factor: float) -> ModuleStatistics:
    """Return the statistics of tensors that count as one, times a factor."""
    finite = [leaf.get("finite", leaf) for leaf in leaves]
    known = [leaf for leaf in finite if leaf["Norm"] is not None]
    return ModuleStatistics(
        module=name,
        kind=kind,
        norm=math.hypot(*(leaf["Norm"] for leaf in known)) * factor,
        max_abs=max((max(-leaf["Min"], leaf["Max"]) for leaf in known), default=0.0) * factor,
        num_nonfinite=sum(leaf.get("num_nan", 0) + leaf.get("num_inf", 0) for leaf in leaves),
    )


class StateSource(Protocol):
    """Where states come from. A state is a mapping with at least `model` and `optimizer`, each a
    state dict.
    """

    def steps(self) -> list[int]:
        """Return the updates after which there is a state, in order; 0 is the beginning, if
        available.
        """

    def is_good(self, step: int) -> bool:
        """Return whether the state after `step` is intact. May read all of it; called once."""

    def load(self, step: int) -> Mapping[str, Any]:
        """Load the state after `step` updates. The training is unchanged. Raises an error if the
        state is damaged.
        """

    def collect(self) -> Mapping[str, Any]:
        """Return the current state of the training; it may share the training's tensors."""

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put the training into a state; its tensors may be taken over."""


class Change(NamedTuple):
    """What is changed about an update that is made again. None stays as the run had it."""

    lr: float | None = None
    """The learning rate."""
    precision: Precision | None = None
    """The precision of the forward pass."""


class Updater(Protocol):
    """Makes updates. Every rank must call the methods that compute."""

    @property
    def model(self) -> nn.Module:
        """The model that is trained, unwrapped."""

    @property
    def optimizer(self) -> torch.optim.Optimizer:
        """The optimizer."""

    @property
    def precision(self) -> Precision:
        """The precision of the forward pass."""

    def scheduled_rate(self, step: int) -> float | None:
        """Return the scheduled learning rate of a step; None if it is unknown."""

    def update(
        self, step: int, batches: Sequence[Any], change: Change, watch: ModuleWatch | None
    ) -> StepResult:
        """Make update `step` from this rank's micro-batches, with the random numbers that the run
        drew.

        `watch` records the tensors of the model.
        """

    def losses(self, step: int, batches: Sequence[Any]) -> Losses:
        """Return the losses of that update without making it. The generators are restored
        afterwards.
        """


class BatchSource(ABC):
    """Where batches come from, and what their rows are. Methods that a source cannot support keep
    their default.
    """

    @abstractmethod
    def at(self, step: int) -> list[Any]:
        """Return this rank's micro-batches of any update."""

    @abstractmethod
    def rows(self, batch: Any) -> list[Row]:
        """Return the rows of a micro-batch, in the order of its losses; empty if nothing is known
        about them.
        """

    def without(self, batch: Any, names: Collection[Name]) -> Any:
        """Return the batch without these samples."""
        if not names:
            return batch
        raise SettingError(
            f"samples cannot be dropped from a {type(batch).__name__}",
            cause="nothing says which rows of a batch they are",
        )

    def fingerprints(self) -> Mapping[str, str]:
        """Return the current fingerprints of the data, by the names in the manifest."""
        return {}

    def problems(self) -> tuple[str, ...]:
        """Return what is wrong with the data files; may read every byte."""
        return ()

    @property
    def corpus(self) -> "RunTexts | None":
        """The corpus that the batches are made from; None if tokens cannot be decoded to text."""
        return None


class RunTexts(ABC):
    """The corpus around a batch, for batches that can be decoded to text."""

    @abstractmethod
    def decode(self, tokens: Sequence[int]) -> str:
        """Decode tokens to text."""

    def decode_source(self, tokens: Sequence[int]) -> str:
        """Decode the tokens of a pair's source to text."""
        return self.decode(tokens)

    @abstractmethod
    def some(self, num: int) -> list[Row]:
        """Return up to `num` samples from all over the corpus, always the same ones."""

    def parts(self, row: Row) -> list[tuple[int, int]]:
        """Return where the documents in a row's target begin and end."""
        return [(0, len(row.target))]

    def worst_part(self, row: Row, sample: SampleLoss) -> tuple[int, int]:
        """Return where the document with the highest loss begins and ends in a row's target."""
        losses = sample.token_losses or ()

        def badness(part: tuple[int, int]) -> tuple[bool, float]:
            # A few tokens may have a high loss by chance, so shrink the means of short documents.
            mean = sum(losses[slice(*part)]) / (part[1] - part[0] + 4)
            return math.isnan(mean), mean

        return max(self.parts(row), key=badness, default=(0, 0))

    def suspect(self, row: Row, sample: SampleLoss, rank: int) -> Suspect:
        """Return a sample as a suspect of a verdict, with the beginning of the text of its worst
        document.
        """
        text = self.decode(row.target[slice(*self.worst_part(row, sample))])
        if row.source is not None:
            text = f"{self.decode_source(row.source)} → {text}"
        return Suspect(
            dataset=row.name[0],
            sample=row.name[1],
            rank=rank,
            loss=sample.loss,
            text=text[:_MAX_TEXT],
        )

    def batch(self, rows: Sequence[Row]) -> Any | None:
        """Build a micro-batch of these rows; None if batches cannot be built."""
        del rows
        return None

    def read(self, names: Sequence[Name]) -> list[Row] | None:
        """Return the rows of samples; None if they cannot be looked up."""
        del names
        return None

    def likely_order_bugs(self, step: int, place: int) -> Iterator[tuple[str, Any]]:
        """Yield batches that a rank may have received by mistake as micro-batch `place` of a step,
        each with a description.
        """
        del step, place
        yield from ()


class Seams(NamedTuple):
    """The three seams of one training."""

    states: StateSource
    batches: BatchSource
    updater: Updater
