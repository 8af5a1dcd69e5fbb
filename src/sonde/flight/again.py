"""A micro-batch's forward made again, bit for bit, while the training stands still.

Where the model returned the loss, the model is called again as it was called. Where the user said what the loss is, the step function is run
again as far as that. Gradients are set aside meanwhile, buffers and generators are put back, and FSDP2 modules let go of the weights that they
gathered, so the training goes on as if nothing had happened.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, final

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from sonde.flight.batch_tree import num_rows
from sonde.flight.moment import Moment, back_at
from sonde.flight.ring import Loss, MicroBatch, noted
from sonde.flight.token_losses import RowLosses, TokenWatch, rows_given, rows_of
from sonde.train.evaluation import generators_kept


class LossSeen(BaseException):
    """The loss of a step function that is run again."""

    def __init__(self, loss: Loss) -> None:
        super().__init__()
        self.loss = loss


def loss_in(output: Any) -> Tensor | None:
    """The loss among what a model returned: its `loss`, or the first scalar that can be differentiated."""
    found = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if found is None:
        parts = output if isinstance(output, (tuple, list)) else (output,)
        found = next((one for one in parts if isinstance(one, Tensor) and one.dim() == 0 and one.requires_grad), None)
    return found if isinstance(found, Tensor) and found.numel() == 1 else None


def returned_loss(returned: Any) -> Loss | None:
    """The loss that a step function returned: a number, a tensor of one, or what a model returns."""
    if isinstance(returned, float):
        return returned
    found = returned if isinstance(returned, Tensor) and returned.numel() == 1 else loss_in(returned)
    return None if found is None else noted(found)


def mean_loss(losses: list[Loss]) -> float | None:
    """The mean of losses, as a Python number; None without any."""
    return sum(float(one) for one in losses) / len(losses) if losses else None


@contextmanager
def standing_still(model: nn.Module, optimizer: torch.optim.Optimizer) -> Iterator[None]:
    """Within the block forwards may be made; afterwards the training is as it was."""
    parameters = [*model.parameters(), *(one for group in optimizer.param_groups for one in group["params"])]
    gradients = [(one, one.grad) for one in dict.fromkeys(parameters)]
    buffers = [(one, one.detach().clone()) for one in model.buffers()]
    for parameter, _ in gradients:
        parameter.grad = None
    try:
        with generators_kept(), torch.enable_grad():
            yield
    finally:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()  # else the next step would use weights from before the update
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient


def is_compiled(model: nn.Module) -> bool:
    """Was it, or a part of it, handed to `torch.compile`?"""
    return any(isinstance(one, torch._dynamo.OptimizedModule) or one._compiled_call_impl for one in model.modules())


def uncompiled(model: nn.Module) -> AbstractContextManager[Any]:
    """Within the block a compiled model runs as it was written: what watches single operations sees them, and nothing is compiled anew."""
    return torch.compiler.set_stance("force_eager") if is_compiled(model) else nullcontext()


@final
class Again:
    """Makes forwards of held micro-batches again. Use it inside `standing_still`."""

    def __init__(self, model: nn.Module, device_type: str, token_losses: Callable[[Any], Any] | None = None) -> None:
        self._model = model
        self._token_losses = token_losses
        self._device_type = device_type
        self.step_function: Callable[..., Any] | None = None
        """What the micro-batches went through, where the user handed it in."""
        self.stops_at = ""
        """What ends a step function that is run again: its loss "told" by the user, or "returned" by the model; empty: none is."""

    def can(self, micro: MicroBatch) -> bool:
        """Is there a way to make it again?"""
        if not micro.is_unchanged():
            return False
        return bool(micro.losses and self.step_function) or (
            not micro.losses and any(one.loss is not None for one in micro.forwards)
        )

    def loss(self, micro: MicroBatch) -> float | None:
        """Its loss."""
        if not micro.losses:
            return mean_loss(self._returned(micro))
        function, last = self.step_function, () if micro.last is None else (micro.last,)
        assert function is not None
        return mean_loss(self.to_loss(lambda: function(micro.batch, *last), micro.moment, "told"))

    def rows(self, micro: MicroBatch) -> list[RowLosses]:
        """The losses of its tokens, by rows; empty when nothing tells them."""
        return self.rows_by(lambda: self.loss(micro), micro.batch, micro.moment)

    def rows_by(self, forward: Callable[[], object], batch: Any, moment: Moment) -> list[RowLosses]:
        """The losses of a batch's tokens, watched while `forward` is made with it, or given by the user's function."""
        with uncompiled(self._model):
            if self._token_losses is not None:
                with back_at(moment, self._device_type), torch.no_grad():
                    return rows_given(self._token_losses(batch), batch)
            with TokenWatch() as watch:
                forward()
        return rows_of(watch.found, num_rows(batch))

    def _returned(self, micro: MicroBatch) -> list[Loss]:
        found: list[Loss] = []
        for forward in micro.forwards:
            if forward.loss is not None:
                with back_at(forward.moment, self._device_type):
                    loss = loss_in(self._model(*forward.args, **forward.kwargs))
                found += [] if loss is None else [noted(loss)]
        return found

    def to_loss(self, call: Callable[[], object], moment: Moment, loss_from: str) -> list[Loss]:
        """The loss of a step function, which is run as far as that; empty when it comes to its end without."""
        self.stops_at = loss_from
        try:
            with back_at(moment, self._device_type):
                call()
        except LossSeen as seen:
            return [seen.loss]
        finally:
            self.stops_at = ""
        return []
