"""The samples of a run that were worst over all epochs, with their text, from its ledger (spikes/worst.py)."""

import shlex
from pathlib import Path
from typing import Final

from sonde.dashboard.folder import Row
from sonde.dashboard.frame import commands
from sonde.dashboard.run_page import frame
from sonde.records.layout import RunLayout
from sonde.report import wording
from sonde.report.html.markup import Child, Markup, tag
from sonde.spikes.worst import WorstSample, read_worst

_NUM: Final = 30
_MAX_TEXT: Final = 700
_MAX_BYTES: Final = 64 << 20
"""A greater ledger takes the memory of a server for good."""


def samples_page(row: Row) -> str:
    """The page; a run that kept no ledger says so."""
    return frame(row, "samples", *_body(row.summary.directory))


def _body(run: Path) -> list[Child]:
    command = f"sonde worst {shlex.quote(str(run))}"
    size = sum(path.stat().st_size for path in RunLayout(run).ledger.glob("rank*") if path.is_file())
    if size > _MAX_BYTES:
        told = f"The ledger has {wording.size(size)}, too much for this page. On the command line:"
        return [tag("p", told), commands([("the worst samples", command)])]
    found = read_worst(run, _NUM) if size else None
    if found is None or not found.entries:
        return [tag("p", "This run kept no ledger of its samples: their losses were not recorded.", class_="none")]
    told = f"The {len(found.entries)} worst of {found.num_samples:,} samples, by how far their loss was above that of others of their length over all epochs."
    return [
        tag("p", told),
        tag("p", f"{found.num_bad} parts of the ledger could not be read", class_="note") if found.num_bad else None,
        [_sample(place, entry) for place, entry in enumerate(found.entries, 1)],
        tag("section", tag("h2", "What to do next"), commands([("leave them out", f"{command} --num {_NUM} --skip")])),
    ]


def _sample(place: int, entry: WorstSample) -> Markup:
    history, decoded = entry.history, entry.decoded
    same = ", ".join(str(one.sample) for one in entry.duplicates[:20])
    told = [
        f"last {history.last:.1f}" if history.count > 1 else "",
        f"seen {history.count} times" if history.count > 1 else "seen once",
        history.trend,
        f"{history.dataset} {history.sample}".strip(),
        f"{decoded.file}:{decoded.line}" if decoded.line is not None else "",
        f"the same text: {same}" if same else "",
    ]
    return tag(
        "figure",
        tag(
            "figcaption",
            tag("b", f"{place}. {history.mean:.1f} deviations above"),
            tag("span", " · ".join(one for one in told if one), class_="where"),
        ),
        tag("pre", wording.shortened(decoded.source_text, _MAX_TEXT), class_="sample source") if decoded.source_text else None,
        tag("pre", wording.shortened(decoded.text, _MAX_TEXT), class_="sample", tabindex="0") if decoded.text else None,
        tag("p", decoded.problem, class_="note") if decoded.problem else None,
    )  # fmt: skip
