"""The settings of a probe. An invalid value fails at once and names what was given and what is
allowed.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from sonde.errors import MissingDependency, SettingError, check_choice

STATISTICS: Final = "statistics"
TENSOR: Final = "tensor"
DEBUG: Final = "debug"
MD5: Final = "md5"
"""msprobe's name for this mode; the hash is a CRC-32."""
XXH3: Final = "xxh3"
"""A 128-bit hash; needs the package xxhash."""

TASKS: Final = (STATISTICS, TENSOR)
MODES: Final = (STATISTICS, MD5, XXH3)
_FILE_MARKS: Final = (TENSOR, DEBUG)
UNNUMBERED: Final = "rank"
RANK_0: Final = "rank0"
PROCESS: Final = "proc"
_FOLDERS: Final = (UNNUMBERED, RANK_0, PROCESS)
_MAX_NUMBERS: Final = 1_000_000


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSettings:
    """The settings of a probe. Instances with equal values compare equal."""

    dump_path: Path
    """Directory for the dumps: dump_path/step{N}/rank{R}/, or `folder` where no rank was given."""
    task: str = STATISTICS
    """`statistics`, or `tensor` to also write whole tensors."""
    level: str = DEBUG
    """Only `debug`, msprobe's level for saving single values."""
    rank: frozenset[int] = frozenset()
    """The ranks that save; empty for all."""
    step: frozenset[int] = frozenset()
    """The steps to save; empty for all."""
    summary_mode: str = STATISTICS
    """`statistics`; `md5` to add msprobe's CRC-32; `xxh3` to add a 128-bit hash (needs xxhash)."""
    file_mark: str = TENSOR
    """The word between the name and the indexes in a tensor's file name: `tensor` as in msprobe's
    manual, or `debug` as msprobe writes since 8.3.
    """
    folder: str = UNNUMBERED
    """The folder of a process to which nothing gave a rank: `rank` as in msprobe up to 8.3,
    `rank0`, or `proc` for `proc{PID}` as in msprobe 26.
    """

    def __post_init__(self) -> None:
        check_choice(_FILE_MARKS, file_mark=self.file_mark)
        check_choice(_FOLDERS, folder=self.folder)
        check_choice(TASKS, task=self.task)
        check_choice((DEBUG,), level=self.level)
        check_choice(MODES, summary_mode=self.summary_mode)
        if self.summary_mode == XXH3 and find_spec("xxhash") is None:
            raise MissingDependency("xxhash", needed_for='summary_mode="xxh3"', extra="probe")


def parse_numbers(key: str, given: object) -> frozenset[int]:
    """Parse numbers as msprobe writes them: ints, "3", and inclusive ranges such as "3-5"."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise _bad_numbers(key, given)
    return frozenset(number for written in given for number in _range(key, written))


def _range(key: str, written: object) -> range:
    """Return the numbers that one entry stands for: 3, "3", or "3-5"."""
    is_number = isinstance(written, int) and not isinstance(written, bool)
    if not is_number and not isinstance(written, str):
        raise _bad_numbers(key, written)
    parts = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", str(written), re.ASCII)
    if parts is None:
        raise _bad_numbers(key, written)
    first = int(parts[1])
    last = int(parts[2] or first)
    if not first <= last <= _MAX_NUMBERS:
        raise _bad_numbers(key, written)
    return range(first, last + 1)


def _bad_numbers(key: str, value: object) -> SettingError:
    hint = (
        f'{key} is a list of numbers from 0 to {_MAX_NUMBERS:,} and ranges such as "3-5"; empty'
        " for all"
    )
    return SettingError(f"{key}: {value!r} is no {key}", hint=hint)
