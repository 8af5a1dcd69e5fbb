"""The parameters of a model before training: are they all in the optimiser, and how will their gradients come together?"""

from binascii import crc32

import torch
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from sonde import ranks
from sonde.errors import SettingError
from sonde.train.gradients import DdpSum, GradientSum, GradientSync, OrderedGradientSum, ShardedSum, trainable
from sonde.train.settings import TrainerSettings


def check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Refuse an optimiser that does not hold every trainable parameter: what it lacks would silently stay as it is."""
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    named = [(name, parameter) for name, parameter in model.named_parameters() if parameter.requires_grad]
    if not named:
        raise SettingError("the model has no parameter that requires a gradient")
    missing = [name for name, parameter in named if id(parameter) not in held]
    if missing:
        raise SettingError(
            f"the optimiser does not hold {len(missing)} of the model's {len(named)} parameters: {', '.join(missing[:10])}",
            cause="they were created after it, or left out of its parameter groups",
            hint="build the optimiser from model.parameters() last, or freeze them with requires_grad_(False)",
        )


def describe_shapes(model: nn.Module) -> str:
    """The parameters in short, other for every other shape: ranks that differ must be refused before they exchange anything."""
    shapes = [f"{name} {list(one.shape)} {one.dtype}" for name, one in model.named_parameters()]
    num_values = sum(one.numel() for one in model.parameters())
    return f"{num_values:,} values in {len(shapes)} tensors, shapes {crc32(' '.join(shapes).encode()):08x}"


def choose_sync(model: nn.Module, settings: TrainerSettings) -> GradientSync:
    """How gradients come together: as the model's wrapper asks, ordered if asked, else the plain sum."""
    is_wrapped = isinstance(model, (DistributedDataParallel, FSDPModule))
    if settings.ordered and is_wrapped:
        raise SettingError(
            f"ordered sums need replicated parameters, not {type(model).__name__}",
            hint="train the bare model with ordered=True, or the wrapped one without",
        )
    if isinstance(model, DistributedDataParallel):
        return DdpSum(model)
    if isinstance(model, FSDPModule):
        return ShardedSum(model)
    if settings.ordered:
        return OrderedGradientSum(trainable(model), settings.update_freq * ranks.world_size())
    return GradientSum(trainable(model))
