"""The list of runs: searched, sorted, in groups that fold, with the columns that the URL names.

    /?q=lr=0.001&sort=-loss&col=status&col=set:lr&col=low:val.loss&group=lr&fold=0.1

A column is one of `_COLUMNS`, `set:NAME` (a setting), `last:NAME`, `low:NAME` or `high:NAME` (the
last, lowest or highest value of a metric). What takes long to find out is looked up within a second
for every request; the page asks again and gets the rest.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from sonde.dashboard.folder import ListedRun, RunFolder
from sonde.dashboard.frame import ago, choice, document, run_address
from sonde.dashboard.run_filter import as_float, matches, settings_of
from sonde.errors import SondeError
from sonde.records.values import as_number
from sonde.report import wording
from sonde.report.html.markup import Child, Markup, bar, moment, tag
from sonde.report.html.sections import state

PAGE_ROWS: Final = 100
DEFAULT: Final = ("status", "step", "loss", "curve", "events", "cause", "written")
"""The columns of a list whose URL names none."""
NEWEST: Final = "-written"
"""The order of a list whose URL names none: the last written first."""
FOLDER: Final = "folder"
NONE: Final = "none"
_LOOK_SECONDS: Final = 1.0
_MAX_SETTINGS: Final = 60
_MAX_NAME: Final = 64
_MAX_CELL: Final = 60
_NUMERIC: Final = ("step", "loss", "events")
_METRICS: Final = {"last": "last", "low": "lowest", "high": "highest"}
_NOT_YET: Final = object()
"""The value of a cell for which there was no time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ListQuery:
    """What the URL of the list says."""

    search: str = ""
    """The search box."""
    sort: str = NEWEST
    """The column to sort by, with a minus in front for the highest first."""
    columns: tuple[str, ...] = DEFAULT
    """The columns."""
    group: str = ""
    """What the list is grouped by: `folder`, `none`, or a setting."""
    folded: tuple[str, ...] = ()
    """The groups that are folded."""
    page: int = 1
    """The page."""

    def address(self, **changes: Any) -> str:
        """Return the URL of this list with some of it changed."""
        now = replace(self, **changes)
        pairs: list[tuple[str, str]] = []
        if now.search:
            pairs.append(("q", now.search))
        if now.sort != NEWEST:
            pairs.append(("sort", now.sort))
        if now.columns != DEFAULT:
            pairs += [("col", column) for column in now.columns]
        if now.group:
            pairs.append(("group", now.group))
        pairs += [("fold", name) for name in now.folded]
        if now.page > 1:
            pairs.append(("page", str(now.page)))
        return "/?" + urlencode(pairs) if pairs else "/"


