"""Bits flip and files are cut, in every file of a run and of its data: no reader gives a wrong
answer without a word (faults 17, 18, 20, 21).
"""

import random
import shutil
from pathlib import Path

import hypothesis
import numpy as np
import pytest
import torch
from damaged_files import answers, silent
from hostile_run import make_place
from hypothesis import strategies as some

from sonde.data.skip_list import SkipList, append_entries
from sonde.probe import PrecisionDebugger
from sonde.recorder.batch_file import BatchFile, batch_path, encode_update
from sonde.recorder.moment import take_moment
from sonde.recorder.update import MicroBatch, Update
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout
from sonde.records.lock import RunLock
from sonde.spikes.ledger import Ledger

FILES = (
    "run/run.json",
    "run/lock.json",
    "run/records/log.rank0.jsonl",
    "run/records/steps.rank0.jsonl",
    "run/records/spikes.rank0.jsonl",
    "run/records/events.rank0.jsonl",
    "run/index.sqlite",
    "run/skip-list.txt",
    "run/forensics/verdict-300.json",
    "run/checkpoints/step-000000000420/state.json",
    "run/checkpoints/step-000000000420/checksums.json",
    "run/checkpoints/step-000000000420/tensors.safetensors",
    "data/train.en.bin",
    "data/train.en.idx",
    "data/train.en.json",
    "data/train.en.lines.npy",
    "data/dict.txt",
    "run/ledger/rank0.journal-0",
    "run/flight/batches-000000000000.rank0.bin",
    "dump/step0/rank/probe.jsonl",
    "dump/step0/rank/debug.json",
)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = make_place(tmp_path_factory.mktemp("damaged"))
    layout = RunLayout(place / "run")
    # a person wrote the one that is there: only what sonde writes has checksums
    layout.skip_list.unlink()
    append_entries(
        layout.skip_list, SkipList({"train": [3, 17, 20, 21, 22]}), remark="after the spike"
    )
    RunLock(layout.lock)
    with RunIndex(layout) as index:
        index.refresh()
    _add_ledger_batches_and_dump(place)
    return place


def _add_ledger_batches_and_dump(place: Path) -> None:
    layout = RunLayout(place / "run")
    ledger = Ledger(layout, 0)
    kept = BatchFile(batch_path(layout.kept, 0, 0))
    for step in range(1, 21):
        ledger.add(step, [("train", step), ("train", step % 5)], np.array([0.5 * step, -1.0]))
        update = Update(step, had_gradients=False)
        update.rates = [0.1]
        update.autocast = torch.float32
        update.add(MicroBatch({"ids": torch.arange(8) + step}, take_moment("cpu"), last=None))
        kept.append(encode_update(update, 1))
    ledger.close()
    kept.close()
    debugger = PrecisionDebugger(dump_path=str(place / "dump"), task="statistics")
    debugger.start()
    debugger.save({"v": torch.arange(4.0)}, "x")
    debugger.close()


def _damage(path: Path, bits: list[int], cut: float | None) -> bytes:
    good = path.read_bytes()
    damaged = bytearray(good)
    for bit in bits:
        bit %= 8 * len(damaged)
        damaged[bit // 8] ^= 1 << bit % 8
    path.write_bytes(bytes(damaged if cut is None else damaged[: int(cut * len(damaged))]))
    return good


def _flips(place: Path, num_flips: int, seed: int) -> list[str]:
    before = answers(place)
    draw = random.Random(seed)
    wrong = []
    for number in range(num_flips):
        path = place / FILES[number % len(FILES)]
        bit = draw.randrange(8 * path.stat().st_size)
        good = _damage(path, [bit], None)
        wrong += [f"bit {bit} of {path.name}: {name}" for name in silent(before, answers(place))]
        path.write_bytes(good)
    return wrong


@pytest.mark.fault(17)
@pytest.mark.slow
def test_no_flipped_bit_gives_a_wrong_answer_without_a_word(place: Path) -> None:
    assert _flips(place, 68, seed=1) == []


@pytest.mark.fault(17)
@pytest.mark.slow
@pytest.mark.long_fault
@pytest.mark.timeout(600)
def test_none_of_1000_flipped_bits_gives_a_wrong_answer_without_a_word(place: Path) -> None:
    assert _flips(place, 1000, seed=2) == []


@pytest.mark.fault(18)
@pytest.mark.slow
def test_no_cut_file_ends_a_reader_with_a_traceback(place: Path, tmp_path: Path) -> None:
    for name in FILES:
        size = (place / name).stat().st_size
        for num_bytes in (0, 1, size // 2, size - 1):
            shutil.rmtree(tmp_path)
            copied = Path(shutil.copytree(place, tmp_path))
            (copied / name).write_bytes((copied / name).read_bytes()[:num_bytes])
            answers(copied)


def _fuzz(place: Path, seconds_examples: int) -> None:
    before = answers(place)

    @hypothesis.settings(
        max_examples=seconds_examples,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(
        some.sampled_from(FILES),
        some.lists(some.integers(0, 10**7), max_size=3),
        some.none() | some.floats(0, 1),
        some.binary(max_size=12),
        some.integers(0, 10**6),
    )
    def mutate(name: str, bits: list[int], cut: float | None, inserted: bytes, at: int) -> None:
        path = place / name
        good = _damage(path, bits, cut)
        damaged = path.read_bytes()
        at %= len(damaged) + 1
        path.write_bytes(damaged[:at] + inserted + damaged[at:])
        try:
            answers(place)
        finally:
            path.write_bytes(good)

    mutate()
    assert {name: text for name, (text, _) in answers(place).items()} == {
        name: text for name, (text, _) in before.items()
    }


@pytest.mark.fault(20, 21)
@pytest.mark.slow
def test_no_mutated_file_ends_a_reader_with_a_traceback(place: Path) -> None:
    _fuzz(place, 60)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_no_mutated_file_ends_a_reader_with_a_traceback_for_two_minutes(place: Path) -> None:
    _fuzz(place, 1500)
