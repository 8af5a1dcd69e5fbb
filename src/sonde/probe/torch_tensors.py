"""PyTorch tensors for the probe: every dtype, layout and device.

A contiguous CPU tensor of an ordinary dtype is measured in place. Everything else is converted
piece by piece: strided views, complex (by magnitude), fp8 and quantized (by value), sparse (the
stored values plus the implicit zeros), DTensor (this rank's shard). On other devices the numbers
are computed there and read when the records are written, so nothing waits for the device.
"""

import math
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import torch

from sonde.probe.numpy_arrays import (
    ContentHash,
    Moments,
    add,
    add_zeros,
    measure,
    new_hash,
    new_leaf,
    write_statistics,
)
from sonde.probe.walk import Later, Leaf, Notify

NAME = "pytorch"
SUFFIX = "pt"

_PIECE: Final = 1 << 16
"""Number of values converted at a time: small enough for the cache, large enough to hide the cost
of the calls.
"""
_DEVICE_PIECE: Final = 1 << 24

_NUMPYS: Final = "float16 float32 float64 int8 int16 int32 int64 uint8 uint16 uint32 uint64"
_TEXTS: Final = {getattr(torch, name): f"torch.{name}" for name in _NUMPYS.split()}
"""The dtypes that numpy has too, with their names."""
_DOUBLES: Final = frozenset({torch.float64, torch.complex128})
_PLAIN_TYPES: Final = frozenset({torch.Tensor, torch.nn.Parameter})


def describe(tensor: torch.Tensor, hashing: str, laters: list[Later]) -> Leaf:
    """Return the leaf for the current value of a tensor. Costs about 6 µs plus the passes over a
    plain CPU tensor.
    """
    dtype = tensor.dtype
    content = new_hash(hashing)
    is_plain = type(tensor) in _PLAIN_TYPES
    leaf = new_leaf(
        "torch.Tensor" if is_plain else _type_name(tensor),
        _TEXTS.get(dtype) or str(dtype),
        tensor.shape,
    )
    leaf["requires_grad"] = tensor.requires_grad
    if (
        is_plain
        and dtype in _TEXTS
        and tensor.layout is torch.strided
        and tensor.is_cpu
        and tensor.is_contiguous()
        and not tensor.is_neg()
    ):
        _write(leaf, measure(tensor.detach().numpy(), content), dtype)
    elif not _describe_slowly(tensor, leaf, content, laters):
        return leaf
    if content is not None:
        leaf[hashing] = content.hexdigest()
    return leaf


def on_gradient(tensor: torch.Tensor, notify: Notify) -> Any:
    """Call `notify` with every gradient of the tensor; return None if it has none."""
    if tensor.requires_grad:
        return tensor.register_hook(lambda gradient: notify(gradient, backward_id()))
    return None


def backward_id() -> int:
    """Return the id of the running backward pass, or -1 outside of one."""
    return torch._C._current_graph_task_id()  # noqa: SLF001  torch has no public one


def recomputing_node() -> int | None:
    """Return the forward-order place of the reentrant checkpoint that is recomputing now, or
    None.
    """
    node = torch._C._current_autograd_node()  # noqa: SLF001  torch has no public one
    # None outside backward
    if node is None or node.name() != "CheckpointFunctionBackward":  # type: ignore[redundant-expr]
        return None
    return int(node._sequence_nr())  # noqa: SLF001  torch has no public one


def place_without_gradients() -> int | None:
    """Return the place in the forward order if gradients are disabled, as in a reentrant
    checkpoint's first forward.

    It grows with every operation recorded for backward, and is comparable to `recomputing_node`.
    """
    if torch.is_grad_enabled():
        return None
    return int(torch._C._autograd._get_sequence_nr())  # noqa: SLF001  torch has no public one


def write(tensor: torch.Tensor, path: Path) -> bool:
    """Write the tensor, loadable with weights_only=True. Return False if it has no values."""
    if tensor.device.type == "meta" or not tensor.numel():
        return False
    torch.save(_for_file(tensor), path)
    return True


def read(path: Path) -> Any:
    """Load a tensor as a numpy array; dtypes that numpy lacks (bfloat16, fp8) become float32."""
    try:
        tensor = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # what torch.load raises depends on the damage
        raise OSError(f"{path} is no tensor file: {str(error)[:200]}") from error
    tensor = _dense(tensor)
    if tensor.dtype not in _TEXTS and not tensor.is_complex() and tensor.dtype is not torch.bool:
        tensor = tensor.to(torch.float32)
    return tensor.numpy()


def _describe_slowly(
    tensor: torch.Tensor, leaf: Leaf, content: ContentHash | None, laters: list[Later]
) -> bool:
    """Describe a tensor that cannot be measured in place. Return False if there are no values to
    look at.
    """
    local = _local(tensor, leaf).detach()
    if local.device.type == "meta" or type(local).__name__ == "FakeTensor":
        return False
    values, *structure = _stored(local)
    num_missing = local.numel() - values.numel()
    on_device = values.device.type != "cpu"
    if content is not None:  # needs the bytes now: a hash waits for the device, statistics do not
        for stored in (*structure, values) if on_device else structure:
            deque(_hashed(stored, content), maxlen=0)
    if on_device:
        laters.append(_measure_on_device(leaf, values, num_missing))
        return True
    total = Moments()
    for piece in _hashed(values, content):
        total = add(total, measure(_ordinary(piece).numpy()))
    _write(leaf, add_zeros(total, num_missing), tensor.dtype)
    return True


def _type_name(tensor: torch.Tensor) -> str:
    kind = type(tensor)
    if kind.__module__.startswith("torch.distributed"):
        return f"torch.distributed.tensor.{kind.__name__}"
    return f"{kind.__module__}.{kind.__qualname__}"


