"""Several runs beside one another: one metric over one axis, and their settings, differences first."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from sonde.dashboard.curve_data import AXES, NUM_COLOURS
from sonde.dashboard.folder import Row
from sonde.dashboard.frame import crumbs, document, run_address
from sonde.report import wording
from sonde.report.html.markup import Child, Markup, table, tag
from sonde.report.html.overview import tone

_SMOOTHING: Final = (("0", "none"), ("0.5", "a little"), ("2", "some"), ("8", "much"))
_MAX_SETTINGS: Final = 400
_MAX_VALUE: Final = 80
_LONG_NUMBER: Final = 10


def compare_page(rows: Sequence[Row], metrics: Sequence[str], state: Mapping[str, str], unknown: Sequence[str]) -> str:
    """The page. `state` is what the address says of metric, axis and smoothing."""
    names = short_names([row.name for row in rows])
    controls = [
        _choice("metric", "", [(one, one) for one in metrics], state),
        _choice("x", "over ", [(one, one) for one in AXES], state),
        _choice("smooth", "smoothed ", _SMOOTHING, state),
    ]
    return document(
        f"{len(rows)} runs compared",
        tag("header", crumbs(here="compare"), tag("h1", f"{len(rows)} runs compared")),
        tag("p", f"Not found: {', '.join(unknown)}", class_="note") if unknown else None,
        tag(
            "section",
            tag("div", controls, class_="pickers"),
            tag("div", tag("p", "Reading the curves …", class_="none"), id="curves", data_compare=True),
            tag("p", "", class_="note", id="missing"),
            aria_label="curves",
        ),
        tag("section", tag("h2", "Runs"), _legend(rows, names)),
        tag("section", tag("h2", "Settings"), _settings(names, [_values(row) for row in rows]), id="settings-compared"),
    )


def short_names(names: Sequence[str]) -> list[str]:
    """The names without the folder that they share."""
    folders = [name.split("/")[:-1] for name in names]
    shared = 0
    while folders and all(len(one) > shared and one[shared] == folders[0][shared] for one in folders):
        shared += 1
    return ["/".join(name.split("/")[shared:]) for name in names]


def _choice(name: str, text: str, options: Sequence[tuple[str, str]], state: Mapping[str, str]) -> Markup:
    chosen = state.get(name) or options[0][0] if options else ""
    made = [tag("option", label, value=value, selected=value == chosen) for value, label in options]
    return tag("label", text, tag("select", made, id=name, data_state=name, aria_label=name))


def _legend(rows: Sequence[Row], names: Sequence[str]) -> Markup:
    lines: list[list[Child]] = [
        [
            tag("span", "", class_=f"key c{place % NUM_COLOURS}"),
            tag("a", name, href=run_address(row.name)),
            tag("span", row.summary.status, class_=f"status {tone(row.summary.status)}"),
            wording.number(row.step),
            wording.number(row.loss),
        ]
        for place, (row, name) in enumerate(zip(rows, names, strict=True))
    ]
    return table(("", "run", "status", "step", "loss"), lines, right=("step", "loss"), class_="narrow")


def _values(row: Row) -> dict[str, str]:
    manifest = row.summary.manifest
    if manifest is None:
        return {}
    groups: dict[str, Any] = {"": manifest.settings, "seed.": manifest.seeds, "version.": manifest.versions}
    found = {f"{prefix}{name}": text for prefix, value in groups.items() for name, text in wording.setting_rows(value)}
    return {**found, "ranks": str(manifest.world_size)}


def _settings(names: Sequence[str], values: Sequence[dict[str, str]]) -> Markup:
    known = list(dict.fromkeys(name for one in values for name in one))[:_MAX_SETTINGS]
    differing = [name for name in known if len({one.get(name) for one in values}) > 1]
    same = [name for name in known if name not in differing]

    def rows(chosen: Sequence[str]) -> list[list[Child]]:
        return [[tag("code", name), *(_value(one.get(name)) for one in values)] for name in chosen]

    told = f"{len(differing)} of {len(known)} differ." if differing else "All of them are the same."
    alike = [[tag("code", name), _value(values[0].get(name))] for name in same] if values else []
    return tag(
        "div",
        tag("p", told, class_="note"),
        table(("setting", *names), rows(differing), class_="settings") if differing else None,
        tag("details", tag("summary", f"{len(same)} that are the same"), table(("setting", "all runs"), alike))
        if same
        else None,
    )


def _value(text: str | None) -> Child:
    if text is None:
        return tag("span", "–", class_="note")
    try:
        short = f"{float(text):.6g}" if len(text) > _LONG_NUMBER else text
    except ValueError:
        short = wording.shortened(text, _MAX_VALUE)
    return short if short == text else tag("span", short, title=text)
