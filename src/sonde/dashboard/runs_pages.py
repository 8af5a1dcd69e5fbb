"""The pages about several runs: the list (search, sort, select), and a comparison of curves and settings.

A metric is compared over steps, tokens or time. Every stretch of about a pixel contributes its minimum and maximum, so
no peak is lost. Tokens are the sum of the recorded update weights, or a logged count. Times come from a few hundred log
records spread over the file, because the records in between differ little. What a run does not record is reported and
never guessed.
"""

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode

import numpy as np

from sonde.dashboard.folder import OpenRun, Row, RunFolder
from sonde.dashboard.frame import crumbs, document, here, run_address
from sonde.errors import RunError, SettingError
from sonde.log.backend import LOG
from sonde.log.lines import LogRecord, parse_log_line
from sonde.records import layout
from sonde.records.columns import Floats
from sonde.records.files import open_regular
from sonde.records.layout import RunLayout
from sonde.records.values import step_numbers
from sonde.report import wording
from sonde.report.curve import Curve, line, panel, smoothed, thin
from sonde.report.html.markup import Child, Markup, bar, note, section, table, tag
from sonde.report.html.sections import state
from sonde.report.run_curves import CURVES, RunCurves, Stretch

PAGE_ROWS: Final = 100
_SORTS: Final[dict[str, Callable[[Row], Any]]] = {
    "changed": lambda row: -row.changed,
    "name": lambda row: row.name.lower(),
    "status": lambda row: (row.summary.status, -row.changed),
    "created": lambda row: -(row.summary.manifest.created if row.summary.manifest else 0.0),
    "step": lambda row: -(row.step if row.step is not None else -1),
    "loss": lambda row: (row.loss is None or row.loss != row.loss, row.loss or 0.0),
}
_AXES: Final = ("step", "tokens", "seconds")
_SMOOTHING: Final = (("0", "none"), ("0.5", "a little"), ("2", "some"), ("8", "much"))
_TOKENS: Final = ("tokens", "train.tokens", "num_tokens", "tokens_seen", "train.num_tokens")
_NUM_TIMES: Final = 400
_MAX_LINE: Final = 1 << 16
_NUM_COLOURS: Final = 10
_MAX_SETTINGS: Final = 400
_MAX_VALUE: Final = 80


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


def compare_page(rows: Sequence[Row], metrics: Sequence[str], told: Mapping[str, str], unknown: Sequence[str]) -> str:
    """Render the comparison. `told` holds the metric, axis and smoothing from the URL."""
    controls = [
        _choice("metric", "", [(one, one) for one in metrics], told),
        _choice("x", "over ", [(one, one) for one in _AXES], told),
        _choice("smooth", "smoothed ", _SMOOTHING, told),
    ]
    title = f"{len(rows)} runs compared"
    curves = tag("div", note("Reading the curves …", "none"), id="curves", data_compare=True)
    missing = tag("p", "", class_="note", id="missing")
    shown = tag("section", tag("div", controls, class_="pickers"), curves, missing, aria_label="curves")
    settings = section("Settings", _settings(rows), id="settings-compared")
    head = tag("header", crumbs(here("compare")), tag("h1", title))
    unfound = note(f"Not found: {', '.join(unknown)}" if unknown else "")
    return document(title, head, unfound, shown, section("Runs", _legend(rows)), settings)


def _choice(name: str, text: str, options: Sequence[tuple[str, str]], told: Mapping[str, str]) -> Markup:
    chosen = told.get(name) or options[0][0] if options else ""
    made = [tag("option", label, value=value, selected=value == chosen) for value, label in options]
    return tag("label", text, tag("select", made, id=name, data_state=name, aria_label=name))


def _legend(rows: Sequence[Row]) -> Markup:
    lines: list[list[Child]] = []
    for place, row in enumerate(rows):
        key = tag("span", "", class_=f"key c{place % _NUM_COLOURS}")
        link = tag("a", row.name, href=run_address(row.name))
        lines.append([key, link, state(row.summary.status), row.step, row.loss])
    return table(("", "run", "status", "step", "loss"), lines, right=("step", "loss"), class_="narrow")


def _values(row: Row) -> dict[str, str]:
    manifest = row.summary.manifest
    if manifest is None:
        return {}
    groups: dict[str, Any] = {"": manifest.settings, "seed.": manifest.seeds, "version.": manifest.versions}
    found = {f"{prefix}{name}": text for prefix, value in groups.items() for name, text in wording.setting_rows(value)}
    return {**found, "ranks": str(manifest.world_size)}


