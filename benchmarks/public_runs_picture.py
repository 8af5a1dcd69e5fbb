"""The picture of docs/public-runs.md: every run is a row, every event a mark at its step."""

from collections.abc import Sequence
from typing import Final, TypeAlias

Row: TypeAlias = tuple[str, list[int], int]
"""The name of a run, the steps of its events, and its number of steps."""

_LAST: Final = 2000
"""The picture ends at this step: most runs do."""
_LEFT: Final = 150
_WIDTH: Final = 820
_ROW: Final = 11
_GAP: Final = 18
_TOP: Final = 34
_STYLE: Final = (
    "text{font:12px system-ui,sans-serif;fill:#444}.run{stroke:#bbb}.event{stroke:#c0392b}"
    ".grid{stroke:#ddd}@media (prefers-color-scheme:dark){text{fill:#bbb}.run{stroke:#555}"
    ".event{stroke:#ff7b6b}.grid{stroke:#333}}"
)


def picture(groups: Sequence[Sequence[Row]]) -> str:
    """Return the picture as SVG; the runs of a group stand together."""
    ordered = sorted(groups, key=len, reverse=True)
    if len(ordered) > 1:  # the runs that share with nobody stand between the two large groups
        ordered = [ordered[0], *ordered[2:], ordered[1]]
    parts: list[str] = []
    top = _TOP
    for group in ordered:
        words = f"{len(group)} runs, one order" if len(group) > 1 else "alone"
        middle = top + _ROW * len(group) / 2 + 4
        parts.append(f'<text x="{_LEFT - 10}" y="{middle:.0f}" text-anchor="end">{words}</text>')
        for _, steps, length in group:
            parts += _row(top + _ROW / 2, steps, length)
            top += _ROW
        top += _GAP
    height = top + 14
    grid = []
    for step in range(0, _LAST + 1, 250):
        x = _across(step)
        grid.append(f'<path class="grid" d="M{x:.1f} {_TOP - 8}V{top - _GAP + 6}"/>')
        grid.append(f'<text x="{x:.1f}" y="{_TOP - 14}" text-anchor="middle">{step:,}</text>')
    caption = "events of the loss by step, up to step 2,000"
    grid.append(f'<text x="{_LEFT}" y="{height - 8}">{caption}</text>')
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" role="img">'
    title = (
        "<title>Events of 28 public runs: those that share a data order stand in columns</title>"
    )
    return "\n".join([head, title, f"<style>{_STYLE}</style>", *grid, *parts, "</svg>\n"])


def _row(y: float, steps: Sequence[int], length: int) -> list[str]:
    end = _across(min(length, _LAST))
    line = f'<path class="run" d="M{_LEFT} {y:.1f}H{end:.1f}"/>'
    marks = [
        f'<path class="event" stroke-width="3" d="M{_across(step):.1f} {y - 4:.1f}v8"/>'
        for step in steps
        if step <= _LAST
    ]
    return [line, *marks]


def _across(step: int) -> float:
    return _LEFT + (_WIDTH - _LEFT - 30) * step / _LAST
