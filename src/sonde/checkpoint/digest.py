"""The digest of a live training: what its state is, in a few kilobytes.

    digest = take_digest(Live(model, optimizer, {"scheduler": scheduler}), step=200)

Tensors are read where they are and none is copied. One of up to 262,144 values is hashed whole; of
a larger one 64 blocks of 1,024 values, spread evenly, are hashed. A state of another step differs
nearly everywhere, so the sample shows it; a change of a few values may be missed. The hash is the
CRC-32 of zlib-ng, which is as fast as xxh3 and always installed. Names are those of the model
without its wrappers. Nothing is exchanged between ranks: of a sharded tensor this rank's part is
read. benchmarks/digest.py measures the cost.
"""

import random
import struct
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from zlib_ng.zlib_ng import crc32

from sonde.checkpoint.digest_log import (
    GeneratorDigest,
    Mode,
    MomentDigest,
    SamplesSeen,
    StateDigest,
    TensorDigest,
)
from sonde.checkpoint.weights import bare
from sonde.records.values import encode

_MAX_WHOLE: Final = 1 << 18
_BLOCK: Final = 1024
_NUM_BLOCKS: Final = 64
_MAX_PLAIN: Final = 1000
"""A value of the state of a named object is recorded as it is up to this many bytes of JSON."""
_NUM_NAMES: Final = 4
"""How many samples of an update are named."""
_NUM_MODULES: Final = 20
_WRAPPERS: Final = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_TORCH_STATE: Final = struct.Struct("<Qiiq4992s")
"""The state of torch's CPU generator: seed, how many are left, whether seeded, position, block."""
_MT_SIZE: Final = 624
"""How many numbers a Mersenne Twister draws from one block."""


class Live(NamedTuple):
    """The parts of a training whose state counts."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    named: Mapping[str, Any]
    """Everything else that has a `state_dict`: scheduler, scaler."""


def take_digest(live: Live, step: int, **about: Any) -> StateDigest:
    """Return the digest of a training after `step` updates. `about` are further fields of it."""
    tensors, is_sharded = _tensors(live.model)
    moments = _Moments()
    names = {id(parameter): name for name, parameter in _parameters(live.model)}
    moments.add(live.optimizer, names)
    objects: dict[str, Any] = {}
    for name, part in live.named.items():
        if isinstance(part, torch.optim.Optimizer):
            moments.add(part, names)
        else:
            objects[name] = _plain_state(part)
    counts = moments.counts
    return StateDigest(
        step=step,
        time=time.time(),
        is_sharded=is_sharded,
        tensors=tensors,
        optimizer=type(live.optimizer).__name__,
        moments=moments.by_kind,
        num_without_moments=moments.num_without,
        counts=(min(counts), max(counts)) if counts else None,
        rates=rates_of(live.optimizer),
        objects=objects,
        **about,
    )


class _Moments:
    """The state of the optimizers, as it is read."""

    def __init__(self) -> None:
        self.by_kind: dict[str, dict[str, MomentDigest]] = {}
        self.counts: list[float] = []
        self.num_without = 0

    def add(self, optimizer: torch.optim.Optimizer, names: Mapping[int, str]) -> None:
        """Read the state of an optimizer."""
        for name, parameter in _trained(optimizer, names):
            state = optimizer.state.get(parameter)
            if not state:
                self.num_without += 1
                continue
            for kind, value in state.items():
                if kind == "step":
                    self.counts.append(float(value))
                elif isinstance(value, Tensor) and value.dim():
                    digest = MomentDigest(*_hash_and_norm(value))
                    self.by_kind.setdefault(kind, {})[name] = digest


def rates_of(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the learning rate of every group that has one."""
    rates = [group.get("lr") for group in optimizer.param_groups]
    return [float(rate) for rate in rates if rate is not None]


def mode_of(model: nn.Module) -> Mode:
    """Return whether a model trains, and which of its modules do not as it does."""
    others: list[str] = []
    for name, module in bare(model).named_modules():
        own = _plain_name(name)
        is_inside = any(own.startswith(f"{other}.") for other in others)
        if module.training != model.training and not is_inside:
            others.append(own)
    return Mode(model.training, others[:_NUM_MODULES])


def samples_seen(names: Sequence[tuple[str, int]]) -> SamplesSeen | None:
    """Return the samples of an update; None if they have no names."""
    if not names:
        return None
    return SamplesSeen(
        names[:_NUM_NAMES], len(names), _hash(encode([list(name) for name in names]))
    )


def generator_digests(states: Mapping[str, Any]) -> dict[str, GeneratorDigest]:
    """Return the digests of generators, given as `determinism.generators` returns them."""
    version, internal, gauss = states["python"]
    found = {
        "torch": torch_generator(states["torch"]),
        "python": _python_generator((version, tuple(internal), gauss)),
        "numpy": _numpy_generator(states["numpy"]),
    }
    for number, state in enumerate(states.get("cuda", ())):
        # Philox: a seed, and how many numbers were drawn.
        found[f"cuda:{number}"] = GeneratorDigest(
            _hash(state[:8]), int.from_bytes(state[8:16], "little")
        )
    return found


def torch_generator(state: bytes) -> GeneratorDigest:
    """Return the digest of torch's CPU generator."""
    if len(state) < _TORCH_STATE.size:
        return GeneratorDigest(_hash(state), 0)
    other = torch.Generator()
    other.set_state(torch.frombuffer(bytearray(state), dtype=torch.uint8))
    torch.empty(_MT_SIZE, dtype=torch.int32).random_(generator=other)
    *_, position, block = _TORCH_STATE.unpack_from(state)
    *_, next_block = _TORCH_STATE.unpack_from(other.get_state().numpy().tobytes())
    return GeneratorDigest(_hash(block), position, _hash(next_block))


