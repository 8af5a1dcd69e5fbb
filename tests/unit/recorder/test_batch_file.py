import random
import struct
import zlib
from collections import UserDict, namedtuple
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from sonde.errors import DamagedFile, SettingError
from sonde.recorder.batch_file import BatchFile, KeptBatches, batch_path, encode_update
from sonde.recorder.batch_tree import flatten, rebuild
from sonde.recorder.moment import set_generators, take_moment
from sonde.recorder.update import MicroBatch, Update


def kept(step: int, batch: Any, *, with_host: bool = False) -> Update:
    update = Update(step, had_gradients=False)
    update.rates = [0.1]
    update.autocast = torch.bfloat16
    update.add(MicroBatch(batch, take_moment("cpu", with_host=with_host), last=None))
    return update


def write(folder: Path, updates: list[Update], first: int = 0) -> Path:
    file = BatchFile(batch_path(folder, first, 0))
    for update in updates:
        file.append(encode_update(update, 1))
    file.close()
    return file.path


@dataclass
class Pair:
    source: torch.Tensor
    name: str


Point = namedtuple("Point", "x y")


@pytest.mark.parametrize(
    "batch",
    [
        torch.arange(12).reshape(3, 4),
        {
            "input_ids": torch.tensor([[1, 70000], [3, -4]]),
            "weight": torch.rand(2, 2).bfloat16(),
            "n": 3,
        },
        (torch.rand(2, 3), [torch.tensor([True, False]), "text", None]),
        Point(torch.ones(2, dtype=torch.int32), torch.zeros(0)),
        Pair(torch.tensor([[5, 255]]), "a"),
        UserDict({"x": torch.tensor([-1, 2**40])}),
        {"array": np.arange(6, dtype=np.float32).reshape(2, 3)},
    ],
)
def test_any_batch_comes_back_with_its_types_and_bits(tmp_path: Path, batch: Any) -> None:
    write(tmp_path, [kept(1, batch)])
    found = KeptBatches(tmp_path, 0).load(1).micro[0]
    made = rebuild(found.tree, found.tensors, batch)
    assert type(made) is type(batch)
    before = flatten(batch)
    after = flatten(made)
    assert after.plain == before.plain
    assert [tensor.dtype for tensor in after.tensors] == [tensor.dtype for tensor in before.tensors]
    pairs = zip(before.tensors, after.tensors, strict=True)
    assert all(torch.equal(old, new) for old, new in pairs)


def test_tokens_take_as_many_bytes_as_their_values_need(tmp_path: Path) -> None:
    tokens = torch.randint(0, 255, (12, 1024))
    size = write(tmp_path, [kept(1, tokens)]).stat().st_size
    assert size < tokens.numel() + 5056 + 1000


def test_generators_come_back(tmp_path: Path) -> None:
    write(tmp_path, [kept(1, torch.ones(1), with_host=True)])
    # the global generator is what is tested
    expected = [torch.rand(1).item(), random.random(), float(np.random.rand())]  # noqa: NPY002
    moment = KeptBatches(tmp_path, 0).load(1).micro[0].moment
    torch.set_rng_state(moment.cpu)
    assert moment.host is not None
    set_generators(moment, "cpu")
    # the global generator is what is tested
    assert [torch.rand(1).item(), random.random(), float(np.random.rand())] == expected  # noqa: NPY002


def test_a_torn_end_hides_nothing_before_it_and_is_cut_off_before_more_is_added(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, [kept(1, torch.ones(3)), kept(2, torch.ones(3))])
    whole = path.read_bytes()
    for end in (len(whole) - 1, len(whole) - 5000, 17, 15, 3):
        path.write_bytes(whole[:end])
        found = KeptBatches(tmp_path, 0)
        assert found.steps() == [step for step in (1, 2) if end * 2 > step * len(whole)]
        write(tmp_path, [kept(3, torch.zeros(3))])
        assert KeptBatches(tmp_path, 0).steps() == [*found.steps(), 3]


def test_a_step_that_was_made_again_after_a_restart_counts_once_and_as_it_was_last(
    tmp_path: Path,
) -> None:
    write(tmp_path, [kept(1, torch.ones(1)), kept(2, torch.ones(1))])
    write(tmp_path, [kept(2, torch.zeros(1))], first=1)
    found = KeptBatches(tmp_path, 0)
    assert found.steps() == [1, 2]
    assert found.load(2).micro[0].tensors[0].tolist() == [0.0]


def test_a_step_that_was_not_kept_is_refused_with_those_that_were(tmp_path: Path) -> None:
    write(tmp_path, [kept(4, torch.ones(1)), kept(5, torch.ones(1))])
    with pytest.raises(SettingError, match="the steps 4 to 5"):
        KeptBatches(tmp_path, 0).load(9)


