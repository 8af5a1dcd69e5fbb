"""`sonde show`, `sonde plot` and `sonde report`: three ways to look at one run.

    sonde show RUN                   what it is, how far it got, how well it does, what happened and
                                     what to do next (cli/story.py); `--all` adds settings,
                                     versions, record files and metrics
    sonde plot RUN loss lr           its curves in the terminal
    sonde report RUN -o report.html  everything about it in one file that can be sent on

A curve is drawn with eight braille dots per character. Its scale is on the left, and its events are
marked below the axis.
"""

import shutil
import sys
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import numpy as np
from cyclopts import Parameter
from rich.console import Console
from rich.text import Text

from sonde.checkpoint.resume_report import read_reports
from sonde.cli.story import show_story
from sonde.cli.terminal import SafeConsole, print_indented, print_rows, screen, tell
from sonde.errors import SettingError
from sonde.heal.decision import describe
from sonde.records.catalog import run_status
from sonde.records.columns import Floats, Integers, Series
from sonde.records.index import RunIndex
from sonde.records.layout import RunLayout
from sonde.records.manifest import Manifest, read_manifest
from sonde.records.reader import damage_text
from sonde.records.storage import write_anywhere
from sonde.report import markdown, wording
from sonde.report.curve import Curve, thin
from sonde.report.facts import gather
from sonde.report.html import page
from sonde.report.run_curves import RunCurves
from sonde.spikes.spike_log import read_spikes

GUTTER: Final = 11
"""Width of the scale on the left, in characters."""
_OTHER_FORMATS: Final = (".pdf", ".doc", ".docx", ".odt", ".rtf", ".tex", ".txt", ".json")
_MAX_WIDTH: Final = 160
_PIPED_WIDTH: Final = 100
_MIN_COLUMNS: Final = 20
# Dots of a character by column and row: Unicode numbers them down the left side, then down the
# right; the bottom two come last.
_DOTS: Final = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_BRAILLE: Final = 0x2800


def show(
    run: Path,
    /,
    *,
    all_: Annotated[bool, Parameter(name="--all")] = False,
    json: bool = False,
) -> None:
    """Show how far and how well a run is, and what happened.

    Then what to do next. `--all` adds settings, versions, record files and metrics.

    Parameters
    ----------
    run
        The run directory.
    all_
        Show every event, the settings, versions, record files and metrics too.
    json
        Print one JSON document instead of text.
    """
    manifest = read_manifest(run)
    if all_ or json:
        _show_all(run, manifest, json=json)
    else:
        show_story(screen(), run)


def _show_all(run: Path, manifest: Manifest, *, json: bool) -> None:
    """Show everything about a run, or print it as one JSON document."""
    status = run_status(run, manifest)
    layout = RunLayout(run)
    files: list[dict[str, Any]] = []
    with RunIndex(layout) as index:
        index.refresh()
        for file in layout.record_files():
            known = {"name": file.path.name, "kind": file.kind, "rank": file.rank}
            size = file.path.stat().st_size
            num = index.num_records(file.kind, rank=file.rank)
            num_bad = index.num_bad(file.kind, rank=file.rank)
            files.append({**known, "num_records": num, "num_bad": num_bad, "num_bytes": size})
        metrics = [_describe_metric(index.series(name), name) for name in index.metrics()]
    healing = describe(run)
    resumes = [report.lines() for report in read_reports(run)]

    def print_all(console: Console) -> None:
        width = console.width
        show_story(console, run, everything=True)
        console.width = width
        for first, *rest in healing:
            console.print(Text(f"\n{first}", style="bold"))
            for sentence in rest:
                print_indented(console, Text(sentence.strip()), 2)
        _show_manifest(console, manifest)
        console.print("" if files else "\nno records yet")
        if files:
            print_rows(
                console, ("records", ">rank", ">number", ">size", ""), map(_file_cells, files)
            )
        _show_metrics(console, metrics)

    document = {
        "manifest": manifest,
        "status": status,
        "files": files,
        "metrics": metrics,
        "healing": healing,
        "resumes": resumes,
    }
    tell(document, print_all, json=json)


def _describe_metric(series: Series, name: str) -> dict[str, Any]:
    """Summarise rank 0's values of one metric. Minimum and maximum are over the finite values."""
    values = series.values
    finite = values[np.isfinite(values)]
    return {
        "name": name,
        "num_values": len(values),
        "num_nonfinite": len(values) - len(finite),
        "first": float(values[0]) if len(values) else None,
        "last": float(values[-1]) if len(values) else None,
        "min": float(finite.min()) if len(finite) else None,
        "max": float(finite.max()) if len(finite) else None,
    }


