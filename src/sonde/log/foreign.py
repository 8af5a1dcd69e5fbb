"""A backend written to the interface of NVIDIA's DLLogger, as one of ours.

It has `verbosity`, `log(timestamp, elapsedtime, step, data)`, `metadata(timestamp, elapsedtime, metric, metadata)` and often `flush()`. What
`info` records it gets as DLLogger's users write it: at the step "PARAMETER".
"""

import datetime
from collections.abc import Mapping
from typing import Any, final

from typing_extensions import override

from sonde.errors import SettingError
from sonde.log.backend import INFO, METADATA, Backend, Record
from sonde.records.values import decode, encode


def as_backend(backend: Any) -> Backend:
    """A backend of ours as it is, one of DLLogger's wrapped; SettingError for anything else."""
    if isinstance(backend, Backend):
        return backend
    if callable(getattr(backend, "log", None)) and callable(getattr(backend, "metadata", None)):
        return ForeignBackend(backend)
    raise SettingError(f"{backend!r} is no backend", hint="give backends: Logger([StdOutBackend()])")


def as_parameters(data: Any) -> Any:
    """What `info` was given, as the data of a LOG record."""
    plain = decode(encode(data))
    return plain if isinstance(plain, Mapping) else {"info": plain}


@final
class ForeignBackend(Backend):
    """Hands records on. On every rank, as DLLogger does."""

    ALL_RANKS = True

    def __init__(self, backend: Any) -> None:
        super().__init__(getattr(backend, "verbosity", 0))
        self._backend = backend

    @override
    def write(self, record: Record) -> None:
        when = datetime.datetime.fromtimestamp(record["timestamp"])  # noqa: DTZ006  (local time without a zone, as there)
        elapsed = record["elapsedtime"]
        if record["type"] == METADATA:
            self._backend.metadata(when, elapsed, record["metric"], record["metadata"])
        elif record["type"] == INFO:
            self._backend.log(when, elapsed, "PARAMETER", as_parameters(record["data"]))
        else:
            self._backend.log(when, elapsed, record["step"], record["data"])

    @override
    def flush(self) -> None:
        if hasattr(self._backend, "flush"):
            self._backend.flush()

    @override
    def close(self) -> None:
        self.flush()
