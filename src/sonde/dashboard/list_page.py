"""The list of runs: search, sort, select."""

import time
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlencode

from sonde.dashboard.folder import Row, RunFolder
from sonde.dashboard.frame import document, run_address
from sonde.report import wording
from sonde.report.html.markup import Child, Markup, bar, tag
from sonde.report.html.sections import state

PAGE_ROWS: Final = 100
_SORTS: Final[dict[str, Callable[[Row], Any]]] = {
    "changed": lambda row: -row.changed,
    "name": lambda row: row.name.lower(),
    "status": lambda row: (row.summary.status, -row.changed),
    "created": lambda row: -(row.summary.manifest.created if row.summary.manifest else 0.0),
    "step": lambda row: -(row.step if row.step is not None else -1),
    "loss": lambda row: (row.loss is None or row.loss != row.loss, row.loss or 0.0),
}


def runs_page(folder: RunFolder, query: str, sort: str, page: int) -> str:
    """Render the list of runs. Each word of `query` must occur in a run's name, status or settings."""
    words = query.lower().split()
    found = [row for row in folder.rows() if all(word in _searched(row) for word in words)]
    sort = sort if sort in _SORTS else "changed"
    found.sort(key=_SORTS[sort])
    pages = max(-(-len(found) // PAGE_ROWS), 1)
    page = min(max(page, 1), pages)
    shown = found[(page - 1) * PAGE_ROWS : page * PAGE_ROWS]
    search = [
        tag("input", type="search", name="q", value=query, placeholder="search names, status, settings", aria_label="search", autocomplete="off"),
        tag("input", type="hidden", name="sort", value=sort) if sort != "changed" else None,
    ]  # fmt: skip
    place = tag("p", tag("code", str(folder.root)), class_="note")
    title = tag("h1", wording.visible(folder.root.name or str(folder.root)))
    head = tag("header", tag("p", "sonde", class_="kicker"), title, place)
    listbar = tag("div", tag("form", search, action="/", role="search"), _compare_bar(), class_="listbar")
    runs = tag("div", _table(shown, query, sort, len(words)), id="runs", data_live=True)
    return document("", head, listbar, runs, _pager(len(found), page, pages, {"q": query, "sort": sort}))


def _searched(row: Row) -> str:
    manifest = row.summary.manifest
    settings = "" if manifest is None else str(manifest.settings)[:20_000]
    return f"{row.name} {row.summary.status} {settings}".lower()


def _table(rows: Sequence[Row], query: str, sort: str, num_words: int) -> Markup:
    if not rows:
        none = "There are no runs here yet. This page looks again every few seconds."
        return tag("p", "No run matches." if num_words else none, class_="none")
    head = [tag("th", tag("span", "select", class_="unseen"))]
    for name, text in (("name", "run"), ("status", "status"), ("step", "step"), ("loss", "loss"), ("", "curve"), ("", "events"), ("created", "created"), ("changed", "written")):  # fmt: skip
        address = "/?" + urlencode({key: value for key, value in (("q", query), ("sort", name)) if value})
        inner: Child = tag("a", text, href=address) if name else text
        order = "ascending" if name in ("name", "status", "loss") else "descending"
        number = "n" if text in ("step", "loss", "events") else None
        head.append(tag("th", inner, class_=number, aria_sort=order if name == sort else None))
    body = tag("tbody", [_row(row) for row in rows])
    return tag("div", tag("table", tag("thead", tag("tr", head)), body, class_="runs"), class_="scroll", tabindex="0", role="region", aria_label="runs")  # fmt: skip


def _row(row: Row) -> Markup:
    manifest = row.summary.manifest
    address = run_address(row.name)
    share = row.step / row.planned if row.planned and row.step is not None else None
    step: list[Child] = [wording.number(row.step)]
    if share is not None and share < 1:
        step += [bar(share), tag("span", f"of {wording.number(row.planned)}", class_="note")]
    return tag(
        "tr",
        tag("td", tag("input", type="checkbox", name="run", value=row.name, aria_label=f"select {row.name}")),
        tag("td", tag("a", row.name, href=address), class_="name"),
        tag("td", state(row.summary.status)),
        tag("td", step, class_="n step"),
        tag("td", wording.number(row.loss), class_="n"),
        tag("td", tag("span", "", class_="spark", data_spark=row.name, data_state=f"{row.changed:.3f}")),
        tag("td", tag("span", "", data_events=row.name), class_="n"),
        tag("td", wording.moment(manifest.created)[:16] if manifest else "", class_="when"),
        tag("td", f"{wording.duration(max(time.time() - row.changed, 0.0))} ago", class_="when"),
    )


def _compare_bar() -> Markup:
    button = tag("button", "compare", type="submit", id="compare", disabled=True)
    selected = tag("span", "", class_="note", id="selected")
    return tag("form", selected, button, action="/compare", id="compare-form")


def _pager(num: int, page: int, pages: int, told: dict[str, str]) -> Markup:
    def link(text: str, to: int) -> Child:
        if not 1 <= to <= pages:
            return None
        kept = {key: value for key, value in told.items() if value}
        return tag("a", text, href="/?" + urlencode({**kept, "page": to}))

    counted = f"{num:,} run{'' if num == 1 else 's'}"
    counted = f"{counted}, page {page} of {pages}" if pages > 1 else counted
    return tag("p", tag("span", counted), link("previous", page - 1), link("next", page + 1), class_="pager note")