def _show_manifest(console: Console, manifest: Manifest) -> None:
    """Show what the run recorded about itself, a setting a line. What is not set is left out."""
    about = {**wording.about_run(manifest), "checkpoints": manifest.checkpoints}
    groups = {"run": [(name, text) for name, text in about.items() if text]}
    for name in ("settings", "seeds", "data", "git", "versions"):
        rows = wording.setting_rows(getattr(manifest, name))
        groups[name] = [(key, text) for key, text in rows if text != "null"]
    for name, rows in groups.items():
        if rows:
            console.print(Text(f"\n{name}", style="bold"))
            print_rows(console, ("", ""), ((f"  {key}", text) for key, text in rows))


def _show_metrics(console: Console, metrics: Sequence[dict[str, Any]]) -> None:
    """Show a row a metric: how many values, the first, the last, the lowest and the highest."""
    shown = [metric for metric in metrics if metric["num_values"] and not _is_no_rank(metric)]
    if not shown:
        return
    console.print()
    rows = []
    for metric in shown:
        bad = Text(f"{metric['num_nonfinite'] or ''}", style="red")
        ends = [wording.number(metric[name]) for name in ("first", "last", "min", "max")]
        rows.append([metric["name"], wording.number(metric["num_values"]), *ends, bad])
    columns = ("metric", ">values", ">first", ">last", ">min", ">max", ">not finite")
    if any(metric["num_nonfinite"] for metric in shown):
        print_rows(console, columns, rows)
    else:
        print_rows(console, columns[:-1], [row[:-1] for row in rows])


def _is_no_rank(metric: dict[str, Any]) -> bool:
    """Return whether this is the rank -1 that TCAP's records have for "all ranks"."""
    return (metric["name"], metric["min"], metric["max"]) == ("rank", -1, -1)


def _file_cells(file: dict[str, Any]) -> tuple[object, ...]:
    damage = Text(damage_text(file["num_bad"]), style="red")
    return (
        file["kind"],
        file["rank"],
        f"{file['num_records']:,}",
        wording.size(file["num_bytes"]),
        damage,
    )


