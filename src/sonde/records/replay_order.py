"""What a replay is to do, and the order to a script: the script is started with it, carries it out,
and answers.

    SONDE_REPLAY=/tmp/…/order.json python train.py

`sonde replay`, `diagnose` and `rollback` write the order and run the script's command unchanged,
with the order in its environment; the script's `Run` then writes nothing into the run, and its
first `recorder.step` carries out the order.

Running a command executes code. It is either what the user typed after `--`, or what the run
recorded, shown before it is run. Needs no torch.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, TextIO

import msgspec

from sonde.errors import DamagedFile, RunError, SettingError, SondeError
from sonde.records.files import read_small, write_file
from sonde.records.manifest import Manifest
from sonde.records.secrets import is_masked
from sonde.records.values import decode, encode

VARIABLE: Final = "SONDE_REPLAY"
CHECK: Final = "check"
"""The verb of an order to check a training: the script makes its first updates, in a run that is
thrown away.
"""
_SAMPLE: Final = re.compile(r"(?P<dataset>.+?)[ :](?P<number>[0-9]+)")
_QUIET: Final = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "NEPTUNE_MODE": "debug",
    "DISABLE_MLFLOW_INTEGRATION": "TRUE",
    "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
}
"""Environment variables that disable other trackers during a replay."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayOptions:
    """How to rebuild a training, and what to change about the replayed step."""

    swap_batch: int | None = None
    """Replay the step with the batch of this other step."""
    drop: tuple[str, ...] = ()
    """Sample to leave out of the step, as `sonde spikes` names it: 'train 382' or train:382. Repeat
    it for several samples.
    """
    weights_from: int | None = None
    """Replay the step with the weights after this many updates, from a checkpoint; 0 uses the
    initial weights.
    """
    float32: bool = False
    """Replay the step in float32. Earlier steps keep their precision."""
    deterministic: bool = False
    """Use only deterministic algorithms of torch."""
    world_size: int | None = None
    """Number of processes to replay on (default: as many ranks as the run had)."""
    recipe: str | None = None
    """MODULE:FUNCTION that rebuilds a run trained by your own script. It is imported and called."""
    trust_recipe: bool = False
    """Import and call the recipe named in the run's manifest."""
    data: Path | None = None
    """Current location of the data directory, if it has moved."""
    checkpoints: str | None = None
    """Folder or URL of the checkpoints, if they are not where the run recorded them."""

    def __post_init__(self) -> None:
        _ = self.dropped  # raises if one names no sample

    @property
    def dropped(self) -> list[tuple[str, int]]:
        """The samples to leave out, by dataset and number."""
        found = []
        for text in self.drop:
            named = _SAMPLE.fullmatch(text)
            if named is None:
                raise SettingError(
                    f"{text!r} names no sample",
                    hint="write it as `sonde spikes` prints it, 'train 20117', or as train:20117",
                )
            found.append((named["dataset"], int(named["number"])))
        return found

    @property
    def changes(self) -> tuple[str, ...]:
        """What differs from the run in the replayed step, one sentence each."""
        sentences = []
        if self.float32:
            sentences.append("the step is made in float32")
        if self.weights_from is not None:
            sentences.append(f"the weights are those after step {self.weights_from}")
        if self.swap_batch is not None:
            sentences.append(f"the batch is that of step {self.swap_batch}")
        if self.drop:
            sentences.append(f"without {', '.join(self.drop)}")
        return tuple(f"{sentence}, as asked" for sentence in sentences)


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayOrder:
    """What to do at the first step."""

    run: str
    """The run directory; in a check, where the script records instead. `launch` names that one."""
    verb: str
    """`replay`, `diagnose` or `check`."""
    answer: str = ""
    """The file for the answer; `launch` names it."""
    step: int | None = None
    """The step in question."""
    options: ReplayOptions = ReplayOptions()
    """How to replay it."""
    dump: bool = False
    """Whether to dump the tensors of the step."""
    trainer_steps: str = ""
    """In a check: the MODULE:CLASS that makes the updates of sonde's own trainer."""


def is_replay() -> bool:
    """Return whether this process replays a step: then a script should not resume by itself."""
    return order_of_process() is not None


def is_check() -> bool:
    """Return whether `sonde check` started this process."""
    order = order_of_process()
    return order is not None and order.verb == CHECK


def place_to_record(directory: Path) -> Path:
    """Return where a script that names a directory records: in a check, elsewhere."""
    order = order_of_process()
    return Path(order.run) if order is not None and order.verb == CHECK else directory


