"""Values that live on a device, copied without waiting for it.

A training step enqueues work on the device and goes on; reading a loss at once would wait for all of it. `begin_copy`
enqueues a copy to (pinned) host memory behind that work and returns; the copy holds the value the tensor had at that
moment in the device's order, whatever is done to the tensor afterwards. `DeviceCopy.is_ready` asks without waiting.

torch is not imported here: who has a tensor has torch.
"""

import sys
from abc import ABC, abstractmethod
from typing import Any, Final, final

MAX_ELEMENTS: Final = 100_000
"""A larger tensor is named in the record, not written into it: use the probe to keep tensors."""


class Copy(ABC):
    """A value on its way."""

    @abstractmethod
    def is_ready(self) -> bool:
        """Has it arrived? Never waits."""

    @abstractmethod
    def value(self) -> object:
        """The value as plain Python data; waits for it when it has not arrived."""


@final
class DeviceCopy(Copy):
    """A tensor on its way to host memory, and the event that says it has arrived."""

    def __init__(self, host: Any, event: Any) -> None:
        self._host = host
        self._event = event

    def is_ready(self) -> bool:
        """Has it arrived? Never waits."""
        return bool(self._event.query())

    def value(self) -> object:
        """The value as plain Python data; waits for it when it has not arrived."""
        self._event.synchronize()
        return self._host.tolist()


def begin_copy(tensor: Any) -> Copy:
    """Begin to copy a device tensor to the host. Raises what torch raises on a device that has no events."""
    torch = sys.modules["torch"]
    device = tensor.device
    module = torch.get_device_module(device)
    host = tensor.detach().to("cpu", non_blocking=True)  # torch itself pins the host memory of such a copy
    event = module.Event()
    stream = getattr(module, "current_stream", None)
    if stream is None:
        event.record()
    else:
        event.record(stream(device))
    return DeviceCopy(host, event)


def is_tensor_type(kind: type) -> bool:
    """Is this the type of a torch tensor, or derived from it?"""
    return any(base.__module__ == "torch" and base.__name__ == "Tensor" for base in kind.__mro__)
