"""Models that do odd things in their forward passes: each takes [rows, 8] and gives [rows, 4]."""

import random
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from loops.context import network
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint


class Base(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = network()


class ReassignedBuffer(Base):
    """`self.ema = …` makes another tensor of the buffer at every call."""

    ema: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ema", torch.zeros(8))

    def forward(self, x: Tensor) -> Tensor:
        self.ema = 0.9 * self.ema + 0.1 * x.detach().mean(0)
        return self.inner(x - self.ema)


class ExpandedBuffer(Base):
    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1).expand(8))
        self._one = self.seen[:1]

    def forward(self, x: Tensor) -> Tensor:
        self._one.add_(0.01)
        return self.inner(x + self.seen)


class OverlappingBuffers(Base):
    whole: Tensor
    upper: Tensor

    def __init__(self) -> None:
        super().__init__()
        memory = torch.zeros(12)
        self.register_buffer("whole", memory[:8])
        self.register_buffer("upper", memory[4:])

    def forward(self, x: Tensor) -> Tensor:
        self.upper.add_(0.01)
        return self.inner(x + self.whole)


class PlainTensor(Base):
    """A tensor that is no buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.total = torch.zeros(8)

    def forward(self, x: Tensor) -> Tensor:
        self.total += x.detach().mean(0) * 0.01
        return self.inner(x + self.total)


class TensorList(Base):
    def __init__(self) -> None:
        super().__init__()
        self.past = [torch.zeros(8)]

    def forward(self, x: Tensor) -> Tensor:
        self.past.append(x.detach().mean(0) * 0.01)
        return self.inner(x + torch.stack(self.past[-3:]).mean(0))


class OwnTorchGenerator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.generator = torch.Generator().manual_seed(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + 0.1 * torch.randn(x.shape, generator=self.generator))


class OwnNumpyGenerator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.generator = np.random.default_rng(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + 0.1 * torch.from_numpy(self.generator.standard_normal(8)).float())


class OwnPythonGenerator(Base):
    def __init__(self) -> None:
        super().__init__()
        self.generator = random.Random(3)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.generator.gauss(0, 0.1))


class GlobalPythonGenerator(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + random.gauss(0, 0.1))


class GlobalNumpyGenerator(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + float(np.random.normal(0, 0.1)))  # noqa: NPY002


class PythonCounter(Base):
    def __init__(self) -> None:
        super().__init__()
        self.num_calls = 0

    def forward(self, x: Tensor) -> Tensor:
        self.num_calls += 1
        return self.inner(x * (1 + 0.001 * self.num_calls))


class CounterInADict(Base):
    def __init__(self) -> None:
        super().__init__()
        self.counts = {"calls": 0}

    def forward(self, x: Tensor) -> Tensor:
        self.counts["calls"] += 1
        return self.inner(x * (1 + 0.001 * self.counts["calls"]))


class BatchNorm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 4)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class TiedWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.second(self.first(x).relu()))


class SpectralNorm(Base):
    """A parametrisation whose buffers change in every forward pass."""

    def __init__(self) -> None:
        super().__init__()
        parametrizations.spectral_norm(self.inner[0])

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Checkpointed(Base):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


class CheckpointedReentrant(Base):
    def forward(self, x: Tensor) -> Tensor:
        return checkpoint(self.inner, x.requires_grad_(), use_reentrant=True)


class LazyModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4))
        self.inner(torch.zeros(1, 8))

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class UninitialisedBuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("later", nn.UninitializedBuffer())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class ComplexWeights(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 4, dtype=torch.complex64) * 0.1)

    def forward(self, x: Tensor) -> Tensor:
        return (x.to(torch.complex64) @ self.weight).abs()


class FrozenMeta(Base):
    """A frozen part that is never called and has no memory."""

    def __init__(self) -> None:
        super().__init__()
        self.absent = nn.Linear(4, 4, device="meta").requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Quantised(Base):
    """A quantised buffer beside the weights."""

    def __init__(self) -> None:
        super().__init__()
        numbers = torch.quantize_per_tensor(torch.randn(8), 0.1, 0, torch.qint8)
        self.register_buffer("numbers", numbers)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x + self.get_buffer("numbers").dequantize())


class SparseBuffer(Base):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mask", torch.eye(8).to_sparse())

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(torch.sparse.mm(self.get_buffer("mask"), x.T).T)


class StateDictRaises(Base):
    def state_dict(self, *args: object, **kwargs: object) -> dict[str, Tensor]:  # type: ignore[override]
        raise RuntimeError("this model does not like to be saved")

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class HookThatChanges(Base):
    """A forward hook of the user's own changes the output."""

    def __init__(self) -> None:
        super().__init__()
        self.inner.register_forward_hook(lambda *given: given[-1] * 1.01)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class ModeSwitch(Base):
    """Switches a part to evaluation in its forward pass."""

    def forward(self, x: Tensor) -> Tensor:
        self.inner[2].train(not self.inner[2].training)
        return self.inner(x)