def replayed_run() -> Path | None:
    """Return the run that this process replays; None if it trains, or is checked."""
    order = order_of_process()
    return None if order is None or order.verb == CHECK else Path(order.run)


def order_of_process() -> ReplayOrder | None:
    """Return the order that this process was started with, or None if it should train."""
    path = os.environ.get(VARIABLE)
    if not path:
        return None
    try:
        return msgspec.convert(decode(read_small(path, follow=True)), ReplayOrder)
    except (OSError, ValueError, msgspec.ValidationError) as error:
        raise DamagedFile(
            f"the order of a replay cannot be read: {path}",
            cause=str(error),
            hint=f"unset {VARIABLE} to train",
        ) from None


def write_answer(order: ReplayOrder, answer: Mapping[str, Any] | SondeError) -> None:
    """Write the answer to an order: a result, or why there is none. Of several ranks, the first to
    answer counts.
    """
    if isinstance(answer, SondeError):
        answer = {"error": [answer.message, answer.cause, answer.hint]}
    if not Path(order.answer).exists():
        write_file(Path(order.answer), encode(dict(answer), max_bytes=1 << 30))


def recorded_command(manifest: Manifest) -> tuple[list[str], Path]:
    """Return the command that the run was last started with, including its launcher, and its
    working directory.
    """
    launcher = manifest.host.get("launcher")
    words = launcher if isinstance(launcher, list) and launcher else manifest.command
    if not words or not all(isinstance(word, str) for word in words):
        raise SettingError(
            f"the run {manifest.run_id} does not say how it was started",
            hint="give the command after --: -- python train.py",
        )
    if is_masked(words):
        raise SettingError(
            f"the run {manifest.run_id} cannot be started as it was recorded",
            cause="its command line had a secret, which was masked",
            hint="give the command after --: -- python train.py",
        )
    return list(words), Path(str(manifest.host.get("directory") or "."))


def _without_answer(code: int, command: Sequence[str]) -> RunError:
    """Return the error of a script that ended before it came to a step."""
    if code == 0:
        return RunError(
            "the script ended without a step, so there was nothing to replay",
            cause=(
                "its loop was already over: it may have resumed from its own finished checkpoint"
            ),
            hint=(
                "let it resume from a checkpoint before the step, or not at all in a replay:"
                " `if not sonde.is_replay(): resume()`"
            ),
        )
    return RunError(
        f"the replay ended with exit code {code} and without an answer",
        cause=f"it was run as {shlex.join(command)}"[:4000],
        hint=(
            "what it printed is above; a script must make a Recorder, and call recorder.step in"
            " its loop"
        ),
    )


def _unchecked(code: int, command: Sequence[str]) -> RunError:
    """Return the error of a script that ended before it could be checked."""
    if code == 0:
        return RunError(
            "the script ended without a recorded step, so there was nothing to check",
            cause="it makes no Recorder, or its loop is already over",
            hint=(
                'add two lines: recorder = sonde.Recorder("runs/x", model, optimizer) before the'
                " loop, and recorder.step(train_step, batch) in it (docs/any-loop.md)"
            ),
        )
    return RunError(
        f"the script ended with exit code {code} before it could be checked",
        cause=f"it was run as {shlex.join(command)}"[:4000],
        hint="what it printed is above",
    )


def launch(
    order: ReplayOrder,
    command: Sequence[str],
    directory: Path | None,
    output: TextIO | None = None,
) -> Mapping[str, Any]:
    """Run a script for a replay and return its answer. The script's output goes to a file, by
    default to stderr.
    """
    output = output or sys.stderr
    with tempfile.TemporaryDirectory(prefix="sonde-replay-") as folder:
        path = Path(folder, "order.json")
        answer = Path(folder, "answer.json")
        if order.verb == CHECK:
            order = replace(order, run=str(Path(folder, "run")))
        write_file(path, encode(asdict(replace(order, answer=str(answer)))))
        environment = {**os.environ, **_QUIET, VARIABLE: str(path)}
        try:
            done = subprocess.run(
                list(command),
                cwd=directory,
                env=environment,
                stdout=output.fileno(),
                stderr=output.fileno(),
                check=False,
            )
        except (OSError, ValueError) as error:
            raise SettingError(f"cannot run {shlex.join(command)}", cause=str(error)) from None
        if not answer.exists():
            without = _unchecked if order.verb == CHECK else _without_answer
            raise without(done.returncode, command)
        found: Any = decode(read_small(answer, max_bytes=1 << 30))
    if "error" in found:
        message, cause, hint = found["error"]
        raise SondeError(message, cause=cause, hint=hint)
    return dict(found)