def test_a_changed_byte_is_noticed_and_named(tmp_path: Path) -> None:
    path = write(tmp_path, [kept(1, torch.ones(3)), kept(2, torch.ones(3))])
    payload = bytearray(path.read_bytes())
    payload[len(payload) // 4] ^= 1
    path.write_bytes(payload)
    found = KeptBatches(tmp_path, 0)
    assert found.steps() == [2]
    assert "checksum" in found.problems[0]


def test_a_changed_size_that_reaches_beyond_the_file_is_told(tmp_path: Path) -> None:
    path = write(tmp_path, [kept(1, torch.ones(3)), kept(2, torch.ones(3))])
    payload = bytearray(path.read_bytes())
    payload[payload.rindex(b"UPDT") + 12] ^= 1  # the size of the last record is 4 GB more
    path.write_bytes(payload)
    found = KeptBatches(tmp_path, 0)
    assert found.steps() == [1]
    assert "torn or damaged" in found.problems[0]


def test_a_changed_size_costs_one_update_also_when_the_run_goes_on(tmp_path: Path) -> None:
    # of the first record: its size a little and far too large, its mark, its header's size
    for byte in (8, 12, 0, 4):
        path = write(tmp_path / str(byte), [kept(step, torch.ones(3)) for step in (1, 2, 3)])
        payload = bytearray(path.read_bytes())
        payload[payload.index(b"UPDT") + byte] ^= 4
        path.write_bytes(payload)
        write(tmp_path / str(byte), [kept(4, torch.ones(3))])
        found = KeptBatches(tmp_path / str(byte), 0)
        assert found.steps() == [2, 3, 4], byte
        assert found.problems


def test_a_file_full_of_marks_is_refused_at_once(tmp_path: Path) -> None:
    path = write(tmp_path, [kept(1, torch.ones(3))])
    path.write_bytes(path.read_bytes() + b"UPDT" * 1_000_000)
    found = KeptBatches(tmp_path, 0)
    assert found.steps() == [1]
    assert "damaged throughout" in found.problems[-1]


def test_a_changed_byte_costs_one_update_also_when_the_run_goes_on(tmp_path: Path) -> None:
    path = write(tmp_path, [kept(1, torch.ones(3)), kept(2, torch.ones(3))])
    payload = bytearray(path.read_bytes())
    payload[len(payload) // 4] ^= 1
    path.write_bytes(payload)
    write(tmp_path, [kept(3, torch.ones(3))])
    assert KeptBatches(tmp_path, 0).steps() == [2, 3]


def _hostile(header: bytes, size: int | None = None) -> bytes:
    record = struct.pack(
        "<4sIQI", b"UPDT", len(header), len(header) if size is None else size, zlib.crc32(header)
    )
    return b"SONDE-FLIGHT\x00\x00\x00\x01" + record + header


@pytest.mark.parametrize(
    "content",
    [
        b"PK\x03\x04 something else",
        _hostile(b"not json"),
        _hostile(b"[]"),
        _hostile(b'{"step": "x", "time": 1}'),
        _hostile(b'{"step": 1, "time": 1}', size=2**62),
        _hostile(b'{"step": 1, "time": 1}'),
        _hostile(
            b'{"step":1,"time":1,"had_gradients":0,"rates":[],"micro":[{"tree":{"t":0},"last":null,"names":null,'
            b'"tensors":[{"dtype":"int64","stored":"int64","shape":[99999999999]}],"moment":{}}]}'
        ),
        _hostile(
            b'{"step":1,"time":1,"had_gradients":0,"rates":[],"micro":[{"tree":{"t":0},"last":null,"names":null,'
            b'"tensors":[{"dtype":"os.system","stored":"int64","shape":[1]}],"moment":{}}]}'
        ),
        _hostile(
            b'{"step":1,"time":1,"had_gradients":0,"rates":[],"micro":[{"tree":{"t":0},"last":null,"names":null,'
            b'"tensors":[],"moment":{"sizes":[],"host":null,"autocast":null}}]}'
        ),
    ],
)
def test_a_hostile_file_is_refused_in_words(tmp_path: Path, content: bytes) -> None:
    batch_path(tmp_path, 0, 0).write_bytes(content)
    found = KeptBatches(tmp_path, 0)
    if found.steps():
        with pytest.raises(DamagedFile, match="cannot be understood"):
            found.load(1)
    else:
        with pytest.raises(SettingError, match="was not kept"):
            found.load(1)


@pytest.mark.parametrize(
    "tree",
    [{}, {"t": 7}, {"q": 1}, {"d": 3}, [1], {"l": [{"t": 0}, {"t": 9}]}, {"o": [["x", {"v": 1}]]}],
)
def test_a_hostile_tree_is_refused(tree: Any) -> None:
    with pytest.raises(DamagedFile):
        rebuild(tree, [torch.ones(1)], None)
