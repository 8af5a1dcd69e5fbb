"""The result of `sonde audit` as HTML (docs/formats/audit.md): a count per kind, and the clearest
findings with their text. For the page that the command writes, and for the dashboard.
"""

from collections.abc import Mapping
from typing import Any, Final

from sonde.report import wording
from sonde.report.html.markup import Child, Markup, bar, left_out, section, table, tag
from sonde.texts.languages import language_name

_MAX_LISTED: Final = 40


def audit_title(document: Mapping[str, Any]) -> str:
    """Return the files of a corpus in a line."""
    return " and ".join(map(str, document["data"]))


def audit_summary(document: Mapping[str, Any]) -> list[Markup]:
    """Render how large the corpus is, and how much of it stands out."""
    num_texts = document["num_texts"]
    what = "pairs" if document.get("is_parallel") else "texts"
    size = f"{num_texts:,} {what}, {wording.size(document['num_bytes'])}"
    if document["languages"]:
        size += f"; mostly {', '.join(map(language_name, document['languages']))}"
    share = wording.percent(document["num_found"] / max(num_texts, 1))
    stand_out = f"{document['num_found']:,} stand out ({share})."
    return [tag("p", size), tag("p", stand_out, class_="state")]


def audit_findings(document: Mapping[str, Any]) -> Child:
    """Render what was found, by kind."""
    counts: Mapping[str, int] = document["counts"]
    if not counts:
        return None
    kinds: list[tuple[Child, ...]] = []
    parts = []
    for kind, count in counts.items():
        title = kind.replace("_", " ").capitalize()
        filled = bar(count / max(counts.values()))
        share = wording.percent(count / max(document["num_texts"], 1))
        kinds.append((tag("a", title, href=f"#{kind}"), f"{count:,}", share, filled))
        found = [finding for finding in document["findings"] if finding["kind"] == kind]
        rows = [_row(finding) for finding in found[:_MAX_LISTED]]
        listed = table(("where", "strength", "text", "why"), rows, right=("strength",))
        parts.append(section(title, listed, left_out(count - len(rows)), id=kind))
    head = ("kind", "found", "share", "of all")
    return [section("Kinds", table(head, kinds, right=("found", "share"))), parts]


def _row(finding: Mapping[str, Any]) -> tuple[Child, ...]:
    place = str(finding.get("place") or finding.get("line") or finding.get("sample"))
    text = tag("code", wording.shortened(finding["text"], 300))
    why = "; ".join(finding["evidence"])
    return tag("code", place.rpartition("/")[2]), f"{finding['strength']:.2f}", text, why
