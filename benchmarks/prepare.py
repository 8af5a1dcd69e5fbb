"""From a text file to tokens on the disk: `sonde prepare` beside `datasets.map`, with the same
tokenizer, end to end.

    python benchmarks/prepare.py              about two minutes; left out where datasets is not
                                              installed

Each way is a process of its own, as its users start it: CPU time of the whole process, its imports
included, best of several turns. The text is 29 MB, the tokenizer a byte-level BPE of 8,000 ids in
one tokenizer.json. `datasets` reads the file by its "text" builder and maps in batches of 1,000,
once with `PreTrainedTokenizerFast` (without masks, which we do not write either) and once with
`tokenizers` itself; the result is its Arrow cache. Ours is a data directory with offsets, digests
and the way back to each line. The ids are compared at the end. One process each, then two.
"""

import os
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.data import make_lines
from benchmarks.measure import markdown_table

from sonde.data import DataDirectory
from sonde.data.tokenizer_files import train_subwords

_NUM_LINES: Final = 240_000
_NUM_TURNS: Final = 2
_MAP: Final = """
import sys
import datasets
text, tokenizer, cache, kind, workers = sys.argv[1:]
datasets.disable_progress_bars()
rows = datasets.load_dataset("text", data_files=text, cache_dir=cache, split="train")
if kind == "transformers":
    from transformers import PreTrainedTokenizerFast
    fast = PreTrainedTokenizerFast(tokenizer_file=tokenizer)
    def encode(batch):
        options = dict(return_attention_mask=False, return_token_type_ids=False)
        return fast(batch["text"], add_special_tokens=False, **options)
else:
    from tokenizers import Tokenizer
    fast = Tokenizer.from_file(tokenizer)
    def encode(batch):
        encoded = fast.encode_batch_fast(batch["text"], add_special_tokens=False)
        return {"input_ids": [row.ids for row in encoded]}
num_proc = int(workers) if workers != "1" else None
tokens = rows.map(encode, batched=True, remove_columns=["text"], num_proc=num_proc)
if len(sys.argv) and workers == "1":
    tokens.with_format("numpy")[:1000]
"""


def main() -> None:
    if not find_spec("datasets"):
        sys.exit(
            "error: datasets is not installed\nhint: make bench installs it into an environment of"
            " its own"
        )
    with tempfile.TemporaryDirectory(prefix="sonde-bench-") as name:
        folder = Path(name)
        lines = make_lines(_NUM_LINES)
        text = folder / "text.txt"
        tokenizer = folder / "tokenizer.json"
        text.write_text("".join(f"{line}\n" for line in lines))
        tokenizer.write_bytes(train_subwords("bpe", [lines[:5000]], 8000).payload)
        size = text.stat().st_size / 1e6
        for workers in (1, 2):
            seconds = {
                way: _best(way, folder, workers) for way in ("sonde", "tokenizers", "transformers")
            }
            ours = seconds["sonde"]
            rows = [
                [
                    _NAMES[way],
                    f"{cpu:.1f}",
                    f"{wall:.1f}",
                    f"{size / cpu:.2f}",
                    f"{cpu / ours[0]:.2f}x",
                    f"{wall / ours[1]:.2f}x",
                ]
                for way, (cpu, wall) in seconds.items()
            ]
            print(
                f"{size:.0f} MB, {workers} {'process' if workers == 1 else 'processes'}, best of"
                f" {_NUM_TURNS}\n"
            )
            heads = [
                "from text to tokens on the disk",
                "CPU s",
                "wall s",
                "MB per CPU second",
                "CPU against ours",
                "wall",
            ]
            print(markdown_table(heads, rows), "\n")
        _compare(folder, lines)


_NAMES: Final = {
    "sonde": "`sonde prepare`",
    "tokenizers": "`datasets.map`, tokenizers",
    "transformers": "`datasets.map`, PreTrainedTokenizerFast",
}


def _best(way: str, folder: Path, workers: int) -> tuple[float, float]:
    best = (float("inf"), float("inf"))
    for turn in range(_NUM_TURNS):
        out = folder / f"{way}-{workers}-{turn}"
        text = str(folder / "text.txt")
        tokenizer = str(folder / "tokenizer.json")
        if way == "sonde":
            command = [
                "-m",
                "sonde",
                "prepare",
                "--train",
                text,
                "--tokenizer",
                tokenizer,
                "--out",
                str(out),
            ]
            command += ["--workers", str(workers)]
        else:
            command = ["-c", _MAP, text, tokenizer, str(out), way, str(workers)]
        best = min(best, _cost([sys.executable, *command]))
    return best


def _cost(command: list[str]) -> tuple[float, float]:
    """CPU seconds of a process and of its children, and its wall seconds."""
    environment = os.environ | {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}
    before = os.times()
    start = os.times().elapsed
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    after = os.times()
    if done.returncode:
        sys.exit(f"error: {' '.join(command)[:200]} failed\n{done.stderr[-2000:]}")
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    return cpu, after.elapsed - start


def _compare(folder: Path, lines: list[str]) -> None:
    """Are the ids of both the same? Ours end with the end of the sentence."""
    from tokenizers import Tokenizer

    tokens = DataDirectory(folder / "sonde-1-0").tokens("train")
    theirs = Tokenizer.from_file(str(folder / "tokenizer.json"))
    chosen = range(0, len(lines), 997)
    equal = sum(
        np.array_equal(tokens[row][:-1], theirs.encode(lines[row], add_special_tokens=False).ids)
        for row in chosen
    )
    print(f"Equal ids: {equal} of {len(chosen)} lines that were compared.")


if __name__ == "__main__":
    main()
