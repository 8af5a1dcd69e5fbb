"""The hooks that see what a training does: forward and backward passes, the gradient norm, the
optimizer's step.

What they see goes to one `Observer` at a time: the pipeline while the loop is recorded, another one
while a step is run again or replayed, and nobody while sonde itself uses the model.

Torch has public hooks for modules and optimizers. Two of its functions are wrapped while hooks are
open, and work as before: `torch.autograd.backward`, which `loss.backward()` calls, and
`torch.nn.utils.clip_grad_norm_`, whose result is the norm before the user's own clipping. A loop
that imported the latter by name earlier is not seen; it can call `recorder.grad_norm(norm)`.

The optimizer hooks are global: an optimizer that is made anew in the middle of a training is seen
too.
"""

import functools
import threading
from abc import ABC
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, Final, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from torch.utils.hooks import RemovableHandle

Function: TypeAlias = Callable[..., Any]

_ORIGINAL: Final = "sonde_original"
"""The attribute of a wrapped function with the function as it was."""

STANDING_STILL: "Final[dict[int, Hooks]]" = {}
"""By thread: the hooks of the recorder that runs a step again in it. Nearly always empty, so this
is asked first.
"""


_TOLD_IN_A_STEP: Final = (
    *("forward_begins", "forward_ends", "loss_reported", "backward_begins", "norm_seen"),
    *("before_step", "after_step"),
)
"""The methods of an observer."""


class OptimizerMoves(BaseException):
    """Ends a step that is run again where it would move an optimizer."""


