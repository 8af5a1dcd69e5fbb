"""`sonde compare A B`: where two dumps of the probe part, and by how much."""

from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import number_text, plain_table, screen, write_json
from sonde.probe.compare import (
    DIFFERENT,
    NOT_COMPARED,
    SAME,
    Comparison,
    Tolerance,
    compare_dumps,
    first_difference,
)

_STYLES = {SAME: "", DIFFERENT: "red", NOT_COMPARED: "yellow"}


def compare(
    a: Path, b: Path, /, *, rtol: float = 0.0, atol: float = 0.0, differences: bool = False, json: bool = False
) -> int:
    """Compare two dumps of the probe, ours or msprobe's. Exits 1 when they differ.

    Parameters
    ----------
    a
        A dump_path, a step folder, a rank folder or a debug.json.
    b
        The same of the other run (or of another step or rank).
    rtol
        Relative tolerance.
    atol
        Absolute tolerance.
    differences
        List only what differs.
    json
        Print one JSON document instead of a table.
    """
    comparisons = compare_dumps(a, b, Tolerance(relative=rtol, absolute=atol))
    first = first_difference(comparisons)
    if json:
        counts = {verdict: sum(one.verdict == verdict for one in comparisons) for verdict in _STYLES}
        write_json(
            {
                "counts": counts,
                "first_difference": asdict(first) if first else None,
                "comparisons": [asdict(one) for one in comparisons if not differences or one.verdict == DIFFERENT],
            }
        )
    else:
        _show(screen(), comparisons, first, only_differences=differences)
    return 1 if first else 0


def _show(console: Console, comparisons: list[Comparison], first: Comparison | None, *, only_differences: bool) -> None:
    columns = ("step", "process", "saved", "verdict", "by", "max abs", "max rel", "cosine", "detail")
    table = plain_table(*columns, right=("max abs", "max rel", "cosine"))
    for one in comparisons:
        if only_differences and one.verdict != DIFFERENT:
            continue
        table.add_row(
            one.step,
            one.process,
            Text(one.key),
            Text(one.verdict, style=_STYLES[one.verdict]),
            one.by,
            number_text(one.max_abs_error),
            number_text(one.max_rel_error),
            number_text(one.cosine),
            Text(one.detail),
        )
    if table.row_count:
        console.print(table)
        console.print()
    counts = [f"{sum(one.verdict == verdict for one in comparisons)} {verdict}" for verdict in _STYLES]
    console.print(", ".join(counts))
    if first is not None:
        place = " ".join(part for part in (f"step {first.step}" if first.step else "", first.process) if part)
        console.print(Text(f"first difference: {first.key or 'the whole dump'} {place}: {first.detail}", style="red"))