def _settings(runs: Sequence[Row]) -> Markup:
    values = [_values(row) for row in runs]
    known = list(dict.fromkeys(name for one in values for name in one))[:_MAX_SETTINGS]
    differing = [name for name in known if len({one.get(name) for one in values}) > 1]
    same = [name for name in known if name not in differing]

    def rows(chosen: Sequence[str]) -> list[list[Child]]:
        return [[tag("code", name), *(_value(one.get(name)) for one in values)] for name in chosen]

    told = f"{len(differing)} of {len(known)} differ." if differing else "All of them are the same."
    alike = [[tag("code", name), _value(values[0].get(name))] for name in same] if values else []
    summary = tag("summary", f"{len(same)} that are the same")
    rest = tag("details", summary, table(("setting", "all runs"), alike)) if same else None
    listed = table(("setting", *(row.name for row in runs)), rows(differing), class_="settings") if differing else None
    return tag("div", note(told), listed, rest)


def _value(text: str | None) -> Child:
    if text is None:
        return tag("span", "–", class_="note")
    short = wording.shortened(text, _MAX_VALUE)
    return short if short == text else tag("span", short, title=text)


def compared_data(
    folder: RunFolder, names: Sequence[str], stretch: Stretch, *, metric: str, axis: str, smooth: float
) -> dict[str, Any]:
    """Return what curve.js draws of several runs, and what each of them lacks.

    With `smooth` > 0, curves are smoothed over that percentage of their length, with the raw curve behind.
    """
    if axis not in _AXES:
        raise SettingError(f"x is one of {', '.join(_AXES)}, not {axis!r}")
    lines, ends, missing = [], [], []
    for place, name in enumerate(names):
        try:
            with folder.open(name) as run:
                curve = _compared(run, metric, axis)
        except SettingError as error:
            missing.append(f"{name} {error.message}")
            continue
        except (RunError, OSError) as error:
            missing.append(f"{name} cannot be read: {error}")
            continue
        first, last = float(curve.steps[0]), float(curve.steps[-1])
        ends += [first, last]
        drawn = [("", "raw", curve), (name, "line", smoothed(curve, (last - first) * smooth / 100))]
        for label, kind, one in drawn if smooth > 0 else [(name, "line", curve)]:
            lines.append(line(label, f"{kind} c{place % _NUM_COLOURS}", thin(stretch.of(one), stretch.points)))
    whole = [min(ends), max(ends)] if ends else None
    panels = [panel(metric, lines, 420, None)]
    return {"panels": panels, "events": [], "axis": axis, "whole": whole, "missing": missing}


def _compared(run: OpenRun, metric: str, axis: str) -> Curve:
    """Return the finite values of a metric over an axis; raise SettingError if the run lacks one of them."""
    curves = run.curves()
    found = curves.first_of(CURVES.get(metric, (metric,)))
    if found is None or not len(curve := found.finite()):
        raise SettingError(f"has no {metric}")
    if axis == "step":
        return curve
    known = _tokens(curves) if axis == "tokens" else _times(run.path)
    if known is None or len(known[0]) < 2:
        raise SettingError(f"does not say its {axis}")
    at = np.interp(curve.steps, *known)
    return Curve(name=curve.name, steps=at.astype(np.int64) if axis == "tokens" else at, values=curve.values)  # type: ignore[arg-type]  # seconds are floats, which is fine here


def _tokens(curves: RunCurves) -> tuple[Floats, Floats] | None:
    if "weight" in curves.updates.filled:
        weights = np.nan_to_num(curves.updates.columns["weight"], posinf=0.0, neginf=0.0)
        return curves.updates.steps.astype(np.float64), np.cumsum(weights)
    logged = curves.first_of(_TOKENS)
    if logged is None or not len(logged.finite()):
        return None
    finite = logged.finite()
    return finite.steps.astype(np.float64), np.maximum.accumulate(finite.values)


def _times(run: Path) -> tuple[Floats, Floats] | None:
    try:
        with open_regular(RunLayout(run).record_file(layout.LOG, 0)) as file:
            size = os.fstat(file.fileno()).st_size
            found: list[tuple[int, float]] = []
            for offset in np.linspace(0, max(size - 1, 0), _NUM_TIMES).astype(np.int64).tolist():
                file.seek(offset)
                if offset:
                    file.readline(_MAX_LINE)
                seen = _step_and_time(file.readline(_MAX_LINE))
                if seen is None:
                    continue
                while found and found[-1][0] >= seen[0]:  # repeated after a restart, or already read
                    found.pop()
                found.append(seen)
    except OSError:
        return None
    if not found:
        return None
    numbers = np.array(found, np.float64)
    return numbers[:, 0], np.maximum.accumulate(numbers[:, 1] - numbers[0, 1])


def _step_and_time(line: bytes) -> tuple[int, float] | None:
    try:
        record = parse_log_line(line.strip(), rank=0)
    except ValueError:
        return None
    if not isinstance(record, LogRecord) or record.type != LOG or not record.timestamp:
        return None
    numbers = step_numbers(record.step) or ()
    return (numbers[min(1, len(numbers) - 1)], float(record.timestamp)) if numbers else None