class _Cells:
    """The values of the cells of a list, by row and column."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._until = time.monotonic() + _LOOK_SECONDS

    def value(self, row: ListedRun, column: str) -> Any:
        """Return the value of a cell, to sort by; None if there is none."""
        simple = _COLUMNS.get(column)
        if simple is not None:
            return simple(row)
        kind, _, name = column.partition(":")
        if kind == "set":
            text = settings_of(row).get(name)
            found = None if text is None else as_float(text)
            return text if found is None else found
        if kind == "last":
            return as_number(row.summary.last_data.get(name))
        if column in ("events", "cause"):
            details = self._look(lambda: self._folder.details(row.name))
            if details is None or details is _NOT_YET:
                return details
            return details.num_events if column == "events" else details.cause or None
        if kind in ("low", "high"):
            found = self._look(lambda: self._folder.extremes(row.name, name))
            if found is None or found is _NOT_YET:
                return found
            return found[0] if kind == "low" else found[1]
        return None

    def _look(self, read: Callable[[], Any]) -> Any:
        if time.monotonic() > self._until:
            return _NOT_YET
        try:
            return read()
        except (SondeError, OSError):
            return None


_COLUMNS: Final[dict[str, Callable[[ListedRun], Any]]] = {
    "name": lambda row: row.name.lower(),
    "status": lambda row: row.summary.status,
    "step": lambda row: row.step,
    "loss": lambda row: row.loss,
    "created": lambda row: row.summary.manifest.created if row.summary.manifest else None,
    "written": lambda row: row.changed,
    "elapsed": lambda row: row.seconds_run,
    "left": lambda row: row.seconds_left,
    "curve": lambda _: None,
}
"""The columns that every run has, with what they are sorted by."""


class _Group(NamedTuple):
    name: str
    rows: list[ListedRun]
    """Its runs on this page."""
    num_runs: int
    """On all pages."""


def runs_page(folder: RunFolder, query: ListQuery) -> str:
    """Render the list of runs."""
    rows = folder.rows()
    found = [row for row in rows if matches(row, query.search)]
    cells = _Cells(folder)
    found = _sorted(found, query.sort, cells)
    groups = _groups(found, query)
    shown, num_pages, page = _paged(groups, query)
    place = tag("p", tag("code", str(folder.root)), class_="note")
    title = tag("h1", wording.visible(folder.root.name or str(folder.root)))
    head = tag("header", tag("p", "sonde", class_="kicker"), title, place)
    listed = _table(shown, query, cells, is_searched=bool(query.search))
    runs = tag("div", listed, id="runs", data_live=True)
    counted = _pager(len(found), page, num_pages, query)
    bars = tag("div", _search_box(query), _compare_bar(), class_="listbar")
    return document("", head, bars, _choices(rows, query), runs, counted)


def _sorted(rows: Sequence[ListedRun], sort: str, cells: _Cells) -> list[ListedRun]:
    """Return the rows in order; those without a value come last, whichever way it is sorted."""
    if not _is_column(sort.removeprefix("-")):
        sort = NEWEST
    column = sort.removeprefix("-")

    def is_known(value: Any) -> bool:
        return value is not None and value is not _NOT_YET and value == value

    values = [(cells.value(row, column), row) for row in rows]
    known = [(value, row) for value, row in values if is_known(value)]
    rest = [row for value, row in values if not is_known(value)]
    # Numbers before texts: a setting may be a number in one run and a text in the next.
    known.sort(key=lambda pair: (isinstance(pair[0], str), pair[0]), reverse=sort.startswith("-"))
    return [row for _, row in known] + rest


def _is_column(name: str) -> bool:
    return name in _COLUMNS or name in DEFAULT or name.partition(":")[0] in ("set", *_METRICS)


def _group_of(row: ListedRun, group: str) -> str:
    if group == FOLDER:
        return row.name.rpartition("/")[0]
    return settings_of(row).get(group, "not set")


def _groups(rows: Sequence[ListedRun], query: ListQuery) -> list[_Group]:
    """Return the rows in groups, in the order of their first rows; one group without a name if they
    are not grouped.
    """
    group = query.group or FOLDER
    if group == NONE:
        return [_Group("", list(rows), len(rows))]
    found: dict[str, list[ListedRun]] = {}
    for row in rows:
        found.setdefault(_group_of(row, group), []).append(row)
    if len(found) == 1 and not query.group:
        return [_Group("", list(rows), len(rows))]
    return [_Group(name, members, len(members)) for name, members in found.items()]


def _paged(groups: Sequence[_Group], query: ListQuery) -> tuple[list[_Group], int, int]:
    """Return the groups of one page, the number of pages, and the page."""
    shown: list[list[_Group]] = [[]]
    room = PAGE_ROWS
    for group in groups:
        if group.name in query.folded:
            shown[-1].append(group)
            continue
        rows = group.rows
        while rows:
            taken = rows[:room]
            shown[-1].append(group._replace(rows=taken))
            rows = rows[len(taken) :]
            room -= len(taken)
            if room <= 0 and (rows or group is not groups[-1]):
                shown.append([])
                room = PAGE_ROWS
    page = min(max(query.page, 1), len(shown))
    return shown[page - 1], len(shown), page


def _search_box(query: ListQuery) -> Markup:
    search = tag(
        "input",
        type="search",
        name="q",
        value=query.search,
        placeholder="search, or key=value: lr=0.001 status=failed",
        aria_label="search",
        autocomplete="off",
    )
    return tag("form", search, action="/", role="search")


def _choices(rows: Sequence[ListedRun], query: ListQuery) -> Markup:
    """Return what the list is grouped by, and its columns."""
    names = list(dict.fromkeys(name for row in rows for name in settings_of(row)))[:_MAX_SETTINGS]
    groups = [("", "folder"), (NONE, "nothing"), *((name, name) for name in names)]
    grouped = choice("group", "grouped by ", groups, query.group, data_list="group")
    metrics = dict.fromkeys(name for row in rows for name in row.summary.last_data)
    offered = {column: column for column in (*DEFAULT, "created", "elapsed", "left")}
    offered |= {f"set:{name}": name for name in names}
    offered |= {column: _title(column) for column in query.columns}
    boxes = [
        tag(
            "label",
            tag(
                "input",
                type="checkbox",
                name="col",
                value=column,
                checked=column in query.columns,
            ),
            title,
        )
        for column, title in offered.items()
    ]
    kinds = [tag("option", title, value=kind) for kind, title in _METRICS.items()]
    known = [tag("option", "", value=str(name)) for name in list(metrics)[:500]]
    add = [
        tag("select", kinds, id="column-kind", aria_label="which value of a metric"),
        tag("input", type="text", id="column-metric", list="metrics", placeholder="metric"),
        tag("datalist", known, id="metrics"),
        tag("button", "add", type="button", id="column-add"),
    ]
    columns = tag(
        "details",
        tag("summary", "columns"),
        tag("div", boxes, class_="boxes"),
        tag("div", add, class_="boxes"),
        id="columns",
    )
    return tag("div", grouped, columns, class_="pickers")


def _table(
    groups: Sequence[_Group], query: ListQuery, cells: _Cells, *, is_searched: bool
) -> Markup:
    if not any(group.rows for group in groups):
        none = "There are no runs here yet. This page looks again every few seconds."
        return tag("p", "No run matches." if is_searched else none, class_="none")
    columns = ("name", *query.columns)
    head = [tag("th", tag("span", "select", class_="unseen"))]
    head += [_head_cell(column, query) for column in columns]
    body: list[Markup] = []
    for group in groups:
        if group.name or len(groups) > 1:
            body.append(_group_row(group, query, len(columns) + 1))
        if group.name not in query.folded:
            is_in_folder = bool(group.name) and query.group in ("", FOLDER)
            body += [
                _row(row, query.columns, cells, is_in_folder=is_in_folder) for row in group.rows
            ]
    return tag(
        "div",
        tag("table", tag("thead", tag("tr", head)), tag("tbody", body), class_="runs"),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="runs",
    )


def _title(column: str) -> str:
    """Return the title of a column."""
    if column == "name":
        return "run"
    kind, separator, name = column.partition(":")
    if not separator:
        return column
    return name if kind == "set" else f"{_METRICS.get(kind, kind)} {name}"


def _is_number(column: str) -> bool:
    return column in _NUMERIC or column.partition(":")[0] in _METRICS


def _head_cell(column: str, query: ListQuery) -> Markup:
    title = wording.middle(_title(column), 30)
    number = "n" if _is_number(column) else None
    if column == "curve":
        return tag("th", title)
    is_sorted = query.sort.removeprefix("-") == column
    is_down = query.sort.startswith("-")
    # What is worth seeing first: the newest, the most steps, the most events; but the lowest loss.
    first = f"-{column}" if column in ("step", "events", "created", "written") else column
    other = column if is_down else f"-{column}"
    address = query.address(sort=other if is_sorted else first, page=1)
    order = None
    if is_sorted:
        order = "descending" if is_down else "ascending"
    arrow = {None: "", "ascending": " ↑", "descending": " ↓"}[order]
    link = tag("a", title + arrow, href=address, data_stay=True)
    return tag("th", link, class_=number, aria_sort=order)


def _group_row(group: _Group, query: ListQuery, width: int) -> Markup:
    is_folded = group.name in query.folded
    folded = tuple(name for name in query.folded if name != group.name)
    if not is_folded:
        folded += (group.name,)
    sign = "▸" if is_folded else "▾"
    shown = group.name
    if query.group not in ("", FOLDER):
        shown = f"{query.group} = {group.name}"
    link = tag(
        "a",
        f"{sign} {shown or 'in this folder'}",
        href=query.address(folded=folded, page=1),
        data_stay=True,
        aria_expanded="false" if is_folded else "true",
        role="button",
    )
    counted = tag("span", wording.counted(group.num_runs, "run"), class_="note")
    return tag(
        "tr",
        tag("th", link, " ", counted, colspan=width, scope="rowgroup"),
        class_="group",
        data_key=f"group {group.name}",
    )


def _row(row: ListedRun, columns: Sequence[str], cells: _Cells, *, is_in_folder: bool) -> Markup:
    box = tag("input", type="checkbox", name="run", value=row.name, aria_label=f"select {row.name}")
    # A group of a folder has its name above: it is not repeated in every row.
    name = row.name.rpartition("/")[2] if is_in_folder else row.name
    short = wording.middle(name, _MAX_NAME)
    link = tag(
        "a", short, href=run_address(row.name), title=row.name if short != row.name else None
    )
    made = [tag("td", box), tag("td", link, class_="name")]
    for column in columns:
        if column in _DRAWN:
            made.append(_DRAWN[column](row))
        else:
            made.append(_cell(row, column, cells))
    return tag("tr", made, data_key=row.name)


def _cell(row: ListedRun, column: str, cells: _Cells) -> Markup:
    kind = "n" if _is_number(column) else None
    value = cells.value(row, column)
    if value is _NOT_YET:
        return tag("td", tag("span", "…", title="being read"), class_=kind)
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return tag("td", "", class_=kind)
    text = str(value) if isinstance(value, str) else wording.number(value)
    short = wording.middle(text, _MAX_CELL)
    return tag("td", short, class_=kind, title=text if short != text else None)


def _status_cell(row: ListedRun) -> Markup:
    damage = tag("span", "", class_="bad", data_damage=row.name)
    return tag("td", state(row.summary.status), " ", damage, title=row.summary.problem)


def _step_cell(row: ListedRun) -> Markup:
    step: list[Child] = [wording.number(row.step)]
    if row.epoch is not None:
        step.append(tag("span", f" in epoch {row.epoch:,}", class_="note"))
    if row.planned and row.step is not None and row.step < row.planned:
        step += [
            bar(row.step / row.planned),
            tag("span", f"of {wording.number(row.planned)}", class_="note"),
        ]
    return tag("td", step, class_="n step")


def _curve_cell(row: ListedRun) -> Markup:
    place = tag("span", "", class_="spark", data_spark=row.name, data_state=f"{row.changed:.3f}")
    return tag("td", place)


def _events_cell(row: ListedRun) -> Markup:
    return tag("td", tag("span", "", data_events=row.name), class_="n")


def _cause_cell(row: ListedRun) -> Markup:
    return tag("td", tag("span", "", data_cause=row.name), class_="cause-cell")


def _created_cell(row: ListedRun) -> Markup:
    manifest = row.summary.manifest
    return tag("td", moment(manifest.created) if manifest else "", class_="when")


def _written_cell(row: ListedRun) -> Markup:
    return tag("td", ago(row.changed), class_="when")


def _elapsed_cell(row: ListedRun) -> Markup:
    return tag("td", _duration(row.seconds_run), class_="when")


def _left_cell(row: ListedRun) -> Markup:
    return tag("td", _duration(row.seconds_left), class_="when")


def _duration(seconds: float) -> str:
    return "" if math.isnan(seconds) else wording.duration(seconds)


_DRAWN: Final[Mapping[str, Callable[[ListedRun], Markup]]] = {
    "status": _status_cell,
    "step": _step_cell,
    "curve": _curve_cell,
    "events": _events_cell,
    "cause": _cause_cell,
    "created": _created_cell,
    "written": _written_cell,
    "elapsed": _elapsed_cell,
    "left": _left_cell,
}
"""The cells that are more than a number or a text. Those of curve, events and cause are filled by
the script, a few runs at a time.
"""


def _compare_bar() -> Markup:
    button = tag("button", "compare", type="submit", id="compare", disabled=True)
    clear = tag("button", "clear", type="button", id="clear", hidden=True)
    selected = tag("span", "", class_="note", id="selected")
    return tag("form", selected, clear, button, action="/compare", id="compare-form")


def _pager(num: int, page: int, num_pages: int, query: ListQuery) -> Markup:
    def link(text: str, to: int) -> Child:
        if not 1 <= to <= num_pages:
            return None
        return tag("a", text, href=query.address(page=to))

    counted = wording.counted(num, "run")
    if num_pages > 1:
        counted = f"{counted}, page {page} of {num_pages}"
    return tag(
        "p",
        tag("span", counted),
        link("previous", page - 1),
        link("next", page + 1),
        class_="pager note",
        id="pager",
        data_live=True,
    )
