"""The records of a dump: docs/formats/probe.md is held to what is written."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from sonde.probe import PrecisionDebugger
from sonde.probe.dump import DUMP, GRAD, SUSPECT, VALUE, fold
from sonde.records.reader import read_records

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "probe.md"


def test_the_example_on_the_page_is_what_is_written(
    probe: Callable[..., PrecisionDebugger], tmp_path: Path
) -> None:
    debugger = probe()
    weight = torch.tensor([3.0, 4.0], requires_grad=True)
    debugger.save({"key2": [weight]}, "x")
    weight.sum().backward()
    (weight * 2).sum().backward()
    debugger.step()
    written = (tmp_path / "dump" / "step0" / "rank" / "probe.jsonl").read_text()
    (shown,) = re.findall(r"^```json\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    moment = re.compile(r'"pid":\d+,"time":[\d.]+,"_crc":"\w{8}"')
    assert moment.sub("", written) == moment.sub("", shown)


def test_every_type_of_record_is_on_the_page() -> None:
    text = PAGE.read_text()
    for kind in (DUMP, VALUE, GRAD, SUSPECT, "ERROR"):
        assert f"| `{kind}` |" in text
    assert "\nVersion 1." in text
    assert "## What may change" in text


def test_the_document_is_folded_in_the_order_of_the_calls() -> None:
    leaf = {"type": "torch.Tensor"}
    records: list[dict[str, Any]] = [
        {"type": DUMP, "task": "tensor", "level": "debug", "dump_data_dir": "d", "format": 1},
        {"type": VALUE, "key": "b.0.debug", "tree": [leaf, {"k": leaf}], "grad": "b_grad.0.debug"},
        {"type": VALUE, "key": "a.0.debug", "tree": leaf, "framework": "mindspore"},
        {
            "type": GRAD,
            "key": "b_grad.0.debug.pass1",
            "of": "b.0.debug",
            "indexes": ["1", "k"],
            "leaf": leaf,
        },
        {"type": "LATER", "what": "a reader of tomorrow's records passes over them"},
    ]
    document = fold(records)
    assert {key: document[key] for key in document if key != "data"} == {
        "task": "tensor",
        "level": "debug",
        "framework": "mindspore",
        "dump_data_dir": "d",
    }
    assert list(document["data"]) == [
        "b.0.debug",
        "b_grad.0.debug",
        "a.0.debug",
        "b_grad.0.debug.pass1",
    ]
    assert document["data"]["b_grad.0.debug"] == [None, {"k": None}]
    assert document["data"]["b_grad.0.debug.pass1"] == [None, {"k": leaf}]


def test_a_stream_is_folded_the_same_from_memory_and_from_the_disk(
    probe: Callable[..., PrecisionDebugger], tmp_path: Path
) -> None:
    debugger = probe()
    debugger.save({"nan": torch.tensor([1.0, float("nan")]), "text": "NaN", "big": 1 << 80}, "x")
    debugger.step()
    rank = tmp_path / "dump" / "step0" / "rank"
    from_memory = json.loads((rank / "debug.json").read_bytes())
    from_disk = fold(read_records(rank / "probe.jsonl"))
    assert json.dumps(from_memory) == json.dumps(from_disk)
