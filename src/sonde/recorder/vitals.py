"""What may grow before a spike, measured every 50 updates if the option `vitals` is set: the size
of the update, also relative to the weights, the output layer's weights, and the gradient norm of
up to eight parameter groups.

Of a tensor of more than 262,144 values a sample of 65,536 is read, and its squares are scaled up,
so little memory is needed for the weights before the update. Nothing waits for a device: values on
one are read by the worker (vitals_book.py). Weights that are sharded over ranks are not measured.

Cost: benchmarks/vitals.py.
"""

from typing import Any, Final

import torch
from torch import Tensor, nn

from sonde.checkpoint.digest import sample_of
from sonde.forensics.precursors import GROUP_NORM, OUTPUT_NORM, UPDATE_NORM, UPDATE_RATIO
from sonde.log.device import begin_copy
from sonde.recorder.guard import Guard, guarded
from sonde.recorder.hooks import norm_of_gradients
from sonde.recorder.training import Training
from sonde.recorder.update import Measured, Update

EVERY: Final = 50
"""How many updates pass between two measurements."""
_MAX_GROUPS: Final = 8


class VitalsWatch:
    """Measures the vitals of one training, if that was asked for."""

    def __init__(self, training: Training, guard: Guard) -> None:
        self.guard = guard
        self._training = training
        self.is_on = training.options.vitals
        """Whether vitals are measured."""
        if self.is_on and training.is_sharded:
            self.is_on = False
            guard.tell("vitals", "sonde: vitals are not measured, because the weights are sharded")
        self._step = 0
        self._before: list[tuple[Tensor, Tensor]] = []
        self._group_norms: dict[str, Any] = {}

    def before_step(self, update: Update | None) -> None:
        """Remember the weights if this update is to be measured."""
        if update is not None and update.step % EVERY == 0:
            self._remember(update)

    def after_step(self, update: Update) -> None:
        """Measure what the optimizer has done, if its weights were remembered."""
        if self._before and update.step == self._step:
            self._measure(update)

    @guarded("vitals are not measured")
    @torch.no_grad()
    def _remember(self, update: Update) -> None:
        if self._before and self._step == update.step:
            return  # a closure calls this several times in a step
        self._step = update.step
        self._before = []
        self._group_norms = {}
        groups = self._training.optimizer.param_groups
        for group in groups:
            for parameter in group["params"]:
                if parameter.grad is not None and parameter.layout is torch.strided:
                    self._before.append((parameter, sample_of(parameter).float().clone()))
        if len(groups) < 2:
            return
        for number, group in enumerate(groups[:_MAX_GROUPS]):
            norm = norm_of_gradients(group["params"])
            if norm is not None:
                self._group_norms[f"{GROUP_NORM}{number}"] = norm

    @guarded("vitals are not measured")
    @torch.no_grad()
    def _measure(self, update: Update) -> None:
        before = self._before
        self._before = []
        device = before[0][0].device
        moved = []
        sizes = []
        for parameter, old in before:
            share = old.numel() / parameter.numel()
            new = sample_of(parameter).float()
            moved.append((torch.linalg.vector_norm(new - old).square() / share).to(device))
            sizes.append((torch.linalg.vector_norm(old).square() / share).to(device))
        update_norm = torch.stack(moved).sum().sqrt()
        weight_norm = torch.stack(sizes).sum().sqrt()
        values = {UPDATE_NORM: update_norm, UPDATE_RATIO: update_norm / weight_norm}
        layer = output_layer(self._training.model)
        if layer is not None:
            weight: Any = layer.weight
            values[OUTPUT_NORM] = torch.linalg.vector_norm(weight, dtype=torch.float32)
        values |= self._group_norms
        table = torch.stack([value.float().to(device) for value in values.values()])
        update.vitals = Measured(
            list(values), table.tolist() if table.is_cpu else begin_copy(table)
        )


def output_layer(model: nn.Module) -> nn.Module | None:
    """Return the output layer of a model: the one it names itself, as models of transformers do,
    otherwise its last linear or convolutional layer. None if there is none.
    """
    named = getattr(model, "get_output_embeddings", None)
    layer = named() if callable(named) else None
    if isinstance(layer, nn.Module) and isinstance(getattr(layer, "weight", None), Tensor):
        return layer
    kinds = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    layers = [module for module in model.modules() if isinstance(module, kinds)]
    return layers[-1] if layers else None