def _local(tensor: torch.Tensor, leaf: Leaf) -> torch.Tensor:
    """Return this rank's part of a DTensor and note its layout in `leaf`. Uses no collective, which
    could hang.
    """
    if not hasattr(tensor, "to_local") or not hasattr(tensor, "placements"):
        return tensor
    # (only a DTensor has it)
    leaf["device_mesh"] = getattr(tensor, "device_mesh").mesh.tolist()  # noqa: B009
    leaf["placements"] = [repr(placement) for placement in tensor.placements]
    local: torch.Tensor = tensor.to_local()
    leaf["local_shape"] = list(local.shape)
    return local


def _stored(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the values a tensor stores (no implicit zeros), followed by the tensors that say where
    they are.
    """
    layout = tensor.layout
    if layout is torch.strided:
        return [tensor]
    if layout is torch.sparse_coo:
        tensor = tensor.coalesce()
        return [tensor.values(), tensor.indices()]
    if layout in (torch.sparse_csr, torch.sparse_bsr):
        return [tensor.values(), tensor.crow_indices(), tensor.col_indices()]
    if layout in (torch.sparse_csc, torch.sparse_bsc):
        return [tensor.values(), tensor.ccol_indices(), tensor.row_indices()]
    return [tensor.to_dense()]


def _pieces(tensor: torch.Tensor, size: int = _PIECE) -> Iterator[torch.Tensor]:
    """Yield the tensor as flat contiguous pieces in value order, without ever copying the whole."""
    if tensor.numel() <= size:
        yield tensor.reshape(-1)
        return
    if tensor.is_contiguous() and not tensor.is_quantized:
        yield from tensor.view(-1).split(size)
        return
    dim = next(dim for dim, length in enumerate(tensor.shape) if length > 1)
    length = max(1, tensor.shape[dim] * size // tensor.numel())
    for part in tensor.split(length, dim):
        yield from _pieces(part, size)


def _hashed(tensor: torch.Tensor, content: ContentHash | None) -> Iterator[torch.Tensor]:
    """Yield the pieces of a tensor, hashing each after its use, while it is in the cache."""
    for piece in _pieces(tensor):
        yield piece
        if content is not None:
            stored = piece.int_repr() if piece.is_quantized else piece
            stored = stored.resolve_conj().resolve_neg().contiguous().cpu()
            content.update(stored.view(torch.uint8).numpy().data)


def _ordinary(piece: torch.Tensor) -> torch.Tensor:
    """Convert a piece to a contiguous one with a dtype that numpy knows."""
    if piece.is_quantized:
        piece = piece.dequantize()
    if piece.is_complex():
        piece = piece.to(torch.complex128).abs()
    elif piece.dtype is torch.bool:
        piece = piece.view(torch.uint8) if piece.is_contiguous() else piece.to(torch.uint8)
    elif piece.dtype not in _TEXTS:
        piece = piece.to(torch.float32)
    return piece.resolve_neg().contiguous()


def _write(leaf: Leaf, moments: Moments, dtype: torch.dtype) -> None:
    is_single = dtype not in _DOUBLES and (dtype.is_floating_point or dtype.is_complex)
    write_statistics(leaf, moments, is_mask=dtype is torch.bool, single=is_single)


def _measure_on_device(leaf: Leaf, tensor: torch.Tensor, num_missing: int) -> Later:
    """Start the computation on the tensor's device; the returned function waits for it and fills in
    the leaf.
    """
    dtype = tensor.dtype
    rows = (
        [_device_row(piece) for piece in _pieces(tensor, _DEVICE_PIECE)] if tensor.numel() else []
    )

    def fill_in() -> None:
        total = Moments()
        for row in rows:
            largest, smallest, added, norm, *counts = row.tolist()
            if not (dtype.is_floating_point or dtype.is_complex):
                largest = int(largest)
                smallest = int(smallest)
            num, *others = map(int, counts)
            total = add(total, Moments(num, largest, smallest, added, norm, *others))
        _write(leaf, add_zeros(total, num_missing), dtype)

    return fill_in


def _device_row(piece: torch.Tensor) -> torch.Tensor:
    """Return maximum, minimum, sum and norm of the finite values, and how many there are: all, NaN,
    inf, -inf, zero.
    """
    values = piece.dequantize() if piece.is_quantized else piece
    values = values.abs() if values.is_complex() else values
    values = values.to(torch.float32 if values.device.type == "mps" else torch.float64)
    finite = values.isfinite()
    kept = torch.where(finite, values, 0)
    extremes = [
        torch.where(finite, values, -math.inf).max(),
        torch.where(finite, values, math.inf).min(),
    ]
    masks = (
        torch.ones_like(finite),
        values.isnan(),
        values == math.inf,
        values == -math.inf,
        values == 0,
    )
    counts = [mask.sum().to(values.dtype) for mask in masks]
    return torch.stack([*extremes, kept.sum(), torch.linalg.vector_norm(kept), *counts])


def _for_file(tensor: torch.Tensor) -> torch.Tensor:
    """Return a detached CPU tensor with its own storage, because torch.save writes whole
    storages.
    """
    tensor = _local(tensor, {}).detach()
    if type(tensor) is not torch.Tensor:
        tensor = tensor.as_subclass(torch.Tensor)
    tensor = tensor.cpu()
    if tensor.layout is not torch.strided:
        return tensor
    tensor = tensor.resolve_conj().resolve_neg().contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_quantized:
        return tensor.dequantize()
    return tensor if tensor.layout is torch.strided else tensor.to_dense()
