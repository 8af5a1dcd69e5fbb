"""Where the numbers of a step stopped being finite: what a look at its scene or a replay found.
Plain data, no torch.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sonde.forensics.verdict import ModuleStatistics

LARGE: Final = 1e15
"""Squares and exponentials of numbers beyond this overflow float32 sooner or later."""
_NEAR_LIMIT: Final = 0.02
"""Numbers above this fraction of the largest one that a precision has are close to overflow."""
_LARGEST: Final = {"float16": 65504.0, "bfloat16": 3.4e38, "float32": 3.4e38}


@dataclass(frozen=True, kw_only=True, slots=True)
class BrokenNumbers:
    """The first numbers of a step that are not finite."""

    input_rows: tuple[int, ...] = ()
    """The rows of the batch that hold such numbers already."""
    num_rows: int = 0
    """The number of rows of the batch."""
    has_no_targets: bool = False
    """Whether none of the targets counts, so that their mean is 0 divided by 0."""
    weights: tuple[str, ...] = ()
    """The parameters and buffers that held such numbers before the step."""
    num_weights: int = 0
    """The number of parameters and buffers."""
    lone_weight: str = ""
    """A parameter one value of which is far beyond all of its others; empty if there is none."""
    lone_value: float = math.nan
    """The magnitude of that value."""
    lone_others: float = math.nan
    """The largest magnitude of the others."""
    is_forward: bool = False
    """Whether the forward pass gives such numbers. If not, only the backward pass does."""
    module: str = ""
    """The first module that gives such numbers from finite ones; empty if none was found."""
    operation: str = ""
    """The operation that gave the first number that is not finite, if it is known: a function such
    as `exp`, or a backward function such as `SqrtBackward0`.
    """
    line: str = ""
    """The line of the forward pass that this operation belongs to, if it is known."""
    largest: float = math.nan
    """The largest magnitude that went into that module; NaN if it is not known."""
    precision: str = "float32"
    """The precision of the forward pass."""
    is_finite_in_float32: bool | None = None
    """Whether the same step is finite in float32; None if that could not be tried."""
    loss_rows: tuple[int, ...] = ()
    """The rows whose losses are not finite, if the losses of rows are known."""
    gradients: tuple[str, ...] = ()
    """The parameters whose gradients are not finite, if the step could not be run again."""
    num_gradients: int = 0
    """The number of parameters with a gradient."""
    is_run_again: bool = True
    """Whether the step was run again, to find the place."""
    ranks: tuple[int, ...] = (0,)
    """The ranks on which numbers are not finite."""
    world_size: int = 1
    """The number of ranks."""

    @property
    def was_broken_before(self) -> bool:
        """Whether the batch or the weights explain it, before any operation."""
        is_broken = self.input_rows or self.weights or self.has_no_targets
        return bool(is_broken or self.lone_weight)

    @property
    def is_of_few_rows(self) -> bool:
        """Whether the losses of a few rows are not finite, and those of all others are."""
        return 0 < len(self.loss_rows) <= self.num_rows / 2

    @property
    def is_overflow(self) -> bool:
        """Whether finite numbers became too large for the precision."""
        if self.is_finite_in_float32:
            return True
        if not self.largest <= LARGE:
            return self.largest > LARGE
        limit = _LARGEST.get(self.precision, math.inf)
        return self.is_finite_in_float32 is None and self.largest > _NEAR_LIMIT * limit

    def describe(self) -> list[str]:
        """Describe where the numbers broke, one sentence each."""
        sentences = []
        if len(self.ranks) < self.world_size:
            listed = ", ".join(map(str, self.ranks))
            sentences.append(f"it happens on rank {listed} of {self.world_size} ranks only")
        sentences += self._where()
        if not self.is_run_again:
            sentences += self._as_it_is()
        if math.isfinite(self.largest):
            sentences.append(f"the largest number that went into it is {self.largest:.3g}")
        if self.operation:
            where = f", made by {self.line}" if self.line else ""
            sentences.append(
                f"the first number that is not finite comes from {self.operation}{where}"
            )
        if self.is_finite_in_float32 is not None and self.precision != "float32":
            outcome = "finite" if self.is_finite_in_float32 else "not finite either"
            sentences.append(f"in float32 instead of {self.precision} the step is {outcome}")
        if self.loss_rows and self.num_rows > len(self.loss_rows):
            sentences.append(
                f"{len(self.loss_rows)} of {self.num_rows} rows have a loss that is not finite"
            )
        return sentences

    def _where(self) -> list[str]:
        """Describe in which part of the step numbers break, and in which module."""
        if self.module and self.is_forward:
            return [f"the output of {self.module} is the first that is not finite"]
        if self.module:
            first = f"{self.module} is the first module whose backward gives a gradient that is not"
            return [f"the forward pass is finite; {first}"]
        if not self.is_forward:
            return ["the forward pass is finite, the gradients are not"]
        return ["every module's output is finite, the loss is not"] if self.is_run_again else []

    def _as_it_is(self) -> list[str]:
        """Describe what is seen where the step was not run again."""
        sentences = []
        if self.gradients:
            sentences.append(
                f"the gradients of {len(self.gradients)} of {self.num_gradients} parameters are not"
                f" finite, that of {self.gradients[-1]} among them"
            )
        sentences.append(
            "the step was not run again, so the operation is not known: that takes a step function"
            " for recorder.step to call, time (scene_seconds) and memory"
        )
        return sentences


def from_modules(
    modules: Sequence[ModuleStatistics], precision: str, is_finite_in_float32: bool | None
) -> BrokenNumbers:
    """Return where the numbers of a replayed step broke, from the statistics of its modules.

    Activations come in the order of the forward pass, gradients in that of the backward pass.
    """
    activations = [module for module in modules if module.kind == "activation"]
    gradients = [module for module in modules if module.kind == "gradient"]
    parameters = [module for module in modules if module.kind == "parameter"]
    is_forward = any(module.num_nonfinite for module in activations)
    return BrokenNumbers(
        weights=tuple(module.module for module in parameters if module.num_nonfinite),
        num_weights=len(parameters),
        is_forward=is_forward,
        module=_first_broken(activations) if is_forward else _last_whole(gradients),
        precision=precision,
        is_finite_in_float32=is_finite_in_float32,
    )


def _first_broken(activations: Sequence[ModuleStatistics]) -> str:
    """Return the first module whose output is not finite."""
    broken = [module.module for module in activations if module.num_nonfinite]
    return broken[0] if broken else ""


def _last_whole(gradients: Sequence[ModuleStatistics]) -> str:
    """Return the module that received a finite gradient and passed on one that is not: the last
    innermost one before the first gradient that is not finite.
    """
    names = [gradient.module for gradient in gradients]
    before: list[str] = []
    for gradient in gradients:
        if gradient.num_nonfinite:
            break
        before.append(gradient.module)
    for name in reversed(before):
        has_parts = any(other.startswith(f"{name}.") for other in names)
        if not has_parts and name != "model":
            return name
    return ""
