"""Convert whatever a training script logs to values that any backend can take, without waiting for
a device.

Numbers, strings, None and numpy values stay unchanged. A CPU tensor immediately becomes the number
or nested list it holds; a very large one becomes a line that describes it. Lists, tuples and dicts
are searched, and left alone if they contain no tensor. Nothing here raises or waits.

A training step enqueues work on the device and continues; reading a loss immediately would wait for
all of it. `begin_copy` enqueues a copy to (pinned) host memory behind that work and returns. The
copy holds the value that the tensor had at that point in the device's order, whatever happens to
the tensor afterwards. `Copy.is_ready` checks without waiting.

A record with a device tensor is written when its copy has arrived, and every later record waits
behind it. The queue advances at the next `log`, at `flush`, and otherwise within `DELAY_SECONDS`
through a thread that lives only while something waits. At `MAX_WAITING` records it waits for the
device instead of growing. A kill can lose only the records in this queue: those logged within the
last `DELAY_SECONDS`, and those whose values the device had not computed yet. A record logged while
nothing waits is on disk when `log` returns, as always.

torch is not imported here: whoever has a tensor has already imported it.
"""

import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from sonde.log.backend import Record
from sonde.records.values import is_tensor_type

PLAIN_TYPES: Final = frozenset({float, int, str, bool, type(None)})
MAX_ELEMENTS: Final = 100_000
"""Larger tensors are described in the record instead of written into it: use the probe to keep
tensors.
"""
DELAY_SECONDS: Final = 0.05
MAX_WAITING: Final = 1000
_MAX_DEPTH: Final = 16


class Copy:
    """A tensor on its way to host memory, and the event that signals its arrival."""

    def __init__(self, host: Any, event: Any) -> None:
        self._host = host
        self._event = event

    def is_ready(self) -> bool:
        """Return whether the value has arrived. Never waits."""
        try:
            return bool(self._event.query())
        except Exception:  # noqa: BLE001
            # a failed device raises again when the value is read, and that is recorded
            return True

    def value(self) -> object:
        """Return the value as plain Python data, waiting for it if necessary. Never raises."""
        try:
            self._event.synchronize()
            return self._host.tolist()
        except Exception as error:  # noqa: BLE001  a failed device raises on the first read
            return _unreadable(self, error)


def begin_copy(tensor: Any) -> Copy:
    """Start copying a device tensor to the host. Raises what torch raises if the device has no
    events.
    """
    torch = sys.modules["torch"]
    device = tensor.device
    module = torch.get_device_module(device)
    # torch itself pins the host memory of such a copy
    host = tensor.detach().to("cpu", non_blocking=True)
    event = module.Event()
    stream = getattr(module, "current_stream", None)
    if stream is None:
        event.record()
    else:
        event.record(stream(device))
    return Copy(host, event)


class Unpacked:
    """The values of one record without tensors; `copies` holds those still on their way."""

    def __init__(self) -> None:
        self.copies: list[Copy] = []
        self.num_tensors = 0

    def data(self, data: object) -> dict[Any, Any]:
        """Convert the data of a record. Anything but a mapping is stored under the key `value`."""
        if not isinstance(data, Mapping):
            return {"value": self.value(data)}
        try:
            return {key: self.value(value) for key, value in data.items()}
        except Exception as error:  # noqa: BLE001  a foreign mapping may raise anything when read
            return {"value": _unreadable(data, error)}

    def value(self, value: object, depth: int = 0) -> object:
        """Convert one value so that it contains no tensors."""
        kind = type(value)
        if kind in PLAIN_TYPES or depth > _MAX_DEPTH:
            return value
        try:
            if kind is list or kind is tuple or kind is dict:
                return self._container(value, depth)
            if is_tensor_type(kind):
                self.num_tensors += 1
                return self._tensor(value)
        except Exception as error:  # noqa: BLE001  a foreign value may raise anything when read
            return _unreadable(value, error)
        return value

    def _container(self, value: Any, depth: int) -> object:
        items = value.values() if isinstance(value, dict) else value
        if PLAIN_TYPES.issuperset(map(type, items)):
            return value
        if isinstance(value, dict):
            return {key: self.value(child, depth + 1) for key, child in value.items()}
        return [self.value(child, depth + 1) for child in value]

    def _tensor(self, tensor: Any) -> object:
        if tensor.numel() > MAX_ELEMENTS or tensor.is_meta:
            return f"tensor of shape {list(tensor.shape)}, {tensor.dtype}, on {tensor.device}"
        if tensor.is_cpu:
            return tensor.detach().tolist()
        try:
            copy = begin_copy(tensor)
        except Exception:  # noqa: BLE001
            # a device without events may raise anything; then waiting is better than losing the
            # value
            return tensor.detach().tolist()
        self.copies.append(copy)
        return copy


def arrived(value: Any) -> Any:
    """Return `value` with every copy in it resolved, waiting for those that have not arrived. Never
    raises.
    """
    if isinstance(value, dict):
        return {key: arrived(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [arrived(child) for child in value]
    return value.value() if isinstance(value, Copy) else value


def _unreadable(value: object, error: Exception) -> str:
    return f"{type(value).__name__} that could not be read ({type(error).__name__}: {error})"[:500]


class DeferredRecords:
    """The queue of waiting records, with a lock that keeps them and all later ones in order."""

    def __init__(self, write: Callable[[Record, int], None]) -> None:
        self._write = write
        self._lock = threading.RLock()
        self._waiting: deque[tuple[Record, int, Sequence[Copy]]] = deque()
        self._thread: threading.Thread | None = None
        self._process = os.getpid()

    def add(self, record: Record, verbosity: int, copies: Sequence[Copy]) -> None:
        """Write the record in its turn: immediately if nothing is waiting and it has no pending
        copies.
        """
        with self._lock:
            if os.getpid() != self._process:
                # Forked: the waiting records belong to the parent, which will write them.
                self._waiting.clear()
                self._process = os.getpid()
                self._thread = None
            self._advance(wait=False)
            if not copies and not self._waiting:
                self._write(record, verbosity)
                return
            self._waiting.append((record, verbosity, copies))
            if len(self._waiting) > MAX_WAITING:
                self._write_first()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._work, name="sonde-deferred", daemon=True
                )
                self._thread.start()

    def flush(self) -> None:
        """Wait for the device and write everything."""
        with self._lock:
            if os.getpid() == self._process:
                self._advance(wait=True)

    def _advance(self, *, wait: bool) -> None:
        """Write what has arrived, in order, up to the first record that has not."""
        while self._waiting and (wait or all(copy.is_ready() for copy in self._waiting[0][2])):
            self._write_first()

    def _write_first(self) -> None:
        record, verbosity, copies = self._waiting.popleft()
        if copies:
            record = {**record, "step": arrived(record["step"]), "data": arrived(record["data"])}
        self._write(record, verbosity)

    def _work(self) -> None:
        pause = threading.Event()
        while True:
            pause.wait(DELAY_SECONDS)
            with self._lock:
                self._advance(wait=False)
                if not self._waiting:
                    self._thread = None
                    return