class Observer(ABC):
    """Receives what the hooks see. Each method does nothing unless it is overridden."""

    meets_compilation = False
    """Whether the step function uses compiled functions, which may call the recorder."""

    def forward_begins(self, args: tuple[Any, ...], kwargs: dict[str, Any], trains: bool) -> None:
        """The model is called with gradients enabled; `trains` is whether in training mode."""

    def forward_ends(self, output: Any) -> None:
        """The model returned."""

    def loss_reported(self, loss: Tensor, token_losses: Tensor | None = None) -> None:
        """The user says what the loss is, and perhaps that of every token."""

    def backward_begins(self, loss: Tensor) -> None:
        """Backward is called on a single number."""

    def norm_seen(self, norm: Any) -> None:
        """The gradient norm is known."""

    def before_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer is about to move."""

    def after_step(self, optimizer: torch.optim.Optimizer) -> None:
        """An optimizer has moved."""

    def keep_from_compilation(self) -> None:
        """Let torch compile nothing of what is called here: a step function that is compiled calls
        it, and our generators and looks would become another code.
        """
        self.meets_compilation = True
        for name in _TOLD_IN_A_STEP:
            setattr(self, name, torch.compiler.disable(getattr(self, name)))


class _ModelHook:
    """A hook on the calls of a model. A copy of the model, and one from a file, has none of ours:
    theirs does nothing, and needs no sonde.
    """

    def __init__(self, call: Callable[..., None]) -> None:
        self._call = call

    def __call__(self, *given: Any) -> None:
        self._call(*given)

    def __deepcopy__(self, memo: dict[int, Any]) -> Callable[..., None]:
        return nullcontext().__exit__

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


class Hooks:
    """The hooks of one recorder."""

    def __init__(self, model: nn.Module) -> None:
        self.observer: Observer = NOBODY
        """Who receives what is seen."""
        self.stands_still = False
        """Whether no optimizer may move, because a step is run again."""
        self.clip_limit: Any = None
        """The largest norm that the loop's own clipping allows; None if it does not clip."""
        self._forward_handles: list[RemovableHandle] = []
        if not isinstance(model, torch.jit.ScriptModule):  # these refuse hooks with keywords
            before = model.register_forward_pre_hook(_ModelHook(self._on_forward), with_kwargs=True)
            after = model.register_forward_hook(_ModelHook(self._on_output), with_kwargs=True)
            self._forward_handles += [before, after]
        self._handles = [
            register_optimizer_step_pre_hook(self._before_optimizer),
            register_optimizer_step_post_hook(self._after_optimizer),
        ]
        _clipping.listen(self._on_norm)
        _backward.listen(self._on_backward)

    @contextmanager
    def standing_still(self) -> Iterator[None]:
        """Within the block, let no optimizer move in this thread, and no other recorder see what
        happens in it. Other threads may train something else meanwhile.
        """
        thread = threading.get_ident()
        before = STANDING_STILL.get(thread)
        STANDING_STILL[thread] = self
        self.stands_still = True
        try:
            yield
        finally:
            self.stands_still = False
            del STANDING_STILL[thread]
            if before is not None:
                STANDING_STILL[thread] = before

    def heeds(self) -> bool:
        """Return whether what happens in this thread is for this recorder, while a step is run
        again somewhere.
        """
        owner = STANDING_STILL.get(threading.get_ident())
        if owner is None:  # it is another thread that trains, or one of torch's for backward
            return not self.stands_still or threading.current_thread().name.startswith("Dummy")
        return owner is self

    def tells(self, observer: Observer) -> bool:
        """Return whether an observer is told of what happens in this thread."""
        return self.observer is observer and (not STANDING_STILL or self.heeds())

    @contextmanager
    def observed_by(self, observer: Observer) -> Iterator[None]:
        """Send what is seen within the block to somebody else."""
        before = self.observer
        self.observer = observer
        try:
            yield
        finally:
            self.observer = before

    def leave_to_the_parent(self) -> None:
        """In a forked child, see nothing and hold nothing up, even if a step was run again."""
        self.observer = NOBODY
        self.stands_still = False
        STANDING_STILL.clear()

    def leave_the_model(self) -> None:
        """Remove the hooks on the model's calls, which cost at every forward pass."""
        for handle in self._forward_handles:
            handle.remove()
        self._forward_handles.clear()

    def leave_backward(self) -> None:
        """Listen no longer to backward passes, because the loss is known without them."""
        _backward.leave(self._on_backward)

    def close(self) -> None:
        """Remove all hooks."""
        self.observer = NOBODY
        self.leave_the_model()
        self.leave_backward()
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        _clipping.leave(self._on_norm)

    def _on_forward(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if STANDING_STILL and not self.heeds():
            return
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.observer.forward_begins(args, kwargs, module.training)

    def _on_output(self, module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        del module, args, kwargs
        if STANDING_STILL and not self.heeds():
            return
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            self.observer.forward_ends(output)

    def _on_backward(self, tensors: Any) -> None:
        if STANDING_STILL and not self.heeds():
            return
        loss = tensors[0] if isinstance(tensors, (list, tuple)) and len(tensors) == 1 else tensors
        if isinstance(loss, Tensor) and loss.numel() == 1 and not torch.compiler.is_compiling():
            self.observer.backward_begins(loss)

    def _on_norm(self, norm: Any, limit: Any) -> None:
        if STANDING_STILL and not self.heeds():
            return
        self.clip_limit = limit
        self.observer.norm_seen(norm)

    def _before_optimizer(
        self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any
    ) -> tuple[Any, Any] | None:
        """An optimizer is called. If it has a closure, that runs forward and backward, so the
        observer is told when the closure has run.
        """
        if STANDING_STILL and not self.heeds():
            return None
        closure = kwargs.get("closure") or (args[1] if len(args) > 1 else None)
        if not callable(closure):  # the step of a class of the user's may take something else
            if self.stands_still:
                raise OptimizerMoves
            self.observer.before_step(optimizer)
            return None

        def followed(*given: Any, **named: Any) -> Any:
            result = closure(*given, **named)
            if self.stands_still:
                raise OptimizerMoves
            self.observer.before_step(optimizer)
            return result

        if "closure" in kwargs:
            return args, {**kwargs, "closure": followed}
        return (args[0], followed, *args[2:]), kwargs

    def _after_optimizer(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        del args, kwargs
        if not STANDING_STILL or self.heeds():
            self.observer.after_step(optimizer)


class Nobody(Observer):
    """Is interested in nothing."""


NOBODY = Nobody()


class OverheardFunction:
    """A function of torch that is wrapped as long as somebody listens to its calls."""

    def __init__(
        self, wrap: Callable[[Function, list[Function]], Function], *places: tuple[Any, str]
    ) -> None:
        """`wrap` makes the wrapped function from the original and its listeners; `places` are the
        modules that have it, and its name there.
        """
        self._wrap = wrap
        self._places = places
        self._listeners: list[Function] = []

    def listen(self, listener: Function) -> None:
        """Tell `listener` of every call."""
        if not self._listeners:
            original = getattr(*self._places[0])
            overheard = functools.wraps(original)(self._wrap(original, self._listeners))
            setattr(overheard, _ORIGINAL, original)
            self._put(overheard)
        self._listeners.append(listener)

    def leave(self, listener: Function) -> None:
        """Tell `listener` no more; without any listener, the original is put back."""
        if listener not in self._listeners:
            return
        self._listeners.remove(listener)
        # Somebody else may have wrapped it after us: then ours stays inside, and does nothing.
        original = getattr(getattr(*self._places[0]), _ORIGINAL, None)
        if not self._listeners and original is not None:
            self._put(original)

    def _put(self, function: Function) -> None:
        for module, name in self._places:
            setattr(module, name, function)


def _overheard_clipping(original: Function, listeners: list[Function]) -> Function:
    def overheard(*args: Any, **kwargs: Any) -> Any:
        norm = original(*args, **kwargs)
        limit = args[1] if len(args) > 1 else kwargs.get("max_norm")
        for listener in listeners:
            listener(norm, limit)
        return norm

    return overheard


def _overheard_value_clipping(original: Function, listeners: list[Function]) -> Function:
    def overheard(parameters: Any, *args: Any, **kwargs: Any) -> Any:
        listed = [parameters] if isinstance(parameters, Tensor) else list(parameters)
        for listener in listeners:
            listener(listed)
        return original(listed, *args, **kwargs)

    return overheard


def _overheard_backward(original: Function, listeners: list[Function]) -> Function:
    def overheard(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if grad_tensors is None:  # otherwise it is a part of another backward pass
            for listener in listeners:
                listener(tensors)
        return original(tensors, grad_tensors, *args, **kwargs)

    return overheard


_clipping = OverheardFunction(
    _overheard_clipping, (clip_grad, "clip_grad_norm_"), (torch.nn.utils, "clip_grad_norm_")
)
value_clipping = OverheardFunction(
    _overheard_value_clipping, (clip_grad, "clip_grad_value_"), (torch.nn.utils, "clip_grad_value_")
)
"""Tells which gradients are about to be clipped by value. Only a check listens."""
_backward = OverheardFunction(_overheard_backward, (torch.autograd, "backward"))


def gradient_norm(optimizer: torch.optim.Optimizer) -> Any:
    """Return the norm of all gradients of an optimizer's parameters; None if there are none."""
    parameters: list[Tensor] = []
    for group in optimizer.param_groups:
        parameters += group["params"]
    return norm_of_gradients(parameters)


def norm_of_gradients(parameters: Iterable[Tensor]) -> Any:
    """Return the norm of the gradients of some parameters; None if there are none."""
    gradients = []
    for parameter in parameters:
        gradient = parameter.grad
        if gradient is not None:
            gradients.append(_dense(gradient))
    if not gradients:
        return None
    if len(gradients) == 1:
        return torch.linalg.vector_norm(gradients[0])
    return torch.nn.utils.get_total_norm(gradients)


def has_gradients(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether the first parameter has a gradient. The others are not asked, because
    this is called at every update.
    """
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            return parameter.grad is not None
    return False


def are_gradients_left(optimizer: torch.optim.Optimizer) -> bool:
    """Return whether any gradient is there that is not zero."""
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.grad is not None and bool((_dense(parameter.grad) != 0).any()):
                return True
    return False


def _dense(gradient: Tensor) -> Tensor:
    """Return the values of a gradient as a dense tensor. Those of float16 become float32, in which
    their norm does not overflow.
    """
    if gradient.layout is not torch.strided:
        gradient = gradient.coalesce().values()
    return gradient.float() if gradient.dtype is torch.float16 else gradient
