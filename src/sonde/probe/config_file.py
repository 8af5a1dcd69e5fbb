"""Config files of a probe, in msprobe's format, and the settings that follow from one.

    {"task": "statistics", "level": "debug", "dump_path": "./dump",
     "rank": [0, "4-7"], "step": ["10-20"],
     "statistics": {"summary_mode": "md5"}}

An invalid key or value fails at once and names what was given and what is allowed; msprobe accepts
anything and then saves nothing. Keys that msprobe uses for its other collection modes are accepted,
with one warning that they have no effect.
"""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from sonde.errors import SettingError, check_choice, did_you_mean
from sonde.probe.settings import (
    DEBUG,
    MODES,
    STATISTICS,
    TASKS,
    TENSOR,
    UNNUMBERED,
    ProbeSettings,
    parse_numbers,
)
from sonde.records.files import read_small

_OTHER_LEVELS: Final = ("L0", "L1", "L2", "mix")
_WITHOUT_EFFECT: Final = frozenset(
    (
        "enable_dataloader",
        "async_dump",
        "extra_info",
        "precision",
        "dump_enable",
        "seed",
        "is_deterministic",
        "acl_config",
        "acc_check",
        "run_ut",
        "overflow_check",
        "grad_probe",
        "free_benchmark",
        "structure",
        "nan_check",
        "exception_dump",
        "diff_check",
        "tensor_list",
        "slice",
        "scope",
        "list",
        "data_mode",
        "backward_input",
        "file_format",
    )
)
"""Keys of msprobe's files that configure its hooks on modules and functions and do not affect
`save`.
"""
_KEYS: Final = (
    "task",
    "level",
    "dump_path",
    "rank",
    "step",
    "file_mark",
    "folder",
    STATISTICS,
    TENSOR,
)

_logger = logging.getLogger("sonde")


def make_settings(
    config_path: str | os.PathLike[str] | None, arguments: Mapping[str, Any]
) -> ProbeSettings:
    """Build the settings from a file, from the arguments that are not None, or from both."""
    given = {} if config_path is None else read_config(Path(config_path))
    given |= {name: value for name, value in arguments.items() if value is not None}
    task = given.get("task", STATISTICS)
    check_choice(TASKS, task=task)
    dump_path = given.get("dump_path")
    if not isinstance(dump_path, str | os.PathLike) or not os.fspath(dump_path):
        hint = 'PrecisionDebugger(dump_path="dump"), or "dump_path" in the config file'
        raise SettingError(
            f"dump_path is {dump_path!r}: it must be the path of a directory", hint=hint
        )
    return ProbeSettings(
        dump_path=Path(dump_path),
        task=task,
        level=given.get("level", DEBUG),
        rank=parse_numbers("rank", given.get("rank", ())),
        step=parse_numbers("step", given.get("step", ())),
        summary_mode=given.get("summary_mode", given.get(task, {}).get("summary_mode", STATISTICS)),
        file_mark=given.get("file_mark", TENSOR),
        folder=given.get("folder", UNNUMBERED),
    )


def read_config(path: Path) -> dict[str, Any]:
    """Return the settings in a config file. Raises SettingError if a key or value is unknown."""
    try:
        document = json.loads(read_small(path, follow=True))
    except OSError as error:
        raise SettingError(
            f"cannot read the config file {path}", cause=error.strerror or str(error)
        ) from error
    except ValueError as error:
        raise SettingError(f"the config file {path} is not JSON", cause=str(error)) from error
    if not isinstance(document, dict):
        raise SettingError(
            f"the config file {path} holds {type(document).__name__}, not an object of settings"
        )
    _check_keys("", document, _KEYS)
    ignored = [key for key in document if key in _WITHOUT_EFFECT]
    for task in TASKS:
        section = document.get(task, {})
        if not isinstance(section, dict):
            raise SettingError(
                f"{task!r} is {section!r}: it must be an object",
                hint='{"summary_mode": "statistics"}',
            )
        _check_keys(f"{task}.", section, ("summary_mode",))
        ignored += [f"{task}.{key}" for key in section if key in _WITHOUT_EFFECT]
        check_choice(MODES, **{f"{task}.summary_mode": section.get("summary_mode", STATISTICS)})
    if document.get("level") in _OTHER_LEVELS:
        ignored.append(f"level {document['level']}")
        document["level"] = DEBUG
    if ignored:
        _logger.warning(
            "%s: without effect here, where only save() collects: %s", path, ", ".join(ignored)
        )
    return document


def _check_keys(prefix: str, document: Mapping[str, Any], allowed: tuple[str, ...]) -> None:
    for key, value in document.items():
        if key not in allowed and key not in _WITHOUT_EFFECT:
            sentence = f"unknown key {prefix + key!r} with the value {value!r}"
            hint = did_you_mean(key, allowed, "remove it: it has no effect on level debug")
            raise SettingError(sentence, cause=f"allowed here: {', '.join(allowed)}", hint=hint)
