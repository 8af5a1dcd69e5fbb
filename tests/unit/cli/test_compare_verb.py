"""`sonde compare`: what it prints and what it exits with."""

import json
from pathlib import Path
from typing import Any

import pytest

from sonde.cli.compare import compare


def dump(path: Path, mean: float) -> Path:
    folder = path / "step0" / "rank0"
    folder.mkdir(parents=True)
    leaf: dict[str, Any] = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2],
        "Max": 2.0,
        "Mean": mean,
    }
    data = {"x.0.debug": leaf, "y.0.debug": {"type": "int", "value": 1}, "y_grad.0.debug": None}
    (folder / "debug.json").write_text(json.dumps({"data": data}))
    return path


def test_equal_dumps_exit_with_0(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = dump(tmp_path / "a", 1.0)
    assert compare(a, a) == 0
    assert "2 same, 0 different, 1 not compared" in capsys.readouterr().out


def test_a_difference_is_shown_and_exits_with_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a = dump(tmp_path / "a", 1.0)
    b = dump(tmp_path / "b", 1.5)
    assert compare(a, b) == 1
    shown = capsys.readouterr().out
    assert "first difference: x.0.debug step 0 rank0: Mean 1.0 and 1.5" in shown
    assert "y_grad.0.debug" in shown
    assert compare(a, b, differences=True) == 1
    assert "y_grad.0.debug" not in capsys.readouterr().out
    assert compare(a, b, rtol=0.5) == 0


def test_json_is_one_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = dump(tmp_path / "a", 1.0)
    b = dump(tmp_path / "b", 1.5)
    assert compare(a, b, json=True) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["counts"] == {"same": 1, "different": 1, "not compared": 1}
    assert document["first_difference"]["max_abs_error"] == 0.5
    assert len(document["comparisons"]) == 3
