"""What msprobe's own tests of `save` expect (debugger_save, which msprobe 8.3 passes): folders,
file names, and no key more or less. File names are those of its manual; see `file_mark`.
"""

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from sonde import PrecisionDebugger
from sonde.errors import SettingError
from sonde.probe.dump import read_dump

Start = Callable[..., Path]
VALUE = {
    "type": "torch.Tensor",
    "dtype": "torch.float32",
    "shape": [2],
    "Max": 2.0,
    "Min": 1.0,
    "Mean": 1.5,
    "Norm": 2.2360680103302,
    "requires_grad": False,
}
GRADIENT = VALUE | {"Max": 1.0, "Mean": 1.0, "Norm": 1.4142135381698608}


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """A probe by a config file in msprobe's words; gives where its dumps go."""
    monkeypatch.delenv("RANK", raising=False)

    def started(task: str, *, summary_mode: str = "statistics", **config: Any) -> Path:
        written = {
            "task": task,
            "dump_path": str(tmp_path / "dump"),
            "rank": [],
            "step": [],
            "level": "debug",
            "enable_dataloader": False,
            "async_dump": False,
            "statistics": {"summary_mode": summary_mode},
        }
        (tmp_path / "config.json").write_text(json.dumps(written | config))
        PrecisionDebugger(str(tmp_path / "config.json"))
        return tmp_path / "dump"

    yield started
    PrecisionDebugger.current().close()


def leaf_of(folder: Path, key: str) -> Any:
    return json.loads((folder / "debug.json").read_text())["data"][key]


def check_file(folder: Path, name: str, expected: torch.Tensor) -> dict[str, str]:
    assert torch.equal(torch.load(folder / "dump_tensor_data" / name, weights_only=True), expected)
    return {"data_name": name}


@pytest.mark.parametrize("async_dump", [False, True])
def test_a_tensor_in_a_dict_is_written_and_described(start: Start, async_dump: bool) -> None:
    value = torch.tensor([1.0, 2.0])
    folder = start("tensor", async_dump=async_dump) / "step0" / "rank"
    for _ in range(3):
        PrecisionDebugger.save({"a": value}, "data_dict", save_backward=False)
    PrecisionDebugger.step()
    for call in range(3):
        named = check_file(folder, f"data_dict.{call}.tensor.a.pt", value)
        assert leaf_of(folder, f"data_dict.{call}.debug") == {"a": VALUE | named}


def test_md5_mode_adds_the_crc_and_nothing_else(start: Start) -> None:
    dump = start("statistics", summary_mode="md5")
    PrecisionDebugger.save({"a": torch.tensor([1.0, 2.0])}, "data_dict", save_backward=False)
    PrecisionDebugger.step()
    assert leaf_of(dump / "step0" / "rank", "data_dict.0.debug") == {
        "a": VALUE | {"md5": "2e3fa576"}
    }


def test_every_step_has_its_folder(start: Start) -> None:
    dump = start("tensor", step=[0, 1, 2])
    for _ in range(3):
        PrecisionDebugger.save(torch.tensor([1.0, 2.0]), "x", save_backward=False)
        PrecisionDebugger.step()
    for step in range(3):
        assert leaf_of(dump / f"step{step}" / "rank", "x.0.debug") == VALUE | {
            "data_name": "x.0.tensor.pt"
        }


def test_gradients_stand_in_the_tree_of_their_value(start: Start) -> None:
    folder = start("tensor") / "step0" / "rank"
    value = torch.tensor([1.0, 2.0], requires_grad=True)
    PrecisionDebugger.save([{"a_key": value}], "nest")
    value.sum().backward()
    PrecisionDebugger.step()
    named = check_file(folder, "nest.0.tensor.0.a_key.pt", value.detach())
    assert leaf_of(folder, "nest.0.debug") == [{"a_key": VALUE | {"requires_grad": True} | named}]
    named = check_file(folder, "nest_grad.0.tensor.0.a_key.pt", torch.ones(2))
    assert leaf_of(folder, "nest_grad.0.debug") == [{"a_key": GRADIENT | named}]


def test_a_numbered_process_writes_to_the_folder_of_its_rank(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", "0")
    dump = start("statistics")
    PrecisionDebugger.save(1, "x")
    PrecisionDebugger.step()
    assert [path.name for path in (dump / "step0").iterdir()] == ["rank0"]


@pytest.mark.parametrize(
    ("config", "folder"),
    [({}, "rank"), ({"folder": "rank0"}, "rank0"), ({"folder": "proc"}, "proc{pid}")],
)
def test_there_is_one_folder_for_a_process_and_no_link(
    start: Start, config: dict[str, str], folder: str
) -> None:
    dump = start("statistics", **config)
    PrecisionDebugger.save(1, "x")
    PrecisionDebugger.step()
    found = list((dump / "step0").iterdir())
    assert [path.name for path in found] == [folder.format(pid=os.getpid())]
    assert not found[0].is_symlink()
    assert len(list(dump.rglob("debug.json"))) == 1


@pytest.mark.parametrize(("config", "mark"), [({}, "tensor"), ({"file_mark": "debug"}, "debug")])
def test_files_are_named_as_in_the_manual_or_as_the_config_says(
    start: Start, config: dict[str, str], mark: str
) -> None:
    folder = start("tensor", **config) / "step0" / "rank"
    value = torch.tensor([1.0, 2.0], requires_grad=True)
    PrecisionDebugger.save({"key1": value, "key2": [value * 1]}, "dict_variable")
    value.sum().backward()
    PrecisionDebugger.step()
    names = {path.name for path in (folder / "dump_tensor_data").iterdir()}
    assert names == {
        f"dict_variable.0.{mark}.key1.pt",
        f"dict_variable.0.{mark}.key2.0.pt",
        f"dict_variable_grad.0.{mark}.key1.pt",
    }
    dump = read_dump(folder)
    leaf = dump.data["dict_variable.0.debug"]["key2"][0]
    assert leaf["data_name"] == f"dict_variable.0.{mark}.key2.0.pt"
    assert dump.load(leaf).tolist() == [1.0, 2.0]


@pytest.mark.parametrize("wrong", [{"file_mark": "value"}, {"folder": "../rank"}])
def test_any_other_mark_or_folder_is_refused(start: Start, wrong: dict[str, str]) -> None:
    with pytest.raises(SettingError, match=next(iter(wrong))):
        start("tensor", **wrong)
    start("tensor")
