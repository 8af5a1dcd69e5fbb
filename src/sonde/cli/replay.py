"""`sonde replay RUN --step N`: replay one update of a run and check that it gives the recorded loss
bit for bit.

A run of several ranks is replayed on as many local processes: this command runs itself under
torchrun, with an order as for a script (records/replay_order.py), and shows the answer. Under a
torchrun of the user's it is one of the ranks.
"""

import dataclasses
import math
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import msgspec
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from sonde.cli.flags import Script, command_of
from sonde.cli.terminal import needs, number_text, print_indented, print_rows, tell
from sonde.cli.train import flags_of
from sonde.errors import SettingError, SondeError
from sonde.records.manifest import read_manifest
from sonde.records.replay_order import (
    ReplayOptions,
    ReplayOrder,
    launch,
    order_of_process,
    write_answer,
)
from sonde.report import wording

if TYPE_CHECKING:
    from sonde.forensics.replay import ReplayReport

_NUM_ROWS: Final = 20
_TIMEOUT_SECONDS: Final = 600.0

if TYPE_CHECKING:
    Flags = dict[str, Any]
else:
    Flags = flags_of(ReplayOptions, leave_out=())


def replay(
    run: Path,
    /,
    *command: str,
    step: int,
    flags: Annotated[Flags, Parameter(name="*")] | None = None,
    script: Script = Script(),
    dump: bool = False,
    json: bool = False,
) -> int:
    """Replay one step of a run, bit for bit.

    Starts from the nearest checkpoint before it. Exits 1 if the loss differs from the recorded one.
    For a run trained by your own script, give its command: `sonde replay RUN --step N -- python
    train.py …`. The script starts as usual and the replay takes over at its first `recorder.step`.
    Nothing is written into the run, but anything the script does before that point is done again.

    Parameters
    ----------
    run
        The run directory.
    command
        The command that runs your training script, after `--`.
    step
        The update to replay; 1 is the first.
    dump
        Dump every input, output and gradient of the step to RUN/probe/replay-STEP.
    json
        Print one JSON document instead of text.
    """
    if step < 1:
        raise SettingError(f"there is no step {step}", hint="steps are counted from 1")
    needs("sonde replay", "torch")
    changes = ReplayOptions(**(flags or {}))
    manifest = read_manifest(run)
    started = command_of(run, command, script, changes, step)
    if started is not None and (changes.world_size is not None or changes.data is not None):
        sentence = (
            "a script is replayed with its own data and on as many ranks as it is started with"
        )
        raise SettingError(sentence, hint="leave out --data and --world-size")
    world_size = changes.world_size or manifest.world_size
    if (
        started is None
        and world_size > 1
        and not ("RANK" in os.environ and "MASTER_ADDR" in os.environ)
    ):
        launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", str(world_size))
        started = [sys.executable, "-m", *launcher, "-m", "sonde", *sys.argv[1:]], None
    if started is None:
        report = _on_this_rank(run, step, changes, dump=dump)
    else:
        from sonde.forensics.replay import ReplayReport

        order = ReplayOrder(
            run=str(run.absolute()), verb="replay", step=step, options=changes, dump=dump
        )
        report = msgspec.convert(launch(order, *started)["replay"], ReplayReport)
    if report is None:
        return 0
    return _tell(report, world_size, run if dump else None, json=json)


def _on_this_rank(
    run: Path, step: int, changes: ReplayOptions, *, dump: bool
) -> "ReplayReport | None":
    """Replay in this process. Returns the result only if it is for this process to show."""
    from sonde import ranks
    from sonde.forensics.replay import replay_step

    order = order_of_process()
    try:
        with ranks.process_group(timeout_seconds=_TIMEOUT_SECONDS), ranks.missing_ranks_named():
            report = replay_step(run, step, changes, dump=dump)
            is_first = ranks.rank() == 0
    except SondeError as error:
        if order is None:
            raise
        write_answer(order, error)
        return None
    if order is not None and is_first:
        write_answer(order, {"replay": dataclasses.asdict(report)})
    return report if order is None and is_first else None