class Half(nn.Module):
    """Weights in half precision."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network().bfloat16()

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.bfloat16()).float()


class Embeddings(nn.Module):
    """Sparse gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8, sparse=True)
        self.inner = network()

    def forward(self, x: Tensor) -> Tensor:
        rows = (x[:, 0].abs() * 5).long().clamp(0, 19)
        return self.inner(x + self.table(rows))


class Functional(nn.Module):
    """Uses its weights through `functional_call`."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()

    def forward(self, x: Tensor) -> Tensor:
        weights = {name: 1.0 * weight for name, weight in self.inner.named_parameters()}
        return torch.func.functional_call(self.inner, weights, (x,))


class ManyCalls(Base):
    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + self.inner(F.normalize(x))


class LazyUntilCalled(nn.Module):
    """Its weights get their shape in the first step."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(
            nn.LazyLinear(16), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(4)
        )

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class HooksEverywhere(nn.Module):
    """Hooks keep activations, which count, and change gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = network()
        self.seen: dict[str, Tensor] = {}
        for name, module in self.inner.named_modules():
            module.register_forward_hook(lambda *given, name=name: self._note(name, given[-1]))
        next(self.parameters()).register_hook(lambda gradient: gradient * 1.1)

    def _note(self, name: str, output: Tensor) -> None:
        self.seen[name] = output

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) + 0.1 * self.seen["0"].mean()


class DroppedLayers(nn.Module):
    """Leaves layers out by two generators."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([network(8, 8) for _ in range(3)])
        self.last = nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            if torch.rand(()) > 0.3 and random.random() > 0.1:
                x = x + layer(x)
        return self.last(x)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "buffer reassigned": ReassignedBuffer,
    "buffer expanded": ExpandedBuffer,
    "buffers that overlap": OverlappingBuffers,
    "tensor that is no buffer": PlainTensor,
    "list of tensors that grows": TensorList,
    "own torch generator": OwnTorchGenerator,
    "own numpy generator": OwnNumpyGenerator,
    "own Python generator": OwnPythonGenerator,
    "global Python generator": GlobalPythonGenerator,
    "global numpy generator": GlobalNumpyGenerator,
    "counter": PythonCounter,
    "counter in a dict": CounterInADict,
    "BatchNorm": BatchNorm,
    "tied weights": TiedWeights,
    "spectral norm": SpectralNorm,
    "checkpointing": Checkpointed,
    "checkpointing, reentrant": CheckpointedReentrant,
    "lazy modules": LazyModule,
    "uninitialised buffer": UninitialisedBuffer,
    "complex weights": ComplexWeights,
    "frozen meta parameters": FrozenMeta,
    "quantised buffer": Quantised,
    "sparse buffer": SparseBuffer,
    "state_dict that raises": StateDictRaises,
    "hook of the user's own": HookThatChanges,
    "mode switched in forward": ModeSwitch,
    "half precision": Half,
    "functional call": Functional,
    "called twice": ManyCalls,
    "lazy until the first step": LazyUntilCalled,
    "hooks everywhere": HooksEverywhere,
    "layers left out at random": DroppedLayers,
}
"""`Embeddings` is not here: most optimizers refuse sparse gradients."""
