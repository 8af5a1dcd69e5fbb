"""Data: encoding, batching, random reads and collating, beside fairseq's loops in our words and the
libraries people use.

The text is made up: 30,000 words by Zipf's law, lines of about 20. What fairseq does is re-stated
from its semantics (benchmarks need no fairseq): a Python loop over tokens to encode, a copy and a
tensor a read, a copy a row to collate, a permutation and two merge sorts to order. Its batching is
Cython and left out of its time (0.1 s of 2.5).
"""

import functools
import io
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import best_cpu_seconds, markdown_table
from numpy.typing import NDArray

from sonde.data.batching import batch_by_tokens
from sonde.data.binarise import PrepareSettings, prepare
from sonde.data.datasets import gather, rows_of_one_dataset
from sonde.data.loader import Collater
from sonde.data.text_blocks import cut_blocks, read_block, split_lines
from sonde.data.token_file import TokenFile
from sonde.data.tokenizer import WordTokenizer, dictionary_of_counts
from sonde.data.tokenizer_files import HFTokenizer, single_thread, train_subwords

NUM_LENGTHS = 10_000_000
NUM_READS = 200_000
ROWS = 256
WORKER_MEGABYTES = 29
_SPACE = re.compile(r"\s+")
PREPARE = """
import resource, sys, time
from pathlib import Path
from sonde.data.binarise import prepare
from sonde.data.binarise import PrepareSettings
from sonde.data.text_blocks import open_executor

text, tokenizer, out, workers = sys.argv[1:]
splits = {"train": {"text": Path(text)}}
settings = PrepareSettings(splits=splits, out=Path(out), tokenizer=tokenizer)
with open_executor(int(workers)) as (executor, num_under_way):
    prepare(settings, executor=executor, num_under_way=num_under_way)
children = resource.getrusage(resource.RUSAGE_CHILDREN)
print(time.process_time() + children.ru_utime + children.ru_stime)
"""
"""In a process of its own: workers import the main module again, and this one brings torch."""


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="sonde-bench-") as name:
        directory = Path(name)
        lines = make_lines(60_000)
        bench_words(directory, lines)
        tokenizer = bench_bpe(lines[:20_000])
        bench_workers(directory, lines, tokenizer)
        bench_batching()
        tokens = prepare_tokens(directory, lines)
        bench_reads(tokens)
        bench_collate(tokens)


def make_lines(num_lines: int) -> list[str]:
    chance = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    weights = 1 / np.arange(1, 27) ** 0.8
    sizes = np.clip(chance.poisson(5, 30_000), 1, 14)
    words = np.array(
        ["".join(chance.choice(letters, size, p=weights / weights.sum())) for size in sizes]
    )
    ranks = 1 / np.arange(1, len(words) + 1)
    text = words[chance.choice(len(words), num_lines * 20, p=ranks / ranks.sum())].reshape(
        num_lines, 20
    )
    return [" ".join(row) for row in text]


def megabytes(lines: list[str]) -> float:
    return sum(len(line) + 1 for line in lines) / 1e6


def bench_words(directory: Path, lines: list[str]) -> None:
    words = dictionary_of_counts(Counter("\n".join(lines).split()), 20_000)
    text = directory / "words.txt"
    few = directory / "few-words.txt"
    text.write_text("".join(f"{line}\n" for line in lines))
    few.write_text("".join(f"{line}\n" for line in lines[:2000]))

    def ours() -> list[bytes]:
        blocks = (
            split_lines(read_block(block), 1_000_000).lines for block in cut_blocks(text, 4 << 20)
        )
        return [words.encode_batch(block).tokens.astype(np.uint16).tobytes() for block in blocks]

    peer = FairseqWords(words)
    seconds = best_cpu_seconds(
        {"sonde": ours, "fairseq": lambda: peer.encode_file(few)}, num_turns=7
    )
    speed = (
        text.stat().st_size / 1e6 / seconds["sonde"],
        few.stat().st_size / 1e6 / seconds["fairseq"],
    )
    print(
        "From a text file to the bytes of a `.bin` by a word dictionary, CPU, best of 7 (gate:"
        " 20x)\n"
    )
    rows = [
        ["sonde", f"{speed[0]:.1f}", f"{speed[0] / speed[1]:.1f}x"],
        ["fairseq's loop", f"{speed[1]:.2f}", "1.0x"],
    ]
    print(markdown_table(["encoder", "MB per CPU-second", "against fairseq"], rows), "\n")


