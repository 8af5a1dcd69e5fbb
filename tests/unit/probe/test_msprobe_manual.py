"""What msprobe writes and takes in detail, tried literally."""

import json
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from sonde import PrecisionDebugger
from sonde.errors import SondeError

Start = Callable[..., Path]


class Pair(NamedTuple):
    left: torch.Tensor
    right: float


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """A probe in msprobe's words; gives the folder of its first step."""
    monkeypatch.delenv("RANK", raising=False)

    def started(task: str = "statistics", **settings: Any) -> Path:
        config = {"task": task, "dump_path": str(tmp_path / "dump"), "rank": [], "step": []}
        path = tmp_path / "config.json"
        path.write_text(json.dumps({**config, "level": "debug", **settings}))
        PrecisionDebugger(str(path))
        return tmp_path / "dump" / "step0" / "rank"

    yield started
    PrecisionDebugger.current().close()


def document(folder: Path) -> Any:
    PrecisionDebugger.step()
    return json.loads((folder / "debug.json").read_text())


def test_saving_before_a_debugger_exists_is_an_error() -> None:
    with pytest.raises(SondeError):
        PrecisionDebugger.save(torch.ones(2), "x")


def test_the_head_of_a_dump_has_these_keys_in_this_order(start: Start) -> None:
    folder = start()
    PrecisionDebugger.save(torch.ones(2), "x")
    found = document(folder)
    assert list(found) == ["task", "level", "framework", "dump_data_dir", "data"]
    assert (found["task"], found["level"], found["framework"]) == ("statistics", "debug", "pytorch")
    assert found["dump_data_dir"] is None


def test_a_gradient_is_null_until_a_backward_pass_fills_it(start: Start) -> None:
    folder = start()
    x = torch.ones(2, requires_grad=True)
    PrecisionDebugger.save({"x": x, "y": torch.ones(2)}, "both")
    (x * 3).sum().backward()
    gradient = document(folder)["data"]["both_grad.0.debug"]
    assert gradient["x"]["Max"] == 3.0
    assert gradient["y"] is None


def test_a_gradient_itself_requires_none(start: Start) -> None:
    folder = start()
    x = torch.ones(2, requires_grad=True)
    PrecisionDebugger.save(x, "x")
    x.sum().backward()
    data = document(folder)["data"]
    assert data["x.0.debug"]["requires_grad"] is True
    assert data["x_grad.0.debug"]["requires_grad"] is False


def test_dicts_lists_tuples_and_named_tuples_keep_their_form(start: Start) -> None:
    folder = start()
    pair = Pair(torch.ones(2), 2.5)
    PrecisionDebugger.save({"a": [1, "t"], "b": pair}, "x", save_backward=False)
    tree = document(folder)["data"]["x.0.debug"]
    assert tree["a"] == [{"type": "int", "value": 1}, {"type": "str", "value": "t"}]
    assert tree["b"]["left"]["shape"] == [2]
    assert tree["b"]["right"] == {"type": "float", "value": 2.5}


def test_a_size_is_a_value_of_its_own_type(start: Start) -> None:
    folder = start()
    PrecisionDebugger.save(torch.ones(2, 3).shape, "x", save_backward=False)
    assert document(folder)["data"]["x.0.debug"] == {"type": "torch.Size", "value": [2, 3]}


def test_a_truth_tensor_has_any_as_max_and_all_as_min(start: Start) -> None:
    folder = start()
    PrecisionDebugger.save(torch.tensor([True, False]), "x", save_backward=False)
    leaf = document(folder)["data"]["x.0.debug"]
    assert (leaf["Max"], leaf["Min"], leaf["Mean"], leaf["Norm"]) == (True, False, None, None)


def test_md5_is_the_crc_of_the_bytes_in_eight_hex_digits(start: Start) -> None:
    folder = start(statistics={"summary_mode": "md5"})
    x = torch.arange(6, dtype=torch.float32)
    PrecisionDebugger.save(x, "x", save_backward=False)
    leaf = document(folder)["data"]["x.0.debug"]
    assert leaf["md5"] == f"{zlib.crc32(x.numpy().tobytes()):08x}"


def test_an_empty_tensor_has_no_file_and_no_statistics(start: Start) -> None:
    folder = start("tensor")
    PrecisionDebugger.save(torch.ones(0), "x", save_backward=False)
    leaf = document(folder)["data"]["x.0.debug"]
    assert "data_name" not in leaf
    assert (leaf["Max"], leaf["Norm"]) == (None, None)


def test_a_saved_file_holds_a_plain_tensor(start: Start) -> None:
    folder = start("tensor")
    PrecisionDebugger.save(torch.ones(2, 3, requires_grad=True).t(), "x", save_backward=False)
    PrecisionDebugger.step()
    (file,) = (folder / "dump_tensor_data").iterdir()
    saved = torch.load(file, weights_only=True)
    assert (saved.is_contiguous(), saved.requires_grad, saved.device.type) == (True, False, "cpu")


def test_the_first_step_can_be_set(start: Start) -> None:
    folder = start()
    PrecisionDebugger.set_init_step(7)
    PrecisionDebugger.save(torch.ones(2), "x")
    PrecisionDebugger.step()
    assert (folder.parents[1] / "step7" / "rank" / "debug.json").is_file()


def test_start_and_stop_are_there_and_save_works_between_them(start: Start) -> None:
    folder = start()
    PrecisionDebugger.start()
    PrecisionDebugger.save(torch.ones(2), "x")
    PrecisionDebugger.stop()
    assert "x.0.debug" in document(folder)["data"]


def test_keys_of_a_config_that_mean_nothing_here_are_taken(start: Start) -> None:
    folder = start(precision="low", extra_info=True, enable_dataloader=False, scope=[])
    PrecisionDebugger.save(torch.ones(2), "x")
    assert "x.0.debug" in document(folder)["data"]
