"""The ledger: every sample's history, the same whatever interrupted the run, whatever was folded
when, and whatever damaged its files.
"""

import shutil
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from sonde.errors import RunError, RunNotFound
from sonde.records.files import atomic_file
from sonde.records.layout import RunLayout
from sonde.spikes import ledger as ledger_module
from sonde.spikes.ledger import Ledger
from sonde.spikes.ledger_blocks import (
    BASE,
    NAMES,
    PLAIN_ROWS,
    PLAIN_VISITS,
    RAW_ROWS,
    REWIND,
    ROWS,
    VISITS,
    encode_block,
)
from sonde.spikes.ledger_log import FORGOTTEN, LEARNT, NEVER_LEARNT, LedgerHistory, read_ledger

Steps = list[tuple[int, list[tuple[str, int]], NDArray[np.float64]]]


def draw_steps(seed: int, number: int, rows: int = 16) -> Steps:
    generator = np.random.default_rng(seed)
    return [
        (
            step,
            [("train", int(row)) for row in generator.integers(0, 300, rows)],
            generator.normal(0, 1, rows),
        )
        for step in range(1, number + 1)
    ]


def keep(
    folder: Path, steps: Steps, *, rank: int = 0, marks: tuple[int, ...] = (), **options: Any
) -> None:
    """One start of a run: its steps, with checkpoints after some."""
    ledger = Ledger(RunLayout(folder), rank, **options)
    for step in steps:
        ledger.add(*step)
        if step[0] in marks:
            ledger.mark()
    ledger.close()


def plain(history: LedgerHistory) -> list[tuple[Any, ...]]:
    """All rows, in an order that does not depend on how they were kept."""
    columns = zip(*(column.tolist() for column in history.rows), strict=True)
    return sorted((history.keys.name_of(key), *others) for key, *others in columns)


def test_a_sample_has_its_count_its_mean_its_last_and_its_steps(tmp_path: Path) -> None:
    seen = [
        (3, [("train", 7), ("train", 9)], np.array([2.0, 0.5])),
        (8, [("train", 7)], np.array([1.0])),
    ]
    keep(tmp_path, seen)
    first, second = read_ledger(tmp_path).worst(5)
    assert (first.dataset, first.sample, first.count) == ("train", 7, 2)
    assert (first.mean, first.last, first.first_step, first.last_step) == (1.5, 1.0, 3, 8)
    assert (second.sample, second.count, second.mean) == (9, 1, 0.5)


@pytest.mark.parametrize("back_to", [0, 17, 40])
def test_a_restart_supersedes_what_came_after_its_first_step(tmp_path: Path, back_to: int) -> None:
    steps = draw_steps(1, 60)
    other = draw_steps(2, 60)
    keep(tmp_path / "whole", steps)
    keep(tmp_path / "cut", [*steps[:back_to], *other[back_to:50]])
    keep(tmp_path / "cut", steps[back_to:])
    assert plain(read_ledger(tmp_path / "cut")) == plain(read_ledger(tmp_path / "whole"))


def test_going_back_within_one_start_supersedes_too(tmp_path: Path) -> None:
    steps = draw_steps(1, 60)
    other = draw_steps(2, 60)
    keep(tmp_path / "whole", steps)
    keep(tmp_path / "cut", [*steps[:20], *other[20:40], *steps[20:]])
    assert plain(read_ledger(tmp_path / "cut")) == plain(read_ledger(tmp_path / "whole"))


