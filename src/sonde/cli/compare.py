"""`sonde compare A B`: find where two probe dumps differ, and by how much."""

from dataclasses import asdict
from pathlib import Path

from rich.console import Console
from rich.text import Text

from sonde.cli.terminal import print_rows, tell
from sonde.probe.compare import DIFFERENT, NOT_COMPARED, SAME, Tolerance, compare_dumps, first_difference

_STYLES = {SAME: "", DIFFERENT: "red", NOT_COMPARED: "yellow"}


def compare(
    a: Path, b: Path, /, *, rtol: float = 0.0, atol: float = 0.0, differences: bool = False, json: bool = False
) -> int:
    """Compare two probe dumps, from sonde or msprobe. Exits 1 when they differ.

    Parameters
    ----------
    a
        A dump_path, a step folder, a rank folder or a debug.json.
    b
        The dump to compare with it, in the same form.
    rtol
        Relative tolerance.
    atol
        Absolute tolerance.
    differences
        List only the differences.
    json
        Print one JSON document instead of a table.
    """
    comparisons = compare_dumps(a, b, Tolerance(relative=rtol, absolute=atol))
    first = first_difference(comparisons)
    counts = {verdict: sum(one.verdict == verdict for one in comparisons) for verdict in _STYLES}
    listed = [asdict(one) for one in comparisons if not differences or one.verdict == DIFFERENT]

    def show(console: Console) -> None:
        if listed:
            columns = ("step", "process", "saved", "verdict", "by", ">max abs", ">max rel", ">cosine", "detail")
            styled = [{**one, "verdict": Text(one["verdict"], style=_STYLES[one["verdict"]])} for one in listed]
            print_rows(console, columns, (one.values() for one in styled))
            console.print()
        console.print(", ".join(f"{count} {verdict}" for verdict, count in counts.items()))
        if first is not None:
            place = " ".join(part for part in (f"step {first.step}" if first.step else "", first.process) if part)
            told = f"first difference: {first.key or 'the whole dump'} {place}: {first.detail}"
            console.print(Text(told, style="red"))

    document = {"counts": counts, "first_difference": asdict(first) if first else None, "comparisons": listed}
    tell(document, show, json=json)
    return 1 if first else 0
