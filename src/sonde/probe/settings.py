"""The settings of a probe: from arguments, from a JSON file in msprobe's format, or both (arguments win).

    {"task": "statistics", "level": "debug", "dump_path": "./dump", "rank": [0, "4-7"], "step": ["10-20"],
     "statistics": {"summary_mode": "md5"}}

An invalid key or value fails at once and names what was given and what is allowed; msprobe accepts anything and then
saves nothing. Keys that msprobe uses for its other collection modes are accepted, with one warning that they have no
effect.
"""

import json
import logging
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from sonde.errors import MissingDependency, SettingError, check_choice, did_you_mean
from sonde.records.files import read_small

STATISTICS: Final = "statistics"
TENSOR: Final = "tensor"
DEBUG: Final = "debug"
MD5: Final = "md5"
"""msprobe's name for this mode; the hash is a CRC-32."""
XXH3: Final = "xxh3"
"""A 128-bit hash; needs the package xxhash."""

_TASKS: Final = (STATISTICS, TENSOR)
_OTHER_LEVELS: Final = ("L0", "L1", "L2", "mix")
_WITHOUT_EFFECT: Final = frozenset((
    "enable_dataloader", "async_dump", "extra_info", "precision", "dump_enable", "seed", "is_deterministic",
    "acl_config", "acc_check", "run_ut", "overflow_check", "grad_probe", "free_benchmark", "structure", "nan_check",
    "exception_dump", "diff_check", "tensor_list", "slice", "scope", "list", "data_mode", "backward_input",
    "file_format",
))  # fmt: skip
"""Keys of msprobe's files that configure its hooks on modules and functions and do not affect `save`."""
_MODES: Final = (STATISTICS, MD5, XXH3)
_KEYS: Final = ("task", "level", "dump_path", "rank", "step", STATISTICS, TENSOR)
_MAX_NUMBERS: Final = 1_000_000

_logger = logging.getLogger("sonde")


@dataclass(frozen=True, kw_only=True, slots=True)
class ProbeSettings:
    """The settings of a probe. Instances with equal values compare equal."""

    dump_path: Path
    """Directory for the dumps: dump_path/step{N}/rank{R}/."""
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

    def __post_init__(self) -> None:
        check_choice(_TASKS, task=self.task)
        check_choice((DEBUG,), level=self.level)
        check_choice(_MODES, summary_mode=self.summary_mode)
        if self.summary_mode == XXH3 and find_spec("xxhash") is None:
            raise MissingDependency("xxhash", needed_for='summary_mode="xxh3"', extra="probe")


def make_settings(config_path: str | os.PathLike[str] | None, arguments: Mapping[str, Any]) -> ProbeSettings:
    """Build the settings from a file, from the arguments that are not None, or from both."""
    given = {} if config_path is None else _read_config(Path(config_path))
    given |= {name: value for name, value in arguments.items() if value is not None}
    task = given.get("task", STATISTICS)
    check_choice(_TASKS, task=task)
    dump_path = given.get("dump_path")
    if not isinstance(dump_path, str | os.PathLike) or not os.fspath(dump_path):
        hint = 'PrecisionDebugger(dump_path="dump"), or "dump_path" in the config file'
        raise SettingError(f"dump_path is {dump_path!r}: it must be the path of a directory", hint=hint)
    return ProbeSettings(
        dump_path=Path(dump_path),
        task=task,
        level=given.get("level", DEBUG),
        rank=parse_numbers("rank", given.get("rank", ())),
        step=parse_numbers("step", given.get("step", ())),
        summary_mode=given.get("summary_mode", given.get(task, {}).get("summary_mode", STATISTICS)),
    )


def parse_numbers(key: str, given: object) -> frozenset[int]:
    """Parse numbers as msprobe writes them: ints, "3", and inclusive ranges such as "3-5"."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        raise _bad_numbers(key, given)
    return frozenset(number for item in given for number in _range(key, item))


def _range(key: str, item: object) -> range:
    is_given = isinstance(item, str) or (isinstance(item, int) and not isinstance(item, bool))
    parts = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", str(item), re.ASCII) if is_given else None
    if parts is None or not int(parts[1]) <= int(parts[2] or parts[1]) <= _MAX_NUMBERS:
        raise _bad_numbers(key, item)
    return range(int(parts[1]), int(parts[2] or parts[1]) + 1)


def _bad_numbers(key: str, value: object) -> SettingError:
    hint = f'{key} is a list of numbers from 0 to {_MAX_NUMBERS:,} and ranges such as "3-5"; empty for all'
    return SettingError(f"{key}: {value!r} is no {key}", hint=hint)


def _read_config(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(read_small(path, follow=True))
    except OSError as error:
        raise SettingError(f"cannot read the config file {path}", cause=error.strerror or str(error)) from error
    except ValueError as error:
        raise SettingError(f"the config file {path} is not JSON", cause=str(error)) from error
    if not isinstance(document, dict):
        raise SettingError(f"the config file {path} holds {type(document).__name__}, not an object of settings")
    _check_keys("", document, _KEYS)
    ignored = [key for key in document if key in _WITHOUT_EFFECT]
    for task in _TASKS:
        section = document.get(task, {})
        if not isinstance(section, dict):
            raise SettingError(f"{task!r} is {section!r}: it must be an object", hint='{"summary_mode": "statistics"}')
        _check_keys(f"{task}.", section, ("summary_mode",))
        ignored += [f"{task}.{key}" for key in section if key in _WITHOUT_EFFECT]
        check_choice(_MODES, **{f"{task}.summary_mode": section.get("summary_mode", STATISTICS)})
    if document.get("level") in _OTHER_LEVELS:
        ignored.append(f"level {document['level']}")
        document["level"] = DEBUG
    if ignored:
        _logger.warning("%s: without effect here, where only save() collects: %s", path, ", ".join(ignored))
    return document


def _check_keys(prefix: str, document: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key, value in document.items():
        if key not in allowed and key not in _WITHOUT_EFFECT:
            told = f"unknown key {prefix + key!r} with the value {value!r}"
            hint = did_you_mean(key, allowed, "remove it: it has no effect on level debug")
            raise SettingError(told, cause=f"allowed here: {', '.join(allowed)}", hint=hint)
