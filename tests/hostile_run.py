"""Every verb of the command line against a run that means harm: what stands in its files, and what stands where its files should be."""

import contextlib
import io
import os
import shutil
import signal
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import torch  # noqa: F401  importing it may take longer than a verb may
from eventful_run import SPIKE_STEP, build_run

from sonde.cli.main import VERBS, run

LIMIT_SECONDS = 10  # 5 on a machine that does nothing else
KINDS = ("folder", "fifo", "device", "loop", "dangling", "endless", "outside", "unreadable")


def make_place(folder: Path) -> Path:
    """A folder with a hostile run, its data, a probe's dump, and a file and a folder of somebody else's outside of it."""
    root = build_run(folder)
    root.rename(folder / "run")
    dump = folder / "run" / "probe" / "step0" / "rank0"
    dump.mkdir(parents=True)
    (dump / "debug.json").write_text(
        '{"task": "statistics", "level": "debug", "data": {"x\\u001b[31m": {"type": "torch.Tensor"}}}'
    )
    (folder / "elsewhere").mkdir()
    (folder / "elsewhere" / "precious").write_text("precious\n")
    return folder


def command_of(verb: str, place: Path) -> list[list[str]]:
    """Command lines of a verb that reads the run or the data of `place`. One that is new gets the run directory."""
    root, data, out = str(place / "run"), str(place / "data"), str(place / "out")
    step = str(SPIKE_STEP)
    commands = {
        "prepare": [["--train", data + "/train.en.bin", "--out", out, "--tokenizer", "bytes"]],
        "inspect": [[data], [data, "--sample", "3", "--json"], [data, "--verify"]],
        "train": [[data, "--run", root, "--dry-run"], [data, "--run", root, "--max-updates", "1"]],
        "translate": [[root, "--input", "/dev/null"]],
        "score": [[root, "--target", "/dev/null"]],
        "runs": [[str(place)], [str(place), "--json"]],
        "show": [[root], [root, "--json"]],
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
        path.symlink_to("/dev/tty") if os.getuid() else os.mknod(path, 0o600 | 0o020000, os.makedev(1, 3))
    else:
        to = {"loop": path, "dangling": place / "elsewhere" / "nowhere", "endless": Path("/dev/zero")}
        path.symlink_to(to.get(kind, place / "elsewhere" / "precious"))


def problems_of(verb: str, place: Path) -> list[str]:
    """What a verb does wrong on the run in `place`: a traceback, a raw control character, too long, anything written elsewhere."""
    found = []
    for command in command_of(verb, place):
        before = _outside(place)
        code, text = _run(command)
        wrong = [
            *([f"ended with {code}"] if code not in (0, 1, 2) else []),
            *(["raw control characters"] if any(ord(one) < 32 and one not in "\n\t" for one in text) else []),
            *(["a traceback"] if "Traceback" in text or "Error:" in text else []),
            *(["wrote outside"] if _outside(place) != before else []),
        ]
        if wrong:
            found.append(f"{' '.join(command)}: {', '.join(wrong)}\n{text[-1500:]}")
    return found


def all_verbs() -> list[str]:
    return sorted(VERBS)


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
        str(path): path.read_text() if path.is_file() else "" for path in sorted((place / "elsewhere").rglob("*"))
    } | {str(path): "" for path in place.glob("*") if path.name not in ("run", "out", "out.html", "out.md")}