def _python_generator(state: Any) -> GeneratorDigest:
    other = random.Random()
    other.setstate(state)
    other.getrandbits(32 * _MT_SIZE)
    return GeneratorDigest(_words(state[1][:-1]), state[1][-1], _words(other.getstate()[1][:-1]))


def _numpy_generator(state: Mapping[str, Any]) -> GeneratorDigest:
    key = np.frombuffer(state["state"]["key"], np.uint32)
    other = np.random.MT19937()
    other.state = {
        "bit_generator": "MT19937",
        "state": {"key": key, "pos": state["state"]["pos"]},
    }
    other.random_raw(_MT_SIZE)
    after: Any = other.state
    return GeneratorDigest(_words(key), int(state["state"]["pos"]), _words(after["state"]["key"]))


def _words(numbers: Any) -> str:
    return _hash(np.asarray(numbers, np.uint32).tobytes())


def _tensors(model: nn.Module) -> tuple[dict[str, TensorDigest], bool]:
    """Return the digests of weights and buffers, and whether they are parts."""
    found: dict[str, TensorDigest] = {}
    is_sharded = False
    for name, parameter in _parameters(model):
        found[name] = _tensor_digest(parameter, is_trainable=parameter.requires_grad)
        is_sharded = is_sharded or isinstance(parameter, DTensor)
    left_out = _not_saved(model)
    for name, buffer in bare(model).named_buffers():
        if name not in left_out:
            found[_plain_name(name)] = _tensor_digest(buffer, is_trainable=False)
    return found, is_sharded


def _not_saved(model: nn.Module) -> set[str]:
    """Return the names of buffers that no checkpoint has."""
    saved: Mapping[str, Any] = {}
    buffers = {name for name, _ in bare(model).named_buffers()}
    if buffers:
        saved = bare(model).state_dict()
    return buffers - saved.keys()


def _parameters(model: nn.Module) -> Iterator[tuple[str, nn.Parameter]]:
    for name, parameter in bare(model).named_parameters():
        yield _plain_name(name), parameter


def _plain_name(name: str) -> str:
    for wrapper in _WRAPPERS:
        name = name.replace(wrapper, "")
    return name


def _trained(
    optimizer: torch.optim.Optimizer, names: Mapping[int, str]
) -> Iterator[tuple[str, nn.Parameter]]:
    """Yield the parameters that an optimizer moves, with their names."""
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if parameter.requires_grad:
                yield names.get(id(parameter), f"group {number}, {place}"), parameter


def hash_of(tensor: Tensor) -> str:
    """Return a hash of a tensor, or of a sample of it; empty if it has no values to read."""
    return _hash_and_norm(tensor)[0]


def _tensor_digest(tensor: Tensor, *, is_trainable: bool) -> TensorDigest:
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorDigest(*_hash_and_norm(tensor), dtype, list(tensor.shape), is_trainable)


@torch.no_grad()
def _hash_and_norm(tensor: Tensor) -> tuple[str, float]:
    """Return a hash and the norm of a tensor, or of a sample of it. Of a sharded tensor, the norm
    is that of this rank's whole part, so that those of all ranks make up the norm of the tensor.
    """
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    if own.is_meta or own.layout is not torch.strided or not own.numel():
        return "", 0.0
    values = sample_of(own.detach()).cpu()
    hashed = _hash(values.view(torch.uint8).numpy())
    if isinstance(tensor, DTensor):
        if _is_copy(tensor):
            return hashed, 0.0
        values = own.detach()
    norm = torch.linalg.vector_norm(values.float())
    return hashed, float(f"{norm.item():.7g}")


def _is_copy(tensor: DTensor) -> bool:
    """Return whether another rank has the same part of a tensor, and counts it."""
    for dimension, placement in enumerate(tensor.placements):
        if placement.is_replicate() and tensor.device_mesh.get_local_rank(dimension) != 0:
            return True
    return False


def sample_of(tensor: Tensor) -> Tensor:
    """Return the values of a tensor that are read, in a row. They may be the tensor's own."""
    if tensor.numel() <= _MAX_WHOLE:
        return tensor.contiguous().reshape(-1)
    if not tensor.is_contiguous():
        every = max(len(tensor) // _NUM_BLOCKS, 1)
        return tensor[::every].contiguous().reshape(-1)
    num = tensor.numel() // _BLOCK
    blocks = tensor.reshape(-1)[: num * _BLOCK].view(num, _BLOCK)
    return blocks[:: num // _NUM_BLOCKS].reshape(-1)


def _plain_state(part: Any) -> dict[str, Any]:
    """Return the state of a named object: its small values, and a hash of each larger one."""
    state = part.state_dict()
    if not isinstance(state, Mapping):
        state = {"state": state}
    found: dict[str, Any] = {}
    for name, value in state.items():
        plain = _plain(value)
        encoded = encode(plain)
        is_small = len(encoded) <= _MAX_PLAIN
        found[str(name)] = plain if is_small else {"hash": _hash(encoded)}
    return found


def _plain(value: Any) -> Any:
    """Return a value of a state with numbers in place of scalar tensors, and hashes of others."""
    if isinstance(value, Tensor):
        return value.item() if value.numel() == 1 else {"hash": _hash_and_norm(value)[0]}
    if isinstance(value, Mapping):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    if isinstance(value, (str, int, float, type(None))):
        return value
    return type(value).__name__


def _hash(payload: Any) -> str:
    return f"{crc32(payload):08x}"
