"""The JSON stream: one strictly valid JSON object per line, appended by default
(docs/formats/log.md).

Once `write` has returned, the record is in the file and survives SIGKILL. Threads, processes and
ranks may share a file. With a `prefix` the lines are those of another logger, for scripts that read
its files (foreign_lines.py): `"DLLL "` for NVIDIA's DLLogger 1.1, `"TCAPPDLL "` for TCAP_DLLogger.
"""

import os
from pathlib import Path
from typing import Any, Final

from orjson import OPT_APPEND_NEWLINE, dumps

from sonde.errors import SettingError
from sonde.log.backend import Backend, Record, Verbosity
from sonde.log.foreign_lines import WRITERS
from sonde.records.append import RecordFile

_DOLLAR: Final = ord("$")
"""As an integer, because `in` finds a byte twice as fast by its number as by a one-byte string."""


class JSONStreamBackend(Backend):
    """Appends every record to a file, with one system call each.

    ```python
    from sonde import JSONStreamBackend, Logger, Verbosity

    with Logger(JSONStreamBackend(Verbosity.VERBOSE, "log.jsonl")) as logger:
        logger.log(step=[1, 20], data={"train.loss": 4.2})
    ```
    """

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
        """Open the file.

        Args:
            verbosity: The level of this backend.
            filename: The file; or a record file that its owner has opened and will close.
            append: Whether existing content stays; False deletes it.
            prefix: Begins every line, as in the files of another logger.
            options: Those of `Backend`: `every_n`, `every_seconds`, `all_ranks`.
        """
        super().__init__(verbosity, **options)
        if prefix and prefix not in WRITERS:
            known = " or ".join(map(repr, ("", *WRITERS)))
            raise SettingError(f"{prefix!r} is no prefix of a known format", hint=f"use {known}")
        self._owns_file = not isinstance(filename, RecordFile)
        if not append and not isinstance(filename, RecordFile):
            Path(filename).resolve().unlink(missing_ok=True)
        # Links are resolved here, because a record file refuses them.
        self._file = (
            filename if isinstance(filename, RecordFile) else RecordFile(Path(filename).resolve())
        )
        self._append_line = self._file.append_line
        self._foreign_line = WRITERS.get(prefix)

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
        if self._foreign_line is None:
            self._file.append(record)
        else:
            self._append_line(self._foreign_line(record), False)

    def write_numbers(self, record: Record) -> None:
        """Append one record of finite numbers, which needs no checks by `values.encode` except for
        its keys.
        """
        try:
            line = dumps(record, None, OPT_APPEND_NEWLINE)
        except TypeError:  # an int beyond 64 bits, or a key that is not a string
            self.write(record)
            return
        if self._foreign_line is not None or _DOLLAR in line:
            self.write(record)
        else:
            self._append_line(line)

    def close(self) -> None:
        """Close the file, unless its owner passed it in open."""
        if self._owns_file:
            self._file.close()
