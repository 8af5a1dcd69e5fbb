"""Recognises a cross-entropy that a script writes by hand, and says which targets count.

People pick the log-probability of each target with `gather`, with `log_probs[arange, target]` or by
multiplying with one-hot vectors, and mask and average it themselves. That such a number is a loss,
and what each target weighs in it, is seen at the backward pass: it is the gradient of what backward
is called on with respect to the number.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

FUNCTION: Final = "log_softmax"
"""How a cross-entropy by hand is called: after the function that most of them begin with."""
_SOFTMAXES: Final = (F.log_softmax, torch.log_softmax, Tensor.log_softmax)
_SUMS: Final = (torch.logsumexp, Tensor.logsumexp)
_GATHERS: Final = (torch.gather, Tensor.gather, torch.take_along_dim, Tensor.take_along_dim)
_PRODUCTS: Final = (torch.mul, Tensor.mul, Tensor.__mul__, Tensor.__rmul__)
WATCHED: Final = frozenset((*_SOFTMAXES, *_SUMS, *_GATHERS, *_PRODUCTS, Tensor.__getitem__))
"""The functions that a cross-entropy by hand is made of."""
_NEAR: Final = 1e-2


class Picked(NamedTuple):
    """Numbers that a script picked by target, from scores of classes."""

    scores: Tensor
    """Targets by classes, detached."""
    target: Tensor
    numbers: Tensor
    """What was picked, in the graph: one number for each target, or one for each class if the
    others were made zero.
    """
    source: Tensor
    """The scores as the script has them."""
    class_dim: int = -1
    """The dimension of the classes in `numbers`."""


class HandwrittenLoss(NamedTuple):
    """A cross-entropy by hand."""

    log_probabilities: Tensor
    """Targets by classes."""
    target: Tensor
    counts: Tensor
    is_normalised_twice: bool


class Handwriting:
    """Watches one forward pass for losses that are written by hand."""

    def __init__(self) -> None:
        self._picked: list[Picked] = []
        self._summed: list[Tensor] = []
        """The scores whose `logsumexp` was taken."""
        self._is_normalised_twice = False

    def note(
        self,
        func: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        result: Any,
    ) -> None:
        """Note a call of one of the functions in `WATCHED`."""
        if not isinstance(result, Tensor) or not result.requires_grad:
            return
        if func in _SOFTMAXES:
            self._note_softmax(args, kwargs)
        elif func in _SUMS:
            self._summed.append(args[0] if args else kwargs["input"])
        elif func in _GATHERS:
            self._note_gather(args, kwargs, result)
        elif func in _PRODUCTS:
            self._note_product(args, result)
        else:
            self._note_index(args, result)

    def losses(self, root: Tensor) -> list[HandwrittenLoss]:
        """Return the losses that what backward is called on is made of."""
        found: list[HandwrittenLoss] = []
        for picked in self._picked:
            log_probabilities = self._log_probabilities(picked)
            if log_probabilities is None:
                continue
            weights = weights_in(root, picked.numbers)
            if weights is None:
                continue
            weights = -weights.movedim(picked.class_dim, -1).reshape(len(picked.target), -1)
            if weights.shape[1] > 1:
                weights = weights.gather(1, picked.target.unsqueeze(1))
            weights = weights.squeeze(1)
            if bool((weights < 0).any()):
                continue  # rewards and the like: what is picked is not always to become likelier
            found.append(
                HandwrittenLoss(
                    log_probabilities, picked.target, weights > 0, self._is_normalised_twice
                )
            )
        self._picked.clear()
        return found

    def _log_probabilities(self, picked: Picked) -> Tensor | None:
        if add_up_to_one(picked.scores.exp()):
            return picked.scores
        place = picked.source.untyped_storage().data_ptr()
        if any(place == scores.untyped_storage().data_ptr() for scores in self._summed):
            return picked.scores.log_softmax(1)
        return None

    def _note_softmax(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        given = dict(zip(("input", "dim"), args, strict=False)) | dict(kwargs)
        scores = given["input"].detach()
        dim = given.get("dim")
        if isinstance(dim, int) and scores.dim() > 1 and scores.numel():
            by_class = scores.movedim(dim, -1).flatten(0, -2).float()
            self._is_normalised_twice |= bool((by_class >= 0).all()) and add_up_to_one(by_class)

    def _note_gather(self, args: Sequence[Any], kwargs: Mapping[str, Any], result: Tensor) -> None:
        source = args[0] if args else kwargs["input"]
        values = [*args[1:], *kwargs.values()]
        index = next((value for value in values if isinstance(value, Tensor)), None)
        dim = next((value for value in values if isinstance(value, int)), None)
        if index is None or dim is None or index.dim() != source.dim() or source.dim() < 2:
            return
        if index.shape[dim] != 1 or result.shape != index.shape:
            return
        scores = source.detach().movedim(dim, -1).flatten(0, -2).float()
        target = index.detach().movedim(dim, -1).reshape(-1)
        if len(scores) == len(target):
            self._picked.append(Picked(scores, target, result, source, dim))

    def _note_index(self, args: Sequence[Any], result: Tensor) -> None:
        """Note `scores[arange(rows), target]`."""
        source, index = args[:2]
        if source.dim() != 2 or not isinstance(index, tuple) or len(index) != 2:
            return
        rows, target = index
        if not isinstance(target, Tensor) or target.dtype is not torch.int64 or target.dim() != 1:
            return
        if not isinstance(rows, Tensor | list | range) or len(rows) != len(target):
            return
        expected = torch.arange(len(source), device=target.device)
        if not torch.equal(torch.as_tensor(rows, device=target.device), expected):
            return
        scores = source.detach().float()
        self._picked.append(Picked(scores, target.detach(), result, source))

    def _note_product(self, args: Sequence[Any], result: Tensor) -> None:
        """Note log-probabilities times one-hot vectors."""
        if len(args) != 2 or not all(isinstance(value, Tensor) for value in args):
            return
        first, second = args
        source, chosen = (first, second) if first.requires_grad else (second, first)
        if chosen.requires_grad or source.dim() < 2 or source.shape != chosen.shape:
            return
        vectors = chosen.detach().flatten(0, -2)
        is_one = vectors == 1
        if not bool((is_one | (vectors == 0)).all()) or not bool((is_one.sum(1) == 1).all()):
            return
        scores = source.detach().flatten(0, -2).float()
        self._picked.append(Picked(scores, is_one.long().argmax(1), result, source))


def weights_in(root: Tensor, numbers: Tensor) -> Tensor | None:
    """Return the gradient of what backward is called on with respect to numbers that it may be
    made of; None if it is not.
    """
    if not root.requires_grad or not numbers.requires_grad:
        return None
    (gradient,) = torch.autograd.grad(root.sum(), numbers, retain_graph=True, allow_unused=True)
    return gradient


def add_up_to_one(probabilities: Tensor) -> bool:
    """Return whether numbers by class add up to 1 at every target."""
    if probabilities.dim() != 2 or probabilities.shape[1] < 2 or not probabilities.numel():
        return False
    return bool(((probabilities.sum(1) - 1).abs() < _NEAR).all())