class FairseqWords:
    """fairseq's binariser in our words: a method call, two look-ups and a tensor store a token."""

    def __init__(self, words: WordTokenizer) -> None:
        self.indices = {word: number for number, word in enumerate(words.words)}
        self.replaced: Counter[str] = Counter()
        self.num_tokens = 0
        self.file = io.BytesIO()

    def index(self, word: str) -> int:
        assert isinstance(word, str)
        # - as fairseq does it
        return self.indices[word] if word in self.indices else 3  # noqa: SIM401

    def note(self, word: str, number: int) -> None:
        if number == 3 and word != "<unk>":
            self.replaced.update([word])

    def encode_file(self, path: Path) -> None:
        end = path.stat().st_size
        with path.open(encoding="utf-8") as file:
            # where its chunk ends is asked at each line
            while (line := file.readline()) and file.tell() <= end:
                self.encode_line(line)

    def encode_line(self, line: str) -> None:
        words = _SPACE.sub(" ", line).strip().split()
        ids = torch.IntTensor(len(words) + 1)
        for place, word in enumerate(words):
            number = self.index(word)
            self.note(word, number)
            ids[place] = number
        ids[len(words)] = 2
        self.num_tokens += len(ids)
        self.file.write(np.array(ids.numpy(), dtype=np.uint16).tobytes())


def bench_bpe(lines: list[str]) -> HFTokenizer:
    tokenizer = train_subwords("bpe", [lines[:5000]], 8000)
    with single_thread():
        seconds = best_cpu_seconds(
            {
                "sonde": lambda: tokenizer.encode_batch(lines),
                "hf": lambda: tokenizer._tokenizer.encode_batch(lines, add_special_tokens=False),
            },
            num_turns=5,
        )
    speed = {name: megabytes(lines) / spent for name, spent in seconds.items()}
    print("Encoding with BPE of 8,000 ids, one thread, CPU, best of 5 (gate: 0.9x)\n")
    rows = [
        ["sonde, into an array", f"{speed['sonde']:.2f}", f"{speed['sonde'] / speed['hf']:.2f}x"],
        ["tokenizers `encode_batch`", f"{speed['hf']:.2f}", "1.00x"],
    ]
    print(markdown_table(["encoder", "MB per CPU-second", "against tokenizers"], rows), "\n")
    return tokenizer


def bench_workers(directory: Path, lines: list[str], tokenizer: HFTokenizer) -> None:
    path = directory / "tokenizer.json"
    path.write_bytes(tokenizer.payload)
    text = directory / "corpus.txt"
    block = ("\n".join(lines) + "\n").encode()
    text.write_bytes(block * round(WORKER_MEGABYTES * 1e6 / len(block)))
    cpu: dict[str, float] = {}
    wall: dict[str, float] = {}
    # Two runs at once, one worker each, show what two busy cores of this machine cost each other
    # without sonde's doing.
    plans = {"1": [1], "2": [2], "1, beside another such run": [1, 1]}
    for turn in range(2):
        for name, plan in plans.items():
            start = time.perf_counter()
            runs = [
                subprocess.Popen(
                    [
                        sys.executable,
                        "-c",
                        PREPARE,
                        text,
                        path,
                        directory / f"data-{turn}-{name}-{place}",
                        str(workers),
                    ],
                    stdout=subprocess.PIPE,
                )
                for place, workers in enumerate(plan)
            ]
            spent = sum(float(run.communicate()[0]) for run in runs) / len(runs)
            cpu[name] = min(spent, cpu.get(name, float("inf")))
            wall[name] = min(time.perf_counter() - start, wall.get(name, float("inf")))
    print(
        f"`prepare` of {text.stat().st_size / 1e6:.0f} MB with BPE, whole process tree, best of 2"
        " (gate: 1.1x CPU)\n"
    )
    rows = [
        [name, f"{cpu[name]:.1f}", f"{wall[name]:.1f}", f"{cpu[name] / cpu['1']:.2f}x"]
        for name in plans
    ]
    print(markdown_table(["workers", "CPU seconds", "wall seconds", "CPU against one"], rows), "\n")


def bench_batching() -> None:
    chance = np.random.default_rng(0)
    source = np.clip(chance.lognormal(3.0, 0.6, NUM_LENGTHS), 1, 500).astype(np.int32)
    target = np.clip(source * chance.lognormal(0.05, 0.2, NUM_LENGTHS), 1, 500).astype(np.int32)
    lengths = np.stack([source, target], axis=1)
    seconds = best_cpu_seconds(
        {
            "sonde": lambda: batch_by_tokens(lengths, 4096, None, 8, seed=1),
            "fairseq": lambda: order_as_fairseq(source, target),
        },
        num_turns=3,
    )
    print(f"Batching {NUM_LENGTHS:,} pairs at 4,096 tokens, CPU, best of 3 (gate: 3x)\n")
    rows = [
        [
            "sonde: ordering and batching",
            f"{seconds['sonde']:.2f}",
            f"{seconds['fairseq'] / seconds['sonde']:.1f}x",
        ],
        ["fairseq: ordering alone", f"{seconds['fairseq']:.2f}", "1.0x"],
    ]
    print(markdown_table(["work", "seconds", "against fairseq"], rows), "\n")


