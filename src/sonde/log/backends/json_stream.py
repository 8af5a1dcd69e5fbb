"""The JSON stream: one strictly valid JSON object per line, appended by default (docs/formats/log.md).

Once `write` has returned, the record is in the file and survives SIGKILL. Threads, processes and ranks may share a
file. With `prefix="DLLL "` the lines are those of NVIDIA's DLLogger 1.1, for parsers that expect them.
"""

import datetime
import json
import os
from pathlib import Path
from typing import Any, Final

import orjson
from orjson import OPT_APPEND_NEWLINE, dumps

from sonde.errors import SettingError
from sonde.log.backend import INFO, METADATA, Backend, Record, Verbosity, as_parameters
from sonde.records.append import RecordFile
from sonde.records.values import decode, encode

NVIDIA_PREFIX: Final = "DLLL "
_DOLLAR: Final = ord("$")
"""As an integer, because `in` finds a byte twice as fast by its number as by a one-byte string."""


class JSONStreamBackend(Backend):
    """Appends every record to a file, with one system call each."""

    ALL_RANKS = True

    def __init__(
        self,
        verbosity: int = Verbosity.VERBOSE,
        filename: str | os.PathLike[str] | RecordFile = "log.jsonl",
        append: bool = True,
        *,
        prefix: str = "",
        **options: Any,
    ) -> None:
        """Open `filename`, or write to a record file that its owner has opened and will close.

        `append=False` starts a new file, as DLLogger does: existing content is deleted.
        """
        super().__init__(verbosity, **options)
        if prefix not in ("", NVIDIA_PREFIX):
            raise SettingError(f"{prefix!r} is no prefix of a known format", hint=f'use "" or {NVIDIA_PREFIX!r}')
        self._owns_file = not isinstance(filename, RecordFile)
        if not append and not isinstance(filename, RecordFile):
            Path(filename).resolve().unlink(missing_ok=True)
        # Links are resolved here, because a record file refuses them.
        self._file = filename if isinstance(filename, RecordFile) else RecordFile(Path(filename).resolve())
        self._append_line = self._file.append_line
        self._nvidia = bool(prefix)

    @property
    def path(self) -> Path:
        """The path of the file."""
        return self._file.path

    @property
    def num_lost(self) -> int:
        """Number of records that did not reach the file."""
        return self._file.num_lost + self._num_lost

    def write(self, record: Record) -> None:
        """Append one record of any kind."""
        if self._nvidia:
            self._append_line(nvidia_line(record), False)
        else:
            self._file.append(record)

    def write_numbers(self, record: Record) -> None:
        """Append one record of finite numbers, which needs no checks by `values.encode` except for its keys."""
        try:
            line = dumps(record, None, OPT_APPEND_NEWLINE)
        except TypeError:  # an int beyond 64 bits, or a key that is not a string
            self.write(record)
            return
        if self._nvidia or _DOLLAR in line:
            self.write(record)
        else:
            self._append_line(line)

    def close(self) -> None:
        """Close the file, unless its owner passed it in open."""
        if self._owns_file:
            self._file.close()


def nvidia_line(record: Record) -> bytes:
    """Return the record as NVIDIA's DLLogger 1.1 writes it: its keys in its order, times as strings, no rank.

    DLLogger has no INFO: by convention such a record is a LOG at step "PARAMETER".
    """
    timestamp = str(record["timestamp"])
    elapsedtime = str(record["elapsedtime"])
    local = str(datetime.datetime.fromtimestamp(record["timestamp"]).astimezone())
    line: Record
    if record["type"] == METADATA:
        line = {"timestamp": timestamp, "elapsedtime": elapsedtime, "datetime": local, "type": METADATA}
        line |= {"metric": record["metric"], "metadata": record["metadata"]}
    else:
        line = {"timestamp": timestamp, "datetime": local, "elapsedtime": elapsedtime, "type": "LOG"}
        line |= {"step": record.get("step"), "data": record["data"]}
        if record["type"] == INFO:
            line |= {"step": "PARAMETER", "data": as_parameters(record["data"])}
    encoded = encode(line)
    try:
        # Python's own spelling of NaN and infinities, which is what DLLogger's parsers expect.
        text = json.dumps(decode(encoded))
    except (TypeError, ValueError):
        text = json.dumps(orjson.loads(encoded))
    return f"{NVIDIA_PREFIX}{text}\n".encode()
