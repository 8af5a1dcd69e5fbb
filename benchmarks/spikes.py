"""Saving and decoding loss spikes, ATorch's way beside ours; and what watching a step costs when
nothing happens.

    python benchmarks/spikes.py              about a minute

ATorch's method is stated here in a few lines: a file opened for every record, and for every line of
it a memory map opened, its length read anew, and numpy asked for the text of a row. Its log lines
are left out (they would make it slower). Both write and read the same files, and their results are
compared byte for byte. CPU time, best of several turns.
"""

import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import best_cpu_seconds, markdown_table

from sonde.compat.atorch.token_loss_spike import TokenLossSpike
from sonde.spikes.recorder import SpikeRecorder

_NUM_RECORDS: Final = 20_000
_NUM_LINES: Final = 20_000
_NUM_SHARDS: Final = 8
_ROWS: Final = 1000
_TURNS: Final = 6
_BATCH: Final = 64


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        make_shards(folder / "corpus")
        rows = [
            compare("save_loss, 3 samples", _NUM_RECORDS, (5, 7), *savers(folder, 3)),
            compare(f"save_loss, {_BATCH} samples", _NUM_RECORDS, (5, 7), *savers(folder, _BATCH)),
            compare("decode, 3 samples a line", _NUM_LINES, (20, 25), *decoders(folder, 3)),
            compare(
                f"decode, {_BATCH} samples a line", _NUM_LINES, (20, 25), *decoders(folder, _BATCH)
            ),
        ]
        columns = [
            "what",
            "ATorch's way, a CPU-second",
            "sonde, a CPU-second",
            "ratio",
            "gate",
            "goal",
            "equal output",
        ]
        print(markdown_table(columns, rows) + "\n")
        print(
            markdown_table(
                ["observe, 64 samples, nothing happens", "µs a step", "gate"], observe_rows(folder)
            )
        )


def compare(
    what: str,
    number: int,
    limits: tuple[int, int],
    theirs: Callable[[], Path],
    ours: Callable[[], Path],
) -> list[object]:
    # looked at once, outside of what is timed
    equal = without_times(theirs()) == without_times(ours())
    best = best_cpu_seconds({"theirs": theirs, "ours": ours}, num_turns=_TURNS)
    ratio = best["theirs"] / best["ours"]
    gate, goal = (f"≥ {limit}x: {'met' if ratio >= limit else 'missed'}" for limit in limits)
    rates = (f"{number / best[side]:,.0f}" for side in ("theirs", "ours"))
    return [what, *rates, f"{ratio:.1f}x", gate, goal, "yes" if equal else "NO"]


def make_shards(base: Path) -> None:
    draw = np.random.default_rng(1)
    for shard in range(_NUM_SHARDS):
        folder = Path(f"{base}.scatter") / f"{shard}.lazy"
        folder.mkdir(parents=True)
        draw.integers(0, 50_000, (_ROWS, 4), dtype=np.int32).tofile(folder / "text")


def texts(num_samples: int, number: int) -> tuple[str, str]:
    """The losses and sample infos of one record."""
    draw = np.random.default_rng(number)
    losses = ",".join(f"{loss:.4f}" for loss in draw.uniform(1, 12, num_samples))
    shards = draw.integers(0, _NUM_SHARDS, num_samples)
    rows = draw.integers(0, _ROWS, num_samples)
    return losses, ",".join(
        f"{shard}-0-11-22-{row}" for shard, row in zip(shards, rows, strict=True)
    )


def savers(folder: Path, num_samples: int) -> tuple[Callable[[], Path], Callable[[], Path]]:
    steps = [texts(num_samples, number) for number in range(50)]

    def theirs() -> Path:
        path = folder / "theirs" / "rank0.txt"
        shutil.rmtree(path.parent, ignore_errors=True)
        path.parent.mkdir()
        for number in range(_NUM_RECORDS):
            losses, infos = steps[number % 50]
            atorch_save(os.path.join(path.parent, "rank0.txt"), 11.5, 3000 + number, losses, infos)
        return path

    def ours() -> Path:
        path = folder / "ours" / "rank0.txt"
        shutil.rmtree(path.parent, ignore_errors=True)
        spike = TokenLossSpike(path.parent, None, None, 2000, 10)
        for number in range(_NUM_RECORDS):
            losses, infos = steps[number % 50]
            spike.save_loss(
                "rank0.txt", 11.5, 3000 + number, losses_str=losses, sample_infos_str=infos
            )
        spike.close()
        return path

    return theirs, ours


