"""Several runs compared: any metrics over steps, tokens or time, and their settings.

Every stretch of about a pixel contributes its minimum and maximum, so no peak is lost. What a run
does not record is reported and never guessed. Lines have a number for their colour: one for each
run, or one for each value of a setting.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sonde.dashboard.folder import ListedRun, RunFolder
from sonde.dashboard.frame import choice, crumbs, document, here, run_address
from sonde.dashboard.run_filter import as_float, settings_of
from sonde.errors import RunError, SettingError
from sonde.report import wording
from sonde.report.axes import AXES, open_axis
from sonde.report.curve import Curve, Line, breaks, line, panel, smoothed, thin
from sonde.report.html.markup import Child, Markup, note, section, table, tag
from sonde.report.html.sections import state
from sonde.report.panels import View

SMOOTHING: Final = (("0", "none"), ("0.5", "a little"), ("2", "some"), ("8", "much"))
_MAX_SETTINGS: Final = 400
_MAX_VALUE: Final = 80
_MAX_NAME: Final = 48
_HEIGHT: Final = 420
_HEIGHT_OF_MANY: Final = 240


def compare_page(
    rows: Sequence[ListedRun],
    metrics: Sequence[str],
    query: Mapping[str, str],
    unknown: Sequence[str],
) -> str:
    """Render the comparison. `query` holds axis, smoothing and colouring from the URL."""
    known = [tag("option", "", value=name) for name in metrics]
    add = [
        tag("input", type="text", id="metric", list="metrics", placeholder="add a metric"),
        tag("datalist", known, id="metrics"),
        tag("span", "", id="chosen"),
    ]
    differing = _differing([settings_of(row) for row in rows])
    colours = [("", "run"), *((name, name) for name in differing[:_MAX_SETTINGS])]
    controls = [
        tag("span", add),
        *view_controls(query),
        choice("colour", "colour by ", colours, query.get("colour", ""), data_state="colour"),
    ]
    title = f"{len(rows)} runs compared"
    curves = tag("div", note("Reading the curves …", "none"), id="curves", data_compare=True)
    missing = tag("p", "", class_="note", id="missing")
    shown = tag(
        "section", tag("div", controls, class_="pickers"), curves, missing, aria_label="curves"
    )
    head = tag("header", crumbs(here("compare")), tag("h1", title))
    unfound = note(f"Not found: {', '.join(unknown)}" if unknown else "")
    legend = section("Runs", _legend(rows), id="legend", data_live=True)
    compared = section("Settings", _settings(rows), id="settings-compared")
    return document(title, head, unfound, shown, legend, compared)


def _differing(settings_of_runs: Sequence[Mapping[str, str]]) -> list[str]:
    """Return the settings that are not the same in all runs, in order of first appearance."""
    names = dict.fromkeys(name for settings in settings_of_runs for name in settings)
    differing = []
    for name in names:
        values = {settings.get(name) for settings in settings_of_runs}
        if len(values) > 1:
            differing.append(name)
    return differing


def view_controls(query: Mapping[str, str]) -> list[Markup]:
    """Return the choice of axis and of smoothing."""
    axes = [(axis, "time" if axis == "seconds" else axis) for axis in AXES]
    return [
        choice("x", "over ", axes, query.get("x", "step"), data_state="x"),
        choice("smooth", "smoothed ", SMOOTHING, query.get("smooth", "0"), data_state="smooth"),
    ]


def _legend(rows: Sequence[ListedRun]) -> Markup:
    """Return the runs; the script colours their keys, and hides a run when its key is clicked."""
    lines: list[list[Child]] = []
    for row in rows:
        key = tag(
            "button",
            "",
            class_="key",
            type="button",
            data_toggle=row.name,
            aria_pressed="true",
            aria_label=f"show {row.name}",
        )
        short = wording.middle(row.name, _MAX_NAME)
        link = tag("a", short, href=run_address(row.name), title=row.name)
        value = tag("b", "", data_value=row.name)
        lines.append([key, link, state(row.summary.status), row.step, row.loss, value])
    columns = ("", "run", "status", "step", "loss", "under the pointer")
    return table(columns, lines, right=columns[3:], class_="narrow legend-table")


def _values(row: ListedRun) -> dict[str, str]:
    manifest = row.summary.manifest
    if manifest is None:
        return {}
    groups: dict[str, Any] = {
        "": manifest.settings,
        "seed.": manifest.seeds,
        "version.": manifest.versions,
    }
    found = {
        f"{prefix}{name}": text
        for prefix, value in groups.items()
        for name, text in wording.setting_rows(value)
    }
    return {**found, "ranks": str(manifest.world_size)}


def _settings(runs: Sequence[ListedRun]) -> Markup:
    values = [_values(row) for row in runs]
    known = list(dict.fromkeys(name for value in values for name in value))[:_MAX_SETTINGS]
    differing = [name for name in _differing(values) if name in known]
    same = [name for name in known if name not in differing]

    def rows(chosen: Sequence[str]) -> list[list[Child]]:
        return [
            [tag("code", name), *(_value(value.get(name)) for value in values)] for name in chosen
        ]

    sentence = "All of them are the same."
    if differing:
        sentence = f"{len(differing)} of {len(known)} differ."
    rest = None
    if same:
        alike = [[tag("code", name), _value(values[0].get(name))] for name in same]
        summary = tag("summary", f"{len(same)} that are the same")
        rest = tag("details", summary, table(("setting", "all runs"), alike))
    listed = None
    if differing:
        names = [wording.middle(row.name, 24) for row in runs]
        listed = table(("setting", *names), rows(differing), class_="settings")
    return tag("div", note(sentence), listed, rest)


def _value(text: str | None) -> Child:
    if text is None:
        return tag("span", "–", class_="note")
    short = wording.shortened(text, _MAX_VALUE)
    return short if short == text else tag("span", short, title=text)


def compared_data(
    folder: RunFolder, names: Sequence[str], view: View, metrics: Sequence[str], colour: str = ""
) -> dict[str, Any]:
    """Return what curve.js draws of several runs, and what each of them lacks.

    With `colour`, runs in which this setting has the same value have the same colour.
    """
    if view.axis not in AXES:
        raise SettingError(f"x is one of {', '.join(AXES)}, not {view.axis!r:.50}")
    colours, legend = _colours(folder, names, colour)
    lines: dict[str, list[Line]] = {metric: [] for metric in metrics}
    ends: list[float] = []
    missing = []
    for name in names:
        for metric in metrics:
            try:
                curve = _compared(folder, name, metric, view.axis)
            except SettingError as error:
                missing.append(f"{name} {error.message}")
                continue
            except (RunError, OSError) as error:
                missing.append(f"{name} cannot be read: {error}")
                break
            ends += [float(curve.steps[0]), float(curve.steps[-1])]
            lines[metric] += _drawn(name, curve, view, colours[name])
    height = _HEIGHT if len(metrics) == 1 else _HEIGHT_OF_MANY
    return {
        "panels": [panel(metric, metric, lines[metric], height, None) for metric in metrics],
        "events": [],
        "axis": view.axis,
        "whole": [min(ends), max(ends)] if ends else None,
        "missing": missing,
        "num_colours": len(set(colours.values())),
        "legend": legend,
    }


def _colours(
    folder: RunFolder, names: Sequence[str], setting: str
) -> tuple[dict[str, int], dict[str, int]]:
    """Return the number of every run's colour, and what the colours of a setting stand for."""
    if not setting:
        return {name: place for place, name in enumerate(names)}, {}
    known = folder.runs()
    values = {
        name: settings_of(folder.row(name, known[name])).get(setting, "not set") for name in names
    }

    def rank(value: str) -> tuple[bool, float, str]:
        number = as_float(value)
        return number is None, number or 0.0, value

    ordered = sorted(set(values.values()), key=rank)
    legend = {f"{setting} = {value}": place for place, value in enumerate(ordered)}
    return {name: ordered.index(value) for name, value in values.items()}, legend


def _drawn(name: str, curve: Curve, view: View, colour: int) -> list[Line]:
    broken_at = breaks(curve)
    stretch = view.stretch
    drawn = [(name, "line", curve)]
    if view.smooth > 0:
        width = float(curve.steps[-1] - curve.steps[0]) * view.smooth / 100
        drawn = [(name, "raw", curve), (name, "line", smoothed(curve, width))]
    made = []
    for label, kind, drawn_curve in drawn:
        seen = thin(stretch.of(drawn_curve), stretch.points)
        made.append({**line(label, kind, seen, broken_at), "colour": colour})
    return made


def _compared(folder: RunFolder, name: str, metric: str, axis: str) -> Curve:
    """Return the finite values of a metric over an axis; raise SettingError if the run lacks one of
    them.
    """
    with folder.open(name) as run:
        curves = run.curves()
        found = run.find(metric)
        if found is None or not len(found.finite()):
            raise SettingError(f"has no {metric}")
        return open_axis(axis, curves, run.path).of(found)
