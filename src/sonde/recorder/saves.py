"""Notice when a script writes a checkpoint of the recorded training with `torch.save`.

While a recorder is open, `torch.save` is wrapped: it works as before, and then says what was saved.
A save counts if it holds a tensor of the training itself: a weight, or a moment of the optimizer.
A script that imported the function by name earlier is not heard; it can call
`recorder.checkpoint(path)`.
"""

import functools
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor, nn

_MAX_DEPTH: Final = 4
_MAX_VALUES: Final = 4096
_PARTS: Final = ("optimizer", "model", "pytorch_model")
"""Files of these names are one of several in the folder of a checkpoint."""

Heard = Callable[[Any, str], None]
"""Called with what was saved and where to."""

_listeners: list[Heard] = []


def listen(listener: Heard) -> None:
    """Call `listener` after every `torch.save`."""
    if not _listeners:
        original = torch.save

        @functools.wraps(original)
        def overheard(obj: Any, f: Any, *args: Any, **kwargs: Any) -> Any:
            result = original(obj, f, *args, **kwargs)
            for heard in _listeners:
                heard(obj, _place(f))
            return result

        overheard.sonde_original = original  # type: ignore[attr-defined]
        torch.save = overheard
    _listeners.append(listener)


def stop_listening(listener: Heard) -> None:
    """Call a listener no more."""
    if listener not in _listeners:
        return
    _listeners.remove(listener)
    # Somebody else may have wrapped it after us: then ours stays inside, and does nothing.
    original = getattr(torch.save, "sonde_original", None)
    if not _listeners and original is not None:
        torch.save = original


def holds(saved: Any, model: nn.Module, optimizer: torch.optim.Optimizer) -> bool:
    """Return whether something that was saved holds tensors of a training."""
    own = {parameter.data_ptr() for parameter in model.parameters() if _has_memory(parameter)}
    for state in optimizer.state.values():
        moments = [value for value in state.values() if isinstance(value, Tensor)]
        own |= {moment.data_ptr() for moment in moments if _has_memory(moment)}
    own.discard(0)
    for count, tensor in enumerate(_tensors(saved, 0)):
        if _has_memory(tensor) and tensor.data_ptr() in own:
            return True
        if count > _MAX_VALUES:
            break
    return False


def _has_memory(tensor: Tensor) -> bool:
    return type(tensor) in (Tensor, nn.Parameter) and tensor.layout is torch.strided


def _tensors(value: Any, depth: int) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, nn.Module):
        yield from value.parameters()
    elif depth < _MAX_DEPTH and isinstance(value, (Mapping, list, tuple)):
        inside = value.values() if isinstance(value, Mapping) else value
        for inner in inside:
            yield from _tensors(inner, depth + 1)


def _place(file: Any) -> str:
    """Return where a checkpoint was written: a file, or its folder if it is one of several."""
    name = file if isinstance(file, (str, os.PathLike)) else getattr(file, "name", "")
    if not isinstance(name, (str, os.PathLike)) or not os.fspath(name):
        return ""
    path = Path(name)
    return str(path.parent if path.stem in _PARTS else path)