def without_times(path: Path) -> list[bytes]:
    """What was written, but for the moments that saved lines begin with."""
    return [line.partition(b"\t")[2] or line for line in path.read_bytes().splitlines()]


def atorch_save(path: str, loss: float, iteration: int, losses: str, infos: str) -> None:
    if loss > 10 and iteration > 2000:
        now = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime())
        with open(path, "a+", encoding="utf-8") as file:
            file.write("\t".join([now, str(iteration), str(loss), losses, infos]) + "\n")


def decoders(folder: Path, num_samples: int) -> tuple[Callable[[], Path], Callable[[], Path]]:
    saved = folder / f"saved{num_samples}"
    spike = TokenLossSpike(saved, [("corpus", folder / "corpus")], 4, 2000, 10)
    for number in range(_NUM_LINES):
        losses, infos = texts(num_samples, number)
        spike.save_loss("rank0.txt", 11.5, 3000 + number, losses_str=losses, sample_infos_str=infos)
    return (
        partial(decoded, folder / "theirs.txt", partial(atorch_decode, saved, folder / "corpus")),
        partial(decoded, folder / "ours.txt", spike.decode_loss_spike),
    )


def decoded(result: Path, decode: Callable[[Path], Any]) -> Path:
    decode(result)
    return result


def atorch_decode(saved: Path, base: Path, result: Path) -> None:
    with open(result, "w", encoding="utf-8") as out:
        for name in os.listdir(saved):
            with open(os.path.join(saved, name), encoding="utf-8") as file:
                for line in file:
                    atorch_decode_line(line, base, out)


def atorch_decode_line(line: str, base: Path, out: Any) -> None:
    fields = line.strip().split("\t")
    if int(fields[1]) < 2000 or float(fields[2]) < 10:
        return
    losses = [float(loss) for loss in fields[3].split(",")]
    infos = fields[4].split(",")
    if len(losses) != len(infos):
        return
    worst = int(np.argmax(losses))
    scatter_id, _, _, _, row = infos[worst].split("-")
    path = f"{base}.scatter/{scatter_id}.lazy/text"
    if not os.path.exists(path):
        return
    num_rows = os.path.getsize(path) // 4 // 4
    tokens = np.memmap(path, dtype=np.int32, shape=(num_rows, 4))[int(row)]
    out.write(f"=========={'corpus'}  {losses[worst]}================\n")
    out.write(f"{tokens!s}\n\n\n\n")


def observe_rows(folder: Path) -> list[list[object]]:
    """Microseconds of one call with everything handed over, and with the least."""
    draw = np.random.default_rng(1)
    losses: list[float] = (3 + 0.05 * draw.standard_normal(20_000)).tolist()
    everything: dict[str, Any] = {
        "sample_ids": [("train", number) for number in range(_BATCH)],
        "sample_losses": torch.rand(_BATCH) + 2,
        "token_losses": torch.rand(_BATCH, 512) + 2,
        "token_counts": list(range(_BATCH)),
        "lr": 0.1,
    }
    rows: list[list[object]] = []
    for what, details, limit in (
        ("loss, ids, losses of samples and tokens, counts, lr", everything, True),
        ("the same and the gradient norm, judged too", {**everything, "grad_norm": 1.0}, True),
        ("loss and ids alone", {"sample_ids": everything["sample_ids"]}, False),
    ):
        cost = observe_microseconds(folder / f"spikes{len(rows)}.jsonl", losses, details)
        gate = ""
        if limit:
            gate = "< 20: met" if cost < 20 else "< 20: missed"
        rows.append([what, f"{cost:.1f}", gate])
    return rows


def observe_microseconds(path: Path, losses: list[float], details: dict[str, Any]) -> float:
    norms = "grad_norm" in details
    best = float("inf")
    with SpikeRecorder(path) as recorder:
        for start in range(0, len(losses), 200):
            began = time.process_time()
            for step in range(start, start + 200):
                if norms:
                    details["grad_norm"] = losses[step]
                recorder.observe(step, losses[step], **details)
            if start:  # the first steps only learn
                best = min(best, (time.process_time() - began) / 200)
    return best * 1e6


if __name__ == "__main__":
    main()
