"""Every verb of the command line against a run that means harm: what stands in its files, and what
stands where its files should be.
"""

import contextlib
import io
import json
import os
import shutil
import signal
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import torch  # noqa: F401  importing it may take longer than a verb may
from eventful_run import SPIKE_STEP, build_run

from sonde.cli.main import VERBS, run

LIMIT_SECONDS = 5
KINDS = ("folder", "fifo", "device", "loop", "dangling", "endless", "outside", "unreadable")


def make_place(folder: Path) -> Path:
    """A folder with a hostile run, its data, a probe's dump, and a file and a folder of somebody
    else's outside of it.
    """
    root = build_run(folder)
    root.rename(folder / "run")
    dump = folder / "run" / "probe" / "step0" / "rank0"
    dump.mkdir(parents=True)
    (dump / "debug.json").write_text(
        '{"task": "statistics", "level": "debug", "data": {"x\\u001b[31m": {"type":'
        ' "torch.Tensor"}}}'
    )
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "precious").write_text("precious\n")
    return folder


def command_of(verb: str, place: Path) -> list[list[str]]:
    """Command lines of a verb that reads the run or the data of `place`. One that is new gets the
    run directory.
    """
    root = str(place / "run")
    data = str(place / "data")
    out = str(place / "out")
    step = str(SPIKE_STEP)
    commands = {
        "prepare": [["--train", data + "/train.en.bin", "--out", out, "--tokenizer", "bytes"]],
        "inspect": [[data], [data, "--sample", "3", "--json"], [data, "--verify"]],
        "train": [[data, "--run", root, "--dry-run"], [data, "--run", root, "--max-updates", "1"]],
        "translate": [[root, "--input", "/dev/null"]],
        "score": [[root, "--target", "/dev/null"]],
        "runs": [[str(place)], [str(place), "--json"]],
        "show": [[root], [root, "--all"], [root, "--json"]],
        "tail": [[root, "--once"], [root, "--once", "--json"]],
        "log": [[root], [root, "--json"], [root, "--csv"]],
        "compare-logs": [[root, root], [root, root, "--csv"]],
        "checkpoints": [[root], [root, "--verify"], [root, "--average", "2"]],
        "spikes": [
            [root],
            [root, "--step", step],
            [root, "--step", step, "--json"],
            [root, "--atorch", root + "/records"],
        ],
        "diagnose": [[root], [root, "--step", step]],
        "report": [[root, "-o", out + ".html"], [root, "-o", out + ".md"]],
        "plot": [[root]],
        "replay": [[root, "--step", step]],
        "rollback": [[root, "--step", step], [root, "--step", step, "--apply"]],
        "skip": [[root, "--step", step]],
        "compare": [[root + "/probe", root + "/probe"]],
        "demo": [["--out", root]],
        "completion": [["bash"]],
    }
    return [[verb, *arguments] for arguments in commands.get(verb, [[root]])]


def put(kind: str, path: Path, place: Path) -> None:
    """Something of another kind in the place of a file or folder of the run."""
    if kind == "unreadable":
        if not path.exists():
            path.touch()
        path.chmod(0)
        return
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        (
            path.symlink_to("/dev/tty")
            if os.getuid()
            else os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
        )
    else:
        to = {
            "loop": path,
            "dangling": place / "elsewhere" / "nowhere",
            "endless": Path("/dev/zero"),
        }
        path.symlink_to(to.get(kind, place / "elsewhere" / "precious"))


def problems_of(verb: str, place: Path) -> list[str]:
    """What a verb does wrong on the run in `place`: a traceback, a raw control character, too long,
    anything written elsewhere.
    """
    found = []
    for command in command_of(verb, place):
        before = _outside(place)
        code, text = _run(command)
        wrong = [
            *([f"ended with {code}"] if code not in (0, 1, 2) else []),
            *(
                ["raw control characters"]
                if any(ord(letter) < 32 and letter not in "\n\t" for letter in text)
                else []
            ),
            *(["a traceback"] if "Traceback" in text or "Error:" in text else []),
            *(["wrote outside"] if _outside(place) != before else []),
        ]
        if wrong:
            found.append(f"{' '.join(command)}: {', '.join(wrong)}\n{text[-1500:]}")
    return found


def all_verbs() -> list[str]:
    """Every verb that ends by itself. The dashboard serves until it is stopped:
    tests/unit/dashboard/test_hostile_runs.py asks it for every page.
    """
    return sorted(set(VERBS) - {"dashboard"})


@contextlib.contextmanager
def _time_limit(seconds: int) -> Iterator[None]:
    def give_up(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"took more than {seconds} seconds")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _run(command: list[str]) -> tuple[object, str]:
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            with _time_limit(LIMIT_SECONDS):
                code: object = run(command)
        except BaseException as error:  # noqa: BLE001  whatever gets out is what we look for
            code = f"{type(error).__name__}: {error}"
            out.write("".join(traceback.format_exception(error)))
    return code, out.getvalue()


