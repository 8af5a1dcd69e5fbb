"""Sees what a forward pass does: which tokens it looks up, what its loss functions are given, which
modules it calls; and can change the tokens on their way in.

Changing tokens where they are looked up, not in the batch, leaves labels and masks as they are, and
works whatever the batch looks like. The outputs of modules are not kept: of each position, one
number made with random weights tells whether it is the same.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

from sonde.recorder.checking.handwritten import (
    FUNCTION,
    WATCHED,
    Handwriting,
    HandwrittenLoss,
    weights_in,
)
from sonde.recorder.losses import loss_in

_CLASS_LOSSES: Final = (F.cross_entropy, F.nll_loss)
_NORMALISING: Final = (F.cross_entropy, F.binary_cross_entropy_with_logits)
_NUMBER_LOSSES: Final = (
    F.mse_loss,
    F.l1_loss,
    F.smooth_l1_loss,
    F.huber_loss,
    F.binary_cross_entropy,
    F.binary_cross_entropy_with_logits,
    F.kl_div,
)
_DIFFERENCES: Final = (torch.sub, Tensor.sub, Tensor.__sub__, Tensor.__rsub__)
_VIEWS: Final = ("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "SliceBackward0")
_MORE_VIEWS: Final = (
    "TransposeBackward0",
    "SqueezeBackward1",
    "UnsqueezeBackward0",
    "AliasBackward0",
)


class BackwardReached(BaseException):
    """Ends a step function that is run only up to its first backward pass."""


class Lookup(NamedTuple):
    """One call of `F.embedding`."""

    ids: Tensor
    num_embeddings: int
    padding: int = -1
    """The token that the embedding has as its `padding_idx`; below 0 if it has none."""


class LossCall(NamedTuple):
    """One call of a loss function of torch."""

    function: str
    scores: Tensor
    """The prediction, detached."""
    target: Tensor
    counts: Tensor | None
    """Which targets count, in the shape of the target; None if targets are no classes."""
    is_normalised: bool
    lacks_logarithm: bool
    mean: float
    """The mean loss with the options of the call."""
    ignored: int = -1
    """The class that does not count; below 0 if all classes do."""

    @property
    def class_dim(self) -> int:
        """The dimension of the classes in the scores."""
        return 0 if self.scores.dim() == 1 else 1

    def weighed(self, weights: Tensor, losses: Tensor) -> "LossCall":
        """Return the call with only those targets that weigh anything in the loss. `losses` are
        those of single targets.
        """
        if self.counts is None:
            return self
        counts = self.counts & (weights.reshape(self.counts.shape) != 0)
        mean = losses.detach().reshape(counts.shape)[counts].mean()
        return self._replace(counts=counts, mean=float(mean))


class Call(NamedTuple):
    """One call of a module."""

    name: str
    kind: str
    inputs: tuple[Tensor, ...]
    """One number for each position, of every tensor that went in."""
    outputs: tuple[Tensor, ...]


@dataclass
class Look:
    """What one forward pass did."""

    lookups: list[Lookup] = field(default_factory=list)
    losses: list[LossCall] = field(default_factory=list)
    stretched: tuple[tuple[int, ...], tuple[int, ...]] | None = None
    """The shapes of a prediction and a target whose difference compares each with each."""
    dropouts: list[str] = field(default_factory=list)
    """The functions that dropped units."""
    calls: list[Call] = field(default_factory=list)
    roots: list[float] = field(default_factory=list)
    """What backward was called on."""
    losses_at_root: list[int] = field(default_factory=list)
    """How many loss functions had been called by then."""
    norms: list[tuple[float, float]] = field(default_factory=list)
    """The gradient norm before and after each backward pass, if it was asked for."""
    clipped: float | None = None
    """The gradient norm that was clipped."""
    returned: float | None = None
    """The first loss that a module returned."""

    @property
    def loss(self) -> float | None:
        """The value that backward began with, otherwise what the model returned."""
        return self.roots[0] if self.roots else self.returned

    def main_loss(self) -> LossCall | None:
        """Return the call with the most targets that are classes."""
        classes = [call for call in self.losses if call.counts is not None]
        return max(classes, key=lambda call: call.target.numel(), default=None)


class ForwardWatch(TorchFunctionMode):
    """Fills a `Look` within its block."""

    def __init__(
        self,
        *,
        names: Mapping[int, str] | None = None,
        num_rows: int = 0,
        changed: Mapping[int, Tensor] | None = None,
        stops: bool = True,
        parameters: Sequence[Tensor] = (),
    ) -> None:
        """`names` are those of the modules to watch, by id; None watches none. `changed` replaces
        the tokens of lookups, by their number. `stops`: end at the first backward pass.
        `parameters` are those whose gradient norm is wanted.
        """
        super().__init__()
        self.look = Look()
        self._names = names
        self._num_rows = num_rows
        self._changed = changed or {}
        self._stops = stops
        self._parameters = parameters
        self._handle: Any = None
        self._weights: dict[tuple[int, torch.device], Tensor] = {}
        self._is_inside = False
        self._handwriting = Handwriting()
        self._of_targets: dict[int, Tensor] = {}
        """The losses of single targets, as a loss function returned them, by its number."""

    def __enter__(self) -> "ForwardWatch":
        if self._names is not None:
            self._handle = register_module_forward_hook(self._on_module, with_kwargs=True)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        if self._handle is not None:
            self._handle.remove()

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Note what the function is given, then call it."""
        kwargs = dict(kwargs or {})
        if func is torch.Tensor.backward:
            self._note_weights(args[0])
            self.look.roots.append(float(args[0].detach().sum()))
            self.look.losses_at_root.append(len(self.look.losses))
            if self._stops:
                raise BackwardReached
            if self._parameters:
                return self._note_norms(func, args, kwargs)
        elif func is F.embedding:
            args = self._note_lookup(args, kwargs)
        elif func in _CLASS_LOSSES or func in _NUMBER_LOSSES:
            return self._call_loss(func, args, kwargs)
        elif func in _DIFFERENCES:
            self._note_difference(*args[:2])
        elif func is F.dropout or func is F.scaled_dot_product_attention:
            self._note_dropout(func, args, kwargs)
        result = func(*args, **kwargs)
        if func in WATCHED:
            self._handwriting.note(func, args, kwargs, result)
        return result

    def _call_loss(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        self._note_loss(func, args, kwargs)
        result = func(*args, **kwargs)
        if result.dim() and self.look.losses[-1].counts is not None:
            self._of_targets[len(self.look.losses) - 1] = result
        return result

    def _note_weights(self, root: Tensor) -> None:
        """Note which targets count in what backward is called on, where the script decides it."""
        for number, result in self._of_targets.items():
            weights = weights_in(root, result)
            if weights is not None:
                self.look.losses[number] = self.look.losses[number].weighed(weights, result)
        self._of_targets.clear()
        for loss in self._handwriting.losses(root):
            self.look.losses.append(_call_by_hand(loss))

    def _note_norms(
        self, backward: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> Any:
        before = total_norm(self._parameters)
        result = backward(*args, **kwargs)
        self.look.norms.append((before, total_norm(self._parameters)))
        return result

    def _note_lookup(self, args: Sequence[Any], kwargs: dict[str, Any]) -> Sequence[Any]:
        given = _arguments(F.embedding, args, kwargs)
        ids = given["input"]
        number = len(self.look.lookups)
        num_embeddings = given["weight"].shape[0]
        padding = given["padding_idx"]
        padding = -1 if padding is None else padding % num_embeddings
        self.look.lookups.append(Lookup(ids.detach(), num_embeddings, padding))
        replaced = self._changed.get(number)
        if replaced is None or replaced.shape != ids.shape:
            return args
        if "input" in kwargs:
            kwargs["input"] = replaced
            return args
        return (replaced, *args[1:])

    def _note_loss(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        given = _arguments(func, args, kwargs)
        scores = given["input"]
        target = given["target"]
        is_of_classes = func in _CLASS_LOSSES and not target.is_floating_point()
        reduction = "batchmean" if func is F.kl_div else "mean"
        plain = {**given, "size_average": None, "reduce": None, "reduction": reduction}
        with torch.no_grad():
            mean = float(func(**plain)) if scores.numel() and target.numel() else float("nan")
        counts = target.detach() != given["ignore_index"] if is_of_classes else None
        is_normalised = func in _NORMALISING and _is_normalised(scores, func)
        self.look.losses.append(
            LossCall(
                func.__name__,
                scores.detach(),
                target.detach(),
                counts,
                is_normalised,
                _lacks_logarithm(func, scores, is_of_classes=is_of_classes),
                mean,
                given["ignore_index"] if is_of_classes else -1,
            )
        )

    def _note_difference(self, first: Any, second: Any = None) -> None:
        """Note a column of predictions minus a row of as many targets, or the other way round."""
        if not isinstance(first, Tensor) or not isinstance(second, Tensor):
            return
        prediction, target = (first, second) if first.requires_grad else (second, first)
        if not prediction.requires_grad or target.requires_grad:
            return
        shapes = tuple(prediction.shape), tuple(target.shape)
        column, row = sorted(shapes, key=len, reverse=True)
        if len(column) == 2 and len(row) == 1 and column == (row[0], 1) and row[0] > 1:
            self.look.stretched = shapes

    def _note_dropout(
        self, func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
    ) -> None:
        if func is F.dropout:
            given = _arguments(func, args, kwargs)
            acts = given["training"] and given["p"] > 0
            name = "F.dropout"
        else:
            share = kwargs.get("dropout_p", args[4] if len(args) > 4 else 0.0)
            acts = share > 0
            name = "F.scaled_dot_product_attention"
        if acts:
            self.look.dropouts.append(name)

    def _on_module(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        if self._names is None or self._is_inside:
            return
        if self.look.returned is None:
            loss = loss_in(output)
            self.look.returned = None if loss is None else float(loss.detach())
        self._is_inside = True
        try:
            with torch.no_grad():
                self.look.calls.append(
                    Call(
                        self._names.get(id(module), type(module).__name__),
                        type(module).__name__,
                        tuple(self._marks([*args, *kwargs.values()])),
                        tuple(self._marks([output])),
                    )
                )
        finally:
            self._is_inside = False

    def _marks(self, values: Sequence[Any]) -> list[Tensor]:
        """Return one number for each position of every floating tensor in some values."""
        found = []
        for value in values:
            if isinstance(value, Tensor):
                is_dense = value.layout is torch.strided
                if is_dense and value.is_floating_point() and value.dim() > 1 and value.numel():
                    found.append(self._mark(value.detach()))
            elif isinstance(value, Mapping):
                found += self._marks(list(value.values()))
            elif isinstance(value, tuple | list):
                found += self._marks(value)
        return found

    def _mark(self, tensor: Tensor) -> Tensor:
        """Return one number for each of the first two dimensions; for one, if there are only two
        and the second is of features.
        """
        flat = tensor.reshape(*tensor.shape[:2], -1) if tensor.dim() > 2 else tensor.unsqueeze(1)
        size = flat.shape[-1]
        weights = self._weights.get((size, flat.device))
        if weights is None:
            generator = torch.Generator().manual_seed(size)
            weights = (torch.rand(size, generator=generator) + 0.5).to(flat.device)
            self._weights[size, flat.device] = weights
        # NaN and inf are themselves again, so that a row that holds them can be compared.
        return torch.nan_to_num(flat.float() @ weights, nan=1e30)


def _call_by_hand(loss: HandwrittenLoss) -> LossCall:
    losses = F.nll_loss(loss.log_probabilities, loss.target, reduction="none")
    return LossCall(
        FUNCTION,
        loss.log_probabilities,
        loss.target,
        loss.counts,
        loss.is_normalised_twice,
        lacks_logarithm=False,
        mean=float(losses[loss.counts].mean()),
    )


def total_norm(parameters: Sequence[Tensor]) -> float:
    """Return the norm of all gradients of some parameters."""
    return norm_of(parameter.grad for parameter in parameters if parameter.grad is not None)


def norm_of(gradients: Iterable[Tensor]) -> float:
    """Return the norm of some gradients, in double precision."""
    total = 0.0
    for gradient in gradients:
        values = gradient.detach()
        if values.layout is not torch.strided:
            values = values.coalesce().values()
        total += float(values.double().square().sum())
    return math.sqrt(total)


def _arguments(
    func: Callable[..., Any], args: Sequence[Any], kwargs: dict[str, Any]
) -> dict[str, Any]:
    bound = inspect.signature(func).bind(*args, **kwargs)
    bound.apply_defaults()
    return dict(bound.arguments)


def _is_normalised(scores: Tensor, func: Callable[..., Any]) -> bool:
    """Return whether softmax, or sigmoid, made the scores."""
    expected = "SoftmaxBackward0" if func is F.cross_entropy else "SigmoidBackward0"
    node = scores.grad_fn
    while node is not None and type(node).__name__ in _VIEWS + _MORE_VIEWS:
        node = node.next_functions[0][0]
    if node is not None and type(node).__name__ == expected:
        return True
    return func is F.cross_entropy and _are_probabilities(scores)


def _lacks_logarithm(func: Callable[..., Any], scores: Tensor, *, is_of_classes: bool) -> bool:
    """Return whether a loss expects logarithms of probabilities and is given something else."""
    if func is F.nll_loss:
        return is_of_classes and not _are_log_probabilities(scores)
    if func is F.kl_div and scores.dim():
        return _are_probabilities(scores.detach().reshape(-1, scores.shape[-1]))
    return False


def _are_log_probabilities(scores: Tensor) -> bool:
    """Return whether numbers are the logarithms of probabilities that add up to 1."""
    if scores.dim() < 2 or not scores.numel():
        return True
    total = torch.logsumexp(scores.detach().float(), 1)
    return bool((total.abs() < 1e-2).all()) or not bool(total.isfinite().all())


def _are_probabilities(scores: Tensor) -> bool:
    """Return whether numbers are probabilities that add up to 1."""
    if scores.dim() < 2 or scores.shape[1] < 2 or not scores.numel():
        return False
    values = scores.detach().float()
    if float(values.min()) < 0 or float(values.max()) > 1 + 1e-3:
        return False
    return bool(((values.sum(1) - 1).abs() < 1e-2).all())
