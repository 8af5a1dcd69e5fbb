"""The findings of an audit as one HTML page: a count per kind, and the clearest findings with their text."""

from sonde.report import wording
from sonde.report.html.markup import Markup, bar, left_out, section, table, tag
from sonde.report.html.page import document
from sonde.texts.audit import Audit, Finding
from sonde.texts.languages import language_name
from sonde.version import __version__

_MAX_LISTED = 40


def render(done: Audit) -> str:
    """Render the audit as an HTML document."""
    name = " and ".join(str(path) for path in done.corpus.paths)
    what = "pairs" if done.corpus.is_parallel else "texts"
    share = len(done.flagged) / max(done.num_texts, 1)
    languages = ", ".join(map(language_name, done.languages))
    size = f"{done.num_texts:,} {what}, {wording.size(done.num_bytes)}; mostly {languages}" if languages else None
    stand_out = tag("p", f"{len(done.flagged):,} stand out ({wording.percent(share)}).", class_="state")
    head = tag("header", tag("p", "sonde audit", class_="kicker"), tag("h1", name), tag("p", size), stand_out)
    foot = tag("footer", f"Made by sonde {__version__}. What counts as unusual is relative to this corpus.")
    sections = [_section(kind, done) for kind in done.counts]
    return document(f"{done.corpus.paths[0].name} – sonde audit", head, _kinds(done), sections, foot)


def _kinds(done: Audit) -> Markup:
    rows = []
    for kind, count in done.counts.items():
        share = wording.percent(count / done.num_texts)
        filled = bar(count / max(done.counts.values()))
        rows.append((tag("a", _title(kind), href=f"#{kind}"), f"{count:,}", share, filled))
    return section("Kinds", table(("kind", "found", "share", "of all"), rows, right=("found", "share")))


def _section(kind: str, done: Audit) -> Markup:
    found = [one for one in done.findings if one.kind == kind]
    rows = [_row(one, done) for one in found[:_MAX_LISTED]]
    listed = table(("where", "strength", "text", "why"), rows, right=("strength",))
    return section(_title(kind), listed, left_out(done.counts[kind] - len(rows)), id=kind)


def _row(finding: Finding, done: Audit) -> tuple[Markup | str, ...]:
    text = tag("code", wording.shortened(finding.text, 300))
    return tag("code", done.corpus.place(finding.number)), f"{finding.strength:.2f}", text, "; ".join(finding.evidence)


def _title(kind: str) -> str:
    return kind.replace("_", " ").capitalize()