def _tell(report: "ReplayReport", world_size: int, dumped_in: Path | None, *, json: bool) -> int:
    """Print the result and return the exit code."""
    from sonde.forensics.replay import dump_folder

    folder = None if dumped_in is None else dump_folder(dumped_in, report.step)
    document = {**dataclasses.asdict(report), "dump": None if folder is None else str(folder)}
    tell(document, lambda console: _show(console, report, world_size, folder), json=json)
    return 1 if report.replay.reproduced is False else 0


def _show(console: Console, report: "ReplayReport", world_size: int, folder: Path | None) -> None:
    replayed = report.replay
    count = report.step - 1 - replayed.from_step
    origin = "the beginning"
    if replayed.from_step:
        origin = f"the checkpoint after {replayed.from_step} steps"
    again = f", {wording.counted(count, 'step')} repeated" if count else ""
    on = f", on {world_size} ranks" if world_size > 1 else ""
    console.print(_judgement(report))
    for difference in replayed.differences:
        print_indented(console, Text(difference, style="yellow"), 2)
    console.print(Text(f"step {report.step} of {report.run_id}, from {origin}{again}{on}"))
    for change in report.changes:
        console.print(Text(change, style="cyan"))
    is_other = replayed.reproduced is False
    recorded = report.recorded
    if replayed.recorded_loss is None:
        then = "not recorded"
    else:
        then = _exact(replayed.recorded_loss, is_other)
    rows = (
        ("loss", then, _exact(replayed.replayed_loss, is_other)),
        ("gradient norm", recorded and recorded.grad_norm, report.grad_norm),
        ("tokens", recorded and recorded.weight, report.weight),
    )
    print_rows(console, ("", ">recorded", ">replayed"), rows)
    if report.skipped:
        console.print(Text(f"the weights did not move: {report.skipped}", style="yellow"))
    _show_modules(console, report)
    if folder is not None:
        console.print(Text(f"\ndumped into {folder}; `sonde compare` takes it"))


def _exact(value: float, exactly: bool) -> str:
    return f"{value!r} ({value.hex()})" if exactly else number_text(value)


def _judgement(report: "ReplayReport") -> Text:
    replayed = report.replay
    if report.changes:
        return Text("not compared to the bit: the step was changed")
    if replayed.reproduced is None:
        return Text("nothing was recorded to compare with", style="yellow")
    if replayed.reproduced:
        return Text("reproduced bit for bit", style="green")
    off = abs(replayed.replayed_loss - (replayed.recorded_loss or 0.0))
    if replayed.differences:
        what = "what differs:"
    else:
        what = "and nothing is known to differ: suspect the machine"
    return Text(f"NOT reproduced: off by {off:.3g}; {what}", style="bold red")


def _show_modules(console: Console, report: "ReplayReport") -> None:
    """Show the tensors that differ most from the calm update, in order of execution."""
    ranked = sorted(report.modules, key=lambda module: (-module.num_nonfinite, -_distance(module)))
    shown = {id(entry) for entry in ranked[:_NUM_ROWS]}
    rows: list[tuple[object, ...]] = []
    for module in report.modules:
        if id(module) in shown:
            ratio = f"{module.norm / module.calm_norm:.2f}" if module.calm_norm else ""
            bad = Text(str(module.num_nonfinite or ""), style="bold red")
            rows.append(
                (
                    module.module,
                    module.kind,
                    _rounded(module.norm),
                    _rounded(module.calm_norm),
                    ratio,
                    _rounded(module.max_abs),
                    bad,
                )
            )
    console.print()
    columns: tuple[str, ...] = (
        "tensor",
        "kind",
        ">norm",
        ">calm norm",
        ">ratio",
        ">max",
        ">not finite",
    )
    if not any(module.num_nonfinite for module in report.modules):
        columns = columns[:-1]
        rows = [row[:-1] for row in rows]
    print_rows(console, columns, rows, cut_names=True)
    rest = len(report.modules) - len(shown)
    if rest:
        console.print(Text(f"and {rest} more; --json has all of them", style="dim"))


def _rounded(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"


def _distance(one: Any) -> float:
    """Return how far a norm is from the calm one, on a logarithmic scale."""
    if not one.calm_norm or not one.norm:
        return 0.0
    return abs(math.log(one.norm / one.calm_norm))
