"""Reading dumps: whole, killed, damaged; ours and msprobe's layout."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from sonde.errors import DamagedFile, RunNotFound
from sonde.probe import PrecisionDebugger
from sonde.probe.dump import GRAD, document_bytes, find_dumps, fold, read_dump

Start = Callable[..., PrecisionDebugger]


@pytest.fixture
def rank(probe: Start, tmp_path: Path) -> Path:
    debugger = probe(task="tensor")
    value = torch.arange(4.0, requires_grad=True)
    debugger.save({"v": value}, "x")
    (value * 2).sum().backward()
    debugger.close()
    return tmp_path / "dump" / "step0" / "rank"


def test_a_dump_is_read_from_its_folder_its_document_or_its_stream(rank: Path) -> None:
    dumps = [read_dump(path) for path in (rank, rank / "debug.json", rank / "probe.jsonl")]
    assert dumps[0] == dumps[1] == dumps[2]
    leaf = dumps[0].leaves()["x.0.debug", "v"]
    assert leaf is not None
    assert dumps[0].load(leaf).tolist() == [0.0, 1.0, 2.0, 3.0]


def test_a_killed_dump_is_rebuilt_from_its_stream(rank: Path) -> None:
    whole = read_dump(rank)
    (rank / "debug.json").unlink()
    assert read_dump(rank) == whole


def test_a_dump_of_ours_is_read_from_its_stream_whose_damage_is_noticed(rank: Path) -> None:
    whole = read_dump(rank)
    stream = rank / "probe.jsonl"
    document = rank / "debug.json"
    document.write_bytes(document.read_bytes().replace(b"3.0", b"7.0"))
    assert read_dump(rank) == whole
    stream.write_bytes(stream.read_bytes().replace(b":3.0", b":7.0"))
    with pytest.raises(DamagedFile, match="1 damaged line"):
        read_dump(rank)
    stream.write_text('{"type":"VALUE"}\n')
    with pytest.raises(DamagedFile, match="no stream of the probe"):
        read_dump(rank)


def test_a_torn_document_does_not_matter_while_the_stream_is_there(rank: Path) -> None:
    whole = read_dump(rank)
    (rank / "debug.json").write_bytes(b'{"task": "tens')
    assert read_dump(rank) == whole
    (rank / "probe.jsonl").unlink()
    with pytest.raises(DamagedFile, match=r"debug\.json"):
        read_dump(rank)


def test_a_name_that_leads_out_of_the_folder_is_not_followed(rank: Path) -> None:
    outside = rank.parents[2] / "outside.pt"
    torch.save(torch.ones(1), outside)
    assert read_dump(rank).load({"data_name": "../../../../outside.pt"}) is None
    assert read_dump(rank).load({"data_name": "missing.pt"}) is None
    assert read_dump(rank).load({"data_name": 3}) is None


def test_msprobes_newer_file_names_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "dump_tensor_data").mkdir()
    torch.save(torch.arange(3), tmp_path / "dump_tensor_data" / "x.0.debug.key2.0.pt")
    leaf = {"type": "torch.Tensor", "shape": [3], "data_name": "x.0.debug.key2.0.pt"}
    (tmp_path / "debug.json").write_text(json.dumps({"data": {"x.0.debug": leaf}}))
    assert read_dump(tmp_path).load(leaf).tolist() == [0, 1, 2]


def test_dumps_are_found_at_every_level(probe: Start, tmp_path: Path, rank: Path) -> None:
    assert find_dumps(rank) == {("", ""): rank}
    assert find_dumps(rank.parent) == {("", "rank0"): rank}
    assert find_dumps(rank.parents[1]) == {("0", "rank0"): rank}


def test_msprobes_process_folders_are_numbered(tmp_path: Path) -> None:
    for name in ("proc300", "proc9", "rank1"):
        (tmp_path / "step10" / name).mkdir(parents=True)
        (tmp_path / "step10" / name / "debug.json").write_text('{"data": {}}')
    (tmp_path / "step2" / "rank").mkdir(parents=True)
    (tmp_path / "step2" / "rank" / "debug.json").write_text('{"data": {}}')
    found = {key: path.name for key, path in find_dumps(tmp_path).items()}
    assert found == {
        ("2", "rank0"): "rank",
        ("10", "rank0"): "proc9",
        ("10", "rank1"): "rank1",
        ("10", "rank2"): "proc300",
    }
    assert next(iter(found)) == ("2", "rank0")


@pytest.mark.parametrize("where", ["nowhere", "."])
def test_a_place_without_a_dump_is_named(tmp_path: Path, where: str) -> None:
    with pytest.raises(RunNotFound, match="there is no dump"):
        find_dumps(tmp_path / where)
    with pytest.raises(RunNotFound, match="there is no dump"):
        read_dump(tmp_path / where)


def test_a_gradient_whose_value_was_lost_is_kept() -> None:
    record = {
        "type": GRAD,
        "key": "x_grad.0.debug",
        "of": "x.0.debug",
        "indexes": ["a", "0"],
        "leaf": {"type": "t"},
    }
    assert fold([record])["data"] == {"x_grad.0.debug": {"a.0": {"type": "t"}}}


def test_the_document_says_nan_as_python_and_msprobe_do() -> None:
    data = {
        "x.0.debug": {"type": "float", "value": float("nan")},
        "y.0.debug": {"type": "int", "value": 1 << 70},
    }
    text = document_bytes({"task": "statistics", "data": data})
    assert b": NaN" in text
    assert json.loads(text)["data"]["y.0.debug"]["value"] == 1 << 70
    assert json.loads(document_bytes({"task": "tensor", "data": {}})) == {
        "task": "tensor",
        "data": {},
    }