def _outside(place: Path) -> dict[str, str]:
    """What stands outside of the run: names, and content of what is small."""
    return {
        str(path): path.read_text() if path.is_file() else ""
        for path in sorted((place / "elsewhere").rglob("*"))
    } | {
        str(path): ""
        for path in place.glob("*")
        if path.name not in ("run", "out", "out.html", "out.md")
    }


def make_odd(place: Path) -> None:
    """Change the run in `place` so that every file is well formed and says odd things."""
    root = place / "run"
    manifest = json.loads((root / "run.json").read_text())
    manifest.pop("_crc")
    manifest |= {
        "created": 1e308,
        "ended": "NaN",
        "command": ["python", 5, None, "[/x]"],
        "world_size": 2,
        "seeds": {"a": []},
    }
    manifest |= {
        "versions": {"torch": {"x": 1}},
        "git": {"commit": 7},
        "data": {"[/x]": None},
        "host": {"name": ["h"]},
    }
    (root / "run.json").write_text(json.dumps(manifest))
    _odd_records(root)
    _odd_spikes(root)
    _odd_documents(root)


def _odd_records(root: Path) -> None:
    huge = {
        "type": "METADATA",
        "metric": "[/x]\x1b[2J",
        "metadata": {"format": ":>2000000000", "unit": ["u"], "GOAL": 7},
    }
    odd_log = [
        huge,
        {
            "type": "LOG",
            "step": 2**63,
            "data": {"[/x]\x1b[2J": 1.5, "loss": "NaN", "train.loss": 2**80},
        },
        {
            "type": "LOG",
            "step": [1, "x"],
            "data": {"[/x]\x1b[2J": 1e308, "a": {"b": {"c": 1}}},
            "timestamp": 1e308,
            "rank": 2**65,
        },
        {
            "type": "LOG",
            "step": "\ud800",
            "data": {"\ud800": 1.0},
            "timestamp": "NaN",
            "elapsedtime": -1e308,
        },
        {"type": "LOG", "step": None, "data": [1, 2]},
        {"type": "GAP", "num_lost": -5},
    ]
    _append(root / "records" / "log.rank0.jsonl", odd_log)
    odd_steps = [
        {"type": "STEP", "step": 2**70, "epoch": "x", "loss": None, "weight": -1, "lr": 1e308},
        {
            "type": "STEP",
            "step": 421,
            "epoch": 1,
            "loss": 1e308,
            "weight": 0,
            "lr": "Infinity",
            "grad_norm": [1],
            "skipped": 5,
        },
        {"type": "STEP", "step": -3, "epoch": 1, "loss": 1.0, "weight": 1.0, "lr": 0.1},
    ]
    _append(root / "records" / "steps.rank0.jsonl", odd_steps)


def _odd_spikes(root: Path) -> None:
    event = {
        "kind": "[/x]",
        "metric": "loss",
        "first_step": 5,
        "last_step": 2**70,
        "num_bad": -1,
        "value": "NaN",
        "baseline": 1e308,
    }
    event |= {"z": "Infinity", "peak": -0.0, "peak_step": 5}
    sample = {
        "step": 5,
        "loss": "NaN",
        "lr": None,
        "grad_norm": "x",
        "rng": 5,
        "sample_ids": [["train", 2**70], [1, [2]], None, "\x1b[2J"],
    }
    sample |= {"sample_losses": ["NaN", 1e308], "token_counts": [-1, 2**66, "x"]}
    spike = {
        "type": "SPIKE",
        "version": 1,
        "step": 5,
        "time": 1e308,
        "rank": 0,
        "event": event,
        "generators": [],
        "steps": [sample],
    }
    _append(
        root / "records" / "spikes.rank0.jsonl",
        [
            {**spike, "tokens": [{"row": 99, "losses": ["NaN"]}, {"row": -1}, 7]},
            {**spike, "type": "SPIKE_END", "steps": 7},
            {**spike, "steps": [{}]},
        ],
    )
    _append(
        root / "records" / "events.rank0.jsonl",
        [
            {"type": "EVENT", "event": ["x"], "time": "NaN"},
            {"event": "start", "settings_before": 5},
        ],
    )


def _odd_documents(root: Path) -> None:
    verdict = json.loads((root / "forensics" / "verdict-300.json").read_text())
    verdict.pop("_crc")
    (root / "forensics" / "verdict-300.json").write_text(
        json.dumps({**verdict, "causes": [], "time": 1e308, "seconds": -1e308})
    )
    (root / "forensics" / "verdict-5.json").write_text(
        json.dumps({**verdict, "step": 5, "causes": [{}]})
    )
    state = root / "checkpoints" / "step-000000000420" / "state.json"
    state.write_text(
        json.dumps(
            {
                **json.loads(state.read_text()),
                "metrics": {"loss": [1]},
                "distrusted": 5,
                "run_id": {},
                "state": {"model": 7},
            }
        )
    )
    (root / "skip-list.txt").write_text(f"train {2**64}\n")


def _append(path: Path, records: Sequence[object]) -> None:
    with path.open("a") as file:
        file.writelines(json.dumps(record) + "\n" for record in records)