def test_folding_changes_nothing_and_going_back_to_a_kept_checkpoint_stays_exact(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = draw_steps(3, 400)
    other = draw_steps(4, 400)
    keep(tmp_path / "whole", steps)
    monkeypatch.setattr(ledger_module, "_MIN_FOLD", 500)
    monkeypatch.setattr(ledger_module, "_BATCH", 100)
    kept: list[int] = []
    ledger = Ledger(RunLayout(tmp_path / "folded"), 0, checkpoints=lambda: kept)
    for step in [*steps[:300], *other[300:360]]:
        ledger.add(*step)
        if step[0] % 50 == 0:
            ledger.mark()
            kept[:] = [*kept, step[0]][-2:]
    ledger.close()
    assert RunLayout(tmp_path / "folded").ledger_base(0).exists()
    keep(tmp_path / "folded", steps[300:], checkpoints=lambda: kept)
    assert plain(read_ledger(tmp_path / "folded")) == plain(read_ledger(tmp_path / "whole"))
    assert read_ledger(tmp_path / "folded").worst(50) == read_ledger(tmp_path / "whole").worst(50)
    assert len(read_ledger(tmp_path / "folded")) == len(read_ledger(tmp_path / "whole"))


GOLDEN = Path(__file__).parents[2] / "golden" / "data" / "ledger"


def test_files_of_the_versions_before_are_read_and_gone_on_with(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Blocks of kinds 2 and 6, written by the code that wrote them."""
    generator = np.random.default_rng(5)
    steps: list[Any] = [
        (
            step,
            [
                *(("train", int(row)) for row in generator.integers(0, 9, 3)),
                "essay",
                "#00000000000000ff",
            ],
            np.round(generator.normal(0, 2, 5), 2),
        )
        for step in range(1, 12)
    ]
    keep(tmp_path / "whole", [*steps, *draw_steps(1, 60)[12:]])
    shutil.copytree(GOLDEN, tmp_path / "old" / "ledger")
    keep(tmp_path / "expected", steps)
    assert plain(read_ledger(tmp_path / "old")) == plain(read_ledger(tmp_path / "expected"))
    monkeypatch.setattr(ledger_module, "_MIN_FOLD", 100)
    monkeypatch.setattr(ledger_module, "_BATCH", 64)
    keep(tmp_path / "old", draw_steps(1, 60)[12:], checkpoints=lambda: [40])
    assert not RunLayout(tmp_path / "old").ledger_journal(0, 2).exists()
    assert plain(read_ledger(tmp_path / "old")) == plain(read_ledger(tmp_path / "whole"))


def test_rows_as_they_were_written_at_first_are_read(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    layout.ledger.mkdir()
    head = struct.Struct("<QB")
    # Keys 5 and 7, seen 2 and 3 times, sums of 512 and 768, last 256, first steps 1 and 2, last
    # step 9.
    columns = [(5, b"\0\2"), (2, b"\0\1"), (512, b"\0\0\0\1"), (256, b""), (1, b"\0\1"), (9, b"")]
    payload = b"".join(head.pack(least, len(planes) // 2) for least, planes in columns)
    payload += b"".join(planes for _, planes in columns)
    rows = encode_block(PLAIN_ROWS, payload, num_columns=6, num_rows=2)
    layout.ledger_base(0).write_bytes(
        encode_block(BASE, b'{"generation": 1, "last_step": 40}') + rows
    )
    found = [
        (
            history.sample,
            history.count,
            history.mean,
            history.last,
            history.first_step,
            history.last_step,
        )
        for history in read_ledger(tmp_path).worst(20)
    ]
    assert found == [(5, 2, 1.0, 1.0, 1, 9), (7, 3, 1.0, 1.0, 2, 9)]


def test_samples_known_by_their_content_take_little_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "_MIN_FOLD", 1 << 16)
    generator = np.random.default_rng(1)
    names = generator.integers(0, 1 << 63, 200_000, dtype=np.uint64)
    steps: Any = [
        (1 + place // 64, names[place : place + 64], generator.normal(0, 1, 64))
        for place in range(0, len(names), 64)
    ]
    keep(tmp_path, steps)
    assert len(read_ledger(tmp_path)) == len(names)
    size = sum(path.stat().st_size for path in RunLayout(tmp_path).ledger.iterdir())
    assert size / len(names) < 10.5  # 45.6 bits of hash, 10 of excess, 12 of step


def test_a_crash_while_folding_leaves_the_old_files_in_force(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = draw_steps(5, 200)
    keep(tmp_path / "whole", steps)
    keep(tmp_path / "cut", steps[:100])
    layout = RunLayout(tmp_path / "cut")
    monkeypatch.setattr(ledger_module, "_MIN_FOLD", 500)
    real = atomic_file

    def fails_at_the_rows(path: Path) -> Any:
        if path == layout.ledger_base(0):
            raise OSError("no space left")
        return real(path)

    monkeypatch.setattr(ledger_module, "atomic_file", fails_at_the_rows)
    keep(tmp_path / "cut", steps[100:150])
    monkeypatch.setattr(ledger_module, "atomic_file", real)
    keep(tmp_path / "cut", steps[150:])
    assert layout.ledger_base(0).exists()
    assert plain(read_ledger(tmp_path / "cut")) == plain(read_ledger(tmp_path / "whole"))


def test_a_torn_tail_and_a_changed_byte_cost_their_block_only(tmp_path: Path) -> None:
    steps = draw_steps(6, 60)
    for part in (steps[:20], steps[20:40]):
        keep(tmp_path, part)
    journal = RunLayout(tmp_path).ledger_journal(0, 0)
    whole = journal.read_bytes()
    journal.write_bytes(whole[:-5])
    keep(tmp_path, steps[40:])  # a kill tore the second block; the third follows it
    keep(tmp_path / "expected", [*steps[:20], *steps[40:]])
    assert plain(read_ledger(tmp_path)) == plain(read_ledger(tmp_path / "expected"))
    assert read_ledger(tmp_path).num_bad == 1
    damaged = bytearray(journal.read_bytes())
    damaged[whole.index(b"\x89SLg", 60) + 100] ^= 1
    journal.write_bytes(damaged)
    assert read_ledger(tmp_path).num_bad >= 1


def test_blocks_of_a_later_version_are_passed_over(tmp_path: Path) -> None:
    keep(tmp_path, draw_steps(8, 5))
    with RunLayout(tmp_path).ledger_journal(0, 0).open("ab") as file:
        file.write(encode_block(99, b"who knows"))
    assert read_ledger(tmp_path).num_bad == 0


@pytest.mark.parametrize(
    "junk", [b"", b"\x89SLg", b"\x89SLg" + b"\xff" * 100, b"\0" * 1000, b"{}\n"]
)
def test_junk_in_place_of_a_ledger_is_counted(tmp_path: Path, junk: bytes) -> None:
    layout = RunLayout(tmp_path)
    layout.ledger.mkdir()
    layout.ledger_base(0).write_bytes(junk)
    history = read_ledger(tmp_path)
    assert len(history) == 0
    assert history.num_bad == bool(junk)


@pytest.mark.parametrize(
    "block",
    [
        encode_block(NAMES, b"[" * 100_000),
        encode_block(NAMES, b'{"datasets": [1]}'),
        encode_block(BASE, b'{"generation": Infinity, "last_step": 1}'),
        encode_block(REWIND, b"7"),
        encode_block(PLAIN_VISITS, b"", num_columns=3, num_rows=9),
        # a few bytes that would be megabytes
        encode_block(PLAIN_VISITS, bytes(27), num_columns=3, num_rows=60_000),
        encode_block(
            VISITS, b"\0\0\0\0\0\0\0\0\1" + bytes(27) + b"junk", num_columns=4, num_rows=9
        ),
        encode_block(
            VISITS, bytes(36) + zlib.compress(bytes(1 << 20))[2:], num_columns=4, num_rows=60_000
        ),
        # the same key twice, never seen
        encode_block(PLAIN_ROWS, bytes(54), num_columns=6, num_rows=2),
        encode_block(RAW_ROWS, bytes(63), num_columns=7, num_rows=2),
        encode_block(ROWS, bytes(63), num_columns=7, num_rows=2),
        encode_block(ROWS, b"\0\0\0\0\0\0\0\0\t" + bytes(54) + b"\3\0", num_columns=7, num_rows=2),
        encode_block(ROWS, bytes(18), num_columns=2, num_rows=0),
    ],
)
def test_blocks_made_to_do_harm_are_counted(tmp_path: Path, block: bytes) -> None:
    layout = RunLayout(tmp_path)
    layout.ledger.mkdir()
    for path in (layout.ledger_base(0), layout.ledger_journal(0, 0)):
        path.write_bytes(block)
    history = read_ledger(tmp_path)
    assert (len(history), history.worst(3)) == (0, [])
    assert history.num_bad == 2


def test_what_is_no_run_or_no_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunNotFound):
        read_ledger(tmp_path)
    layout = RunLayout(tmp_path)
    layout.ledger.mkdir()
    layout.ledger_base(0).symlink_to("/dev/zero")
    with pytest.raises(RunError, match="cannot read"):
        read_ledger(tmp_path)


def test_ranks_are_merged_though_they_number_their_datasets_differently(tmp_path: Path) -> None:
    keep(tmp_path, [(1, [("a", 5)], np.array([1.0])), (4, [("b", 5)], np.array([9.0]))], rank=0)
    keep(tmp_path, [(2, [("b", 5)], np.array([4.0])), (3, [("a", 5)], np.array([3.0]))], rank=1)
    b, a = read_ledger(tmp_path).worst(5)
    assert (b.dataset, b.count, b.mean, b.last, b.first_step, b.last_step) == (
        "b",
        2,
        6.5,
        9.0,
        2,
        4,
    )
    assert (a.dataset, a.count, a.mean, a.last, a.first_step, a.last_step) == (
        "a",
        2,
        2.0,
        3.0,
        1,
        3,
    )


def test_ranks_that_are_gone_after_a_restart_are_rewound_too(tmp_path: Path) -> None:
    for rank in (0, 1):
        keep(
            tmp_path,
            [(step, [("a", rank)], np.array([1.0])) for step in (1, 2, 3)],
            rank=rank,
            world_size=2,
        )
    keep(tmp_path, [(3, [("a", 0), ("a", 1)], np.array([5.0, 5.0]))], rank=0, world_size=1)
    assert [sample.count for sample in read_ledger(tmp_path).worst(5)] == [3, 3]


def test_samples_may_be_called_by_number_text_or_content(tmp_path: Path) -> None:
    names: list[Any] = [
        7,
        "essay-3",
        ("web", "page"),
        "#00000000000000ff",
        ("batches", 1 << 60),
        ("train", -1),
    ]
    keep(tmp_path, [(1, names, np.array([6.0, 5.0, 4.0, 3.0, 2.0, 1.0]))])
    # other integers than usual, on purpose
    keep(tmp_path, [(2, np.array([255], np.uint64), np.array([3.0]))])  # type: ignore[list-item]
    found = [
        (sample.dataset, sample.sample, sample.count) for sample in read_ledger(tmp_path).worst(20)
    ]
    assert found == [
        ("", 7, 1),
        ("", "essay-3", 1),
        ("", "web:page", 1),
        ("", f"#{255:016x}", 2),
        ("", f"#{1 << 60:016x}", 1),
    ]


def test_losses_that_are_no_numbers_are_the_highest(tmp_path: Path) -> None:
    keep(tmp_path, [(1, [("a", 1), ("a", 2), ("a", 3)], np.array([np.nan, 1e300, -np.inf]))])
    assert [sample.sample for sample in read_ledger(tmp_path).worst(2)] == [1, 2]


def test_the_trend_says_whether_a_sample_was_learnt(tmp_path: Path) -> None:
    for step, z in enumerate(([9.0, 9.0, 0.0, 0.0], [8.0, 8.0, 0.5, 0.0], [7.0, 0.5, 6.0, 0.0]), 1):
        keep(tmp_path, [(step, [("a", number) for number in range(4)], np.array(z))])
    trends = {sample.sample: sample.trend for sample in read_ledger(tmp_path).worst(4)}
    assert trends == {0: NEVER_LEARNT, 1: LEARNT, 2: FORGOTTEN, 3: ""}


def test_a_ledger_that_cannot_be_written_does_not_stop_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "ledger").write_text("not a folder")
    keep(tmp_path, draw_steps(7, 20))
    assert "training goes on" in caplog.text


@pytest.mark.parametrize("is_told", [True, False], ids=["checkpoints", "marks"])
def test_nothing_is_folded_that_the_run_may_still_go_back_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    """A run knows its checkpoints, or else only when it saved some."""
    steps = draw_steps(3, 400)
    monkeypatch.setattr(ledger_module, "_MIN_FOLD", 500)
    monkeypatch.setattr(ledger_module, "_BATCH", 100)
    options: dict[str, Any] = {"checkpoints": lambda: [100]} if is_told else {"marks": (100,)}
    keep(tmp_path / "back", [*steps[:100], *draw_steps(4, 400)[100:300]], **options)
    assert RunLayout(tmp_path / "back").ledger_base(0).exists()
    keep(tmp_path / "back", steps[100:], **options)
    keep(tmp_path / "whole", steps)
    assert plain(read_ledger(tmp_path / "back")) == plain(read_ledger(tmp_path / "whole"))