def plot(
    run: Path,
    /,
    *names: str,
    from_: Annotated[int | None, Parameter(name="--from")] = None,
    to: int | None = None,
) -> None:
    """Draw curves in the terminal, with spikes marked.

    Parameters
    ----------
    run
        The run directory.
    names
        What to draw: `loss`, `lr`, or any logged name; `bleu` finds `val.bleu` (default: `loss`).
    from_
        First step to draw.
    to
        Last step to draw.
    """
    if from_ is not None and to is not None and from_ > to:
        raise SettingError(f"--from {from_} comes after --to {to}")
    read_manifest(run)
    curves = RunCurves(run)
    found = [curves.find(name) for name in names or ("loss",)]
    events = [spike.event.first_step for spike in read_spikes(run).spikes]
    size = shutil.get_terminal_size((_PIPED_WIDTH, 24))
    width = max(min(size.columns, _MAX_WIDTH), GUTTER + _MIN_COLUMNS)
    height = max(min(size.lines // len(found) - 5, 16), 6)
    console = SafeConsole(width=width if sys.stdout.isatty() else _MAX_WIDTH)
    for place, name in enumerate(found):
        if place:
            console.print()
        curve = curves.read(name).between(from_, to)
        console.print(draw(curve, events, width=width, height=height))
    for file, num_bad in curves.num_bad.items():
        if num_bad:
            console.print(f"{damage_text(num_bad)} in {file}", style="red")


def draw(curve: Curve, events: Sequence[int] = (), *, width: int = 80, height: int = 12) -> Text:
    """Draw a curve; `events` are the steps to mark. `width` includes the scale, `height` only the
    lines of the curve.
    """
    columns = width - GUTTER
    shown = curve.finite()
    if not len(shown):
        hint = "no step lies in the range that was asked for"
        if len(curve):
            hint = "none of them is finite"
        raise SettingError(f"{curve.name} has no value to show", hint=hint)
    low = float(shown.values.min())
    high = float(shown.values.max())
    first = int(curve.steps.min())
    last = int(curve.steps.max())
    canvas = np.zeros((height, columns), np.int64)
    _draw(canvas, thin(shown, 8 * columns), (first, last), (low, high))
    labels = (
        {0: high, height // 2: high / 2 + low / 2, height - 1: low} if high > low else {0: high}
    )
    num_broken = len(curve.broken())
    sentences = [f"last {wording.number(float(curve.values[-1]))}", f"{len(curve):,} values"]
    if num_broken:
        sentences.append(f"{num_broken:,} not finite")
    drawn = Text.assemble((f"{wording.visible(curve.name)}  {', '.join(sentences)}", "bold"), "\n")
    for place, line in enumerate(canvas.tolist()):
        label = f"{labels[place]:.4g} ┤" if place in labels else "│"
        dots = "".join(chr(_BRAILLE + dots) if dots else " " for dots in line).rstrip()
        drawn.append(f"{label:>{GUTTER}}", "dim").append(f"{dots}\n", "cyan")
    axis = f"{'└':>{GUTTER}}{'─' * columns}\n{' ' * GUTTER}{_ends(first, last, columns)}"
    marks = _marks(curve, events, (first, last), columns)
    return drawn.append(axis, "dim").append(f"\n{marks}" if marks else "", "red")


def _draw(
    canvas: Integers, curve: Curve, steps: tuple[int, int], values: tuple[float, float]
) -> None:
    num_rows = 4 * canvas.shape[0]
    num_columns = 2 * canvas.shape[1]
    across = _places(curve.steps.astype(np.float64), steps, num_columns)
    up = _places(curve.values, values, num_rows)
    points = list(zip(across.tolist(), up.tolist(), strict=True))
    for (x, y), (next_x, next_y) in pairwise([*points, points[-1]]):
        num = max(abs(next_x - x), abs(next_y - y), 1)
        for part in range(num + 1):
            column = round(x + (next_x - x) * part / num)
            row = num_rows - 1 - round(y + (next_y - y) * part / num)
            canvas[row // 4, column // 2] |= _DOTS[column % 2][row % 4]


def _places(values: Floats, limits: tuple[float, float], num: int) -> Integers:
    # Halves, because the difference of the largest numbers there are is infinite.
    low = limits[0] / 2
    high = limits[1] / 2
    if high <= low:
        return np.full(len(values), (num - 1) // 2)
    return np.rint((values / 2 - low) / (high - low) * (num - 1)).astype(np.int64)


def _ends(first: int, last: int, columns: int) -> str:
    left = str(first)
    middle = str((first + last) // 2)
    right = str(last)
    if first == last:
        return left
    room = columns - len(left) - len(right)
    return left + (middle.center(room) if room > len(middle) + 2 else " " * max(room, 1)) + right


def _marks(curve: Curve, events: Sequence[int], steps: tuple[int, int], columns: int) -> str:
    line = [" "] * columns
    for sign, marked in (("✕", curve.broken().steps.tolist()), ("▲", events)):
        within = [step for step in marked if steps[0] <= step <= steps[1]]
        for place in _places(np.array(within, np.float64), steps, columns).tolist():
            line[place] = sign
    return (" " * GUTTER + "".join(line)).rstrip()


def report(
    run: Path,
    /,
    *,
    out: Annotated[str | None, Parameter(name=("--out", "-o"))] = None,
    format: Literal["html", "md"] | None = None,  # noqa: A002  the name of the flag
) -> None:
    """Write a report of a run as one self-contained file.

    Parameters
    ----------
    run
        The run directory.
    out
        The file or URL (s3://…) to write (default: `report.html` or `report.md`).
    format
        An HTML page or Markdown (default: from the file name).
    """
    if format is None:
        _refuse_other_formats(out)
        # as the flag is called
        format = "md" if out is not None and out.endswith((".md", ".markdown")) else "html"  # noqa: A001
    path = out if out is not None else f"report.{format}"
    if Path(path).is_dir():
        raise SettingError(
            f"{path} is a directory", hint=f"name the file: -o {Path(path, f'report.{format}')}"
        )
    facts = gather(run)
    text = markdown.render_markdown(facts) if format == "md" else page.render_html(facts)
    payload = text.encode("utf-8", "backslashreplace")
    write_anywhere(path, payload)
    found = {"verdict": len(facts.verdicts), "event": len(facts.events)}
    counts = ", ".join(f"{num} {what}{'' if num == 1 else 's'}" for what, num in found.items())
    print(f"{path}: {wording.size(len(payload))}; {counts}")
    for problem in facts.problems:
        print(f"  {problem}")


def _refuse_other_formats(out: str | None) -> None:
    """Raise if the name of the file asks for a format that there is not."""
    ending = Path(out or "").suffix.lower()
    if ending in _OTHER_FORMATS:
        assert out is not None
        raise SettingError(
            f"a report is HTML or Markdown, not {ending[1:]}",
            hint=f"-o {Path(out).with_suffix('.html')}; a browser prints it as PDF",
        )
