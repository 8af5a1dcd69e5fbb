"""What a probe is told, and what it refuses."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from sonde.errors import MissingDependency, SettingError
from sonde.probe.config_file import make_settings
from sonde.probe.settings import ProbeSettings, parse_numbers


def config(tmp_path: Path, **document: Any) -> Path:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"dump_path": "dump", **document}))
    return path


def test_defaults_are_statistics_at_level_debug() -> None:
    settings = make_settings(None, {"dump_path": "dump"})
    assert (settings.task, settings.level, settings.summary_mode) == (
        "statistics",
        "debug",
        "statistics",
    )
    assert settings == ProbeSettings(dump_path=Path("dump"))


def test_a_config_file_in_msprobes_words_is_read(tmp_path: Path) -> None:
    path = config(
        tmp_path,
        task="tensor",
        level="debug",
        rank=[0, "2", "4-6"],
        step=[],
        tensor={"summary_mode": "md5"},
    )
    settings = make_settings(path, {})
    assert (settings.task, settings.summary_mode, settings.rank) == (
        "tensor",
        "md5",
        frozenset({0, 2, 4, 5, 6}),
    )


def test_the_section_of_another_task_has_no_effect(tmp_path: Path) -> None:
    path = config(tmp_path, task="statistics", tensor={"summary_mode": "md5"})
    assert make_settings(path, {}).summary_mode == "statistics"


def test_arguments_win_over_the_file(tmp_path: Path) -> None:
    path = config(tmp_path, task="tensor", rank=[1], statistics={"summary_mode": "md5"})
    settings = make_settings(
        path, {"task": "statistics", "rank": [0], "dump_path": "other", "level": None}
    )
    assert (settings.task, settings.rank, settings.dump_path) == (
        "statistics",
        frozenset({0}),
        Path("other"),
    )
    assert settings.summary_mode == "md5"


@pytest.mark.parametrize(
    ("document", "says"),
    [
        (
            {"taks": "tensor"},
            (
                "unknown key 'taks' with the value 'tensor'.*allowed here: task, level.*did you"
                " mean 'task'"
            ),
        ),
        ({"async_dumb": True}, "unknown key 'async_dumb' with the value True"),
        ({"task": "tensors"}, "task is 'tensors'.*use one of 'statistics', 'tensor'"),
        ({"level": "L7"}, "level is 'L7'.*use one of 'debug'"),
        (
            {"statistics": {"summary_mode": "sha1"}},
            "statistics.summary_mode is 'sha1'.*use one of 'statistics', 'md5'",
        ),
        ({"statistics": {"mode": "md5"}}, "unknown key 'statistics.mode'"),
        ({"statistics": None}, "'statistics' is None: it must be an object"),
        ({"dump_path": None}, "dump_path is None"),
        ({"dump_path": ""}, "dump_path is ''"),
        ({"rank": 3}, "rank: 3 is no rank"),
        ({"rank": ["x"]}, "rank: 'x' is no rank"),
        ({"rank": [-1]}, "rank: -1 is no rank"),
        ({"rank": [True]}, "rank: True is no rank"),
        ({"step": ["5-3"]}, "step: '5-3' is no step"),
        ({"step": "3-5"}, "step: '3-5' is no step"),
        ({"step": ["0-99999999999"]}, "is no step"),
    ],
)
def test_what_would_not_work_fails_at_once_and_says_why(
    tmp_path: Path, document: dict[str, Any], says: str
) -> None:
    with pytest.raises(SettingError, match=f"(?s){says}"):
        make_settings(config(tmp_path, **document), {})


def test_the_files_that_come_with_msprobe_are_taken_and_what_has_no_effect_is_told_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    hooks: dict[str, Any] = {"scope": [], "list": [], "data_mode": ["all"]}
    shipped = {
        "task": "statistics",
        "dump_path": "./dump_path",
        "rank": [],
        "step": [],
        "level": "L1",
        "extra_info": True,
        "enable_dataloader": False,
        "async_dump": False,
        "statistics": {**hooks, "summary_mode": "md5"},
        "tensor": hooks,
        "run_ut": {"white_list": [], "black_list": [], "error_data_path": "./"},
    }
    settings = make_settings(config(tmp_path, **shipped), {})
    assert (settings.level, settings.summary_mode) == ("debug", "md5")
    (record,) = caplog.records
    assert (
        "extra_info, enable_dataloader, async_dump, run_ut, statistics.scope" in record.getMessage()
    )
    assert "level L1" in record.getMessage()


@pytest.mark.parametrize("text", ["", "[1]", "{", "\0"])
def test_a_file_that_is_no_config_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(text)
    with pytest.raises(SettingError, match=r"config\.json"):
        make_settings(path, {})


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match=r"nowhere\.json"):
        make_settings(tmp_path / "nowhere.json", {})


def test_ranges_include_both_ends() -> None:
    assert parse_numbers("step", [1, "3-5", "7"]) == {1, 3, 4, 5, 7}


def test_the_quick_hash_asks_for_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "xxhash", None)
    with pytest.raises(MissingDependency, match=r"sonde\[probe\]"):
        make_settings(None, {"dump_path": "dump", "summary_mode": "xxh3"})