def order_as_fairseq(source: NDArray[np.int32], target: NDArray[np.int32]) -> NDArray[np.int64]:
    """A permutation and two merge sorts."""
    order = np.random.RandomState(1).permutation(len(source))
    order = order[np.argsort(target[order], kind="mergesort")]
    return np.asarray(order[np.argsort(source[order], kind="mergesort")])


def prepare_tokens(directory: Path, lines: list[str]) -> TokenFile:
    text = directory / "reads.txt"
    text.write_text(
        "".join(f"{line[: 10 + number * 7919 % 190]}\n" for number, line in enumerate(lines * 5))
    )
    settings = PrepareSettings(
        splits={"reads": {"text": text}},
        out=directory / "reads",
        tokenizer="word",
        vocab_size=20_000,
    )
    prepare(settings)
    return TokenFile(directory / "reads" / "reads.text")


def bench_reads(tokens: TokenFile) -> None:
    chosen: list[int] = np.random.default_rng(1).integers(0, len(tokens), NUM_READS).tolist()
    contenders: dict[str, Callable[[], object]] = {
        "sonde": lambda: [tokens[sample] for sample in chosen],
        "fairseq": lambda: [read_as_fairseq(tokens, sample) for sample in chosen[: NUM_READS // 4]],
    }
    shares = {"sonde": 1, "fairseq": 4, "HF datasets": 20}
    if find_spec("datasets"):
        rows = hf_dataset(tokens)
        contenders["HF datasets"] = lambda: [
            rows[sample]["ids"] for sample in chosen[: NUM_READS // 20]
        ]
    seconds = best_cpu_seconds(contenders, num_turns=5)
    speed = {name: NUM_READS / shares[name] / spent for name, spent in seconds.items()}
    print(
        f"Random reads among {len(tokens):,} sequences, CPU, best of 5 (gates: 5x fairseq, 20x HF"
        " datasets)\n"
    )
    table = [
        [name, f"{value / 1e3:,.0f}", f"{speed['sonde'] / value:.1f}x"]
        for name, value in speed.items()
    ]
    print(
        markdown_table(["reader", "thousand reads per CPU-second", "sonde against it"], table), "\n"
    )


@functools.lru_cache(maxsize=8)
def read_as_fairseq(tokens: TokenFile, sample: int) -> torch.Tensor:
    """A slice of the buffer, copied to int64, as a tensor, behind a small cache."""
    pointer = tokens.pointers[sample]
    size = tokens.sizes[sample]
    row = np.frombuffer(tokens.flat.data, dtype=tokens.index.dtype, count=size, offset=pointer)
    return torch.from_numpy(row.astype(np.int64))


def hf_dataset(tokens: TokenFile) -> Any:
    os.environ.setdefault("HF_DATASETS_OFFLINE", "1")
    import datasets
    import pyarrow

    ids = [tokens[sample].tolist() for sample in range(len(tokens))]
    return datasets.Dataset(pyarrow.table({"ids": ids}), fingerprint="bench").with_format("numpy")


def bench_collate(tokens: TokenFile) -> None:
    chance = np.random.default_rng(2)
    choices = [chance.integers(0, len(tokens), ROWS) for _ in range(20)]
    collater = Collater(has_source=False)

    def ours() -> None:
        for chosen in choices:
            collater(
                rows_of_one_dataset("reads", chosen, gather(tokens.flat, *tokens.spans(chosen)))
            )

    def theirs() -> None:
        for chosen in choices:
            rows = [read_as_fairseq(tokens, sample) for sample in chosen.tolist()]
            pad_as_fairseq(rows)
            pad_as_fairseq(rows, eos_first=True)

    seconds = best_cpu_seconds({"sonde": ours, "fairseq": theirs}, num_turns=9)
    speed = {name: len(choices) / spent for name, spent in seconds.items()}
    print(f"{ROWS} sequences into a padded target and decoder input, CPU, best of 9 (gate: 20x)\n")
    rows = [
        ["sonde", f"{speed['sonde']:,.0f}", f"{speed['sonde'] / speed['fairseq']:.0f}x"],
        ["fairseq", f"{speed['fairseq']:,.0f}", "1x"],
    ]
    print(markdown_table(["collater", "batches per CPU-second", "against fairseq"], rows))


def pad_as_fairseq(rows: list[torch.Tensor], *, eos_first: bool = False) -> torch.Tensor:
    """A new tensor full of padding, a copy a row; for the decoder's input with the last id in
    front.
    """
    padded = rows[0].new_full((len(rows), max(row.size(0) for row in rows)), 1)
    for number, row in enumerate(rows):
        place = padded[number][: len(row)]
        if eos_first:
            place[0] = row[-1]
            place[1:] = row[:-1]
        else:
            place.copy_(row)
    return padded


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
