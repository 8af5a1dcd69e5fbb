"""The sections of a report about the run itself, which the pages of the dashboard show too: name,
status, figures, healing, time, checkpoints, settings. Verdicts and events have their own files.
"""

import shlex
from collections.abc import Mapping

from sonde.records.manifest import RUNNING, Manifest
from sonde.report import wording
from sonde.report.facts import RunFacts
from sonde.report.html.markup import (
    Child,
    Markup,
    bar,
    group,
    moment,
    pairs,
    section,
    table,
    tag,
)
from sonde.report.run_curves import LOSS, SPEED, VALIDATION_LOSS

GOOD: tuple[str, ...] = ("finished", RUNNING)
"""The states of a run in which nothing is wrong."""
BAD: tuple[str, ...] = ("failed", "killed", "damaged")
"""The states of a run that ended badly, or cannot be read."""


def head(facts: RunFacts) -> Markup:
    """Render the run's name, its status, and when, where and how it was run."""
    manifest = facts.manifest
    kicker = tag("p", "sonde report", class_="kicker")
    status = tag("p", _state(facts), class_="state")
    about = pairs(origin(facts, manifest)) if manifest is not None else None
    return tag("header", kicker, tag("h1", facts.directory.name), status, about, figures(facts))


def title(facts: RunFacts) -> Markup:
    """Render the name, the status and the key figures of a run: the head of a notebook's cell."""
    status = tag("p", _state(facts), class_="state")
    return tag("header", tag("h1", facts.directory.name), status, figures(facts))


def notices(facts: RunFacts) -> Markup | None:
    """Render the list of what could not be read."""
    if not facts.problems:
        return None
    listed = tag("ul", [tag("li", problem) for problem in facts.problems])
    return section("Not everything could be read", listed, class_="notice", id="notices")


def healing(facts: RunFacts) -> Markup | None:
    """Render what the run did to heal itself."""
    if not facts.healing:
        return None
    chapters = [tag("li", tag("b", first), " ", " ".join(rest)) for first, *rest in facts.healing]
    return section("How the run recovered", tag("ul", chapters), id="healing")


def speed(facts: RunFacts) -> Markup | None:
    """Render where the time of an update went, if that was logged. Speed over the steps is one of
    the curves.
    """
    total = sum(facts.phases.values())
    if not total > 0:
        return None
    rows: list[list[Child]] = []
    for phase, seconds in facts.phases.items():
        share = seconds / total
        rows.append([phase, wording.duration(seconds), wording.percent(share), bar(share)])
    rows.append([tag("b", "a step"), wording.duration(total), None, None])
    numbers = table(("", "mean", "share", ""), rows, right=("mean", "share"), class_="narrow")
    return section("Time", numbers, id="time")


def checkpoints(facts: RunFacts, states: Mapping[int, Child] | None = None) -> Markup | None:
    """Render the checkpoints with their states, and the skipped samples."""
    rows: list[list[Child]] = []
    for checkpoint in reversed(facts.checkpoints):
        metrics = (
            f"{name} {wording.number(value)}"
            for name, value in checkpoint.about.metrics.items()
            if name != "weight"
        )
        bad = None
        if checkpoint.about.distrusted:
            bad = tag("span", f"distrusted: {checkpoint.about.distrusted}", class_="bad")
        known = bad or (states or {}).get(checkpoint.step)
        rows.append(
            [checkpoint.step, wording.size(checkpoint.num_bytes), ", ".join(metrics), known]
        )
    columns = ("after steps", "size", "evaluation before it", "state")
    listed = table(columns, rows, right=columns[:2], class_="narrow events")
    shown: list[Child] = []
    if rows:
        shown.append(section("Checkpoints", listed, id="checkpoints"))
    if facts.skip_list:
        skipped = tag("pre", facts.skip_list, tabindex="0")
        shown.append(section("Samples left out", skipped, id="skipped"))
    return tag("div", shown) if shown else None


def settings(facts: RunFacts) -> Markup | None:
    """Render settings, versions, machine and data."""
    shown = []
    for name in ("settings", "versions", "host", "seeds", "git", "data", "other"):
        found = wording.setting_rows(getattr(facts.manifest, name, None))
        rows = [(key, wording.shortened(text, 2000)) for key, text in found if text != "null"]
        if rows:
            shown.append(tag("div", tag("h3", name.capitalize()), pairs(rows)))
    return section("Settings and versions", shown, id="settings") if shown else None


def _state(facts: RunFacts) -> Markup:
    num_damaged = sum(facts.series.num_bad.values())
    return state(facts.status, facts.manifest, num_damaged=num_damaged)


def state(status: str, manifest: Manifest | None = None, *, num_damaged: int = 0) -> Markup:
    """Render the status of a run, its reason, and how many of its lines cannot be read."""
    tone = "calm"
    if status in GOOD:
        tone = "good"
    if status in BAD or num_damaged:
        tone = "bad"
    reason = None
    if manifest is not None and manifest.reason:
        reason = tag("span", manifest.reason, class_="reason")
    damage = None
    if num_damaged:
        damage = tag("span", wording.counted(num_damaged, "damaged line"), class_="bad")
    return group([tag("span", status, class_=f"status {tone}"), damage, reason])


def origin(facts: RunFacts, manifest: Manifest) -> list[tuple[str, Child]]:
    """Return when, where and how the run was run, as names and values."""
    about = wording.about_run(manifest)
    began = about["began"].removeprefix(wording.moment(manifest.created))
    values: dict[str, Child] = {
        **about,
        "began": [moment(manifest.created), began],
        "directory": tag("code", str(facts.directory)),
    }
    # Each word in its own element, so that lines break between words and not after an option's
    # dashes.
    words = [[tag("span", shlex.quote(str(word)), class_="word"), " "] for word in manifest.command]
    return [*{**values, "command": tag("code", words) if words else None}.items()]


def figures(facts: RunFacts) -> Markup:
    """Render the key figures of a run."""
    loss, validation, speed = map(facts.curves.get, (LOSS, VALIDATION_LOSS, SPEED))
    num_skipped = facts.series.updates.num_skipped
    found: list[tuple[str, float | None, str]]
    found = [("last step", facts.last_step, f"{num_skipped:,} skipped" if num_skipped else "")]
    if loss is not None and len(loss):
        found.append(
            ("loss", float(loss.values[-1]), f"from {wording.number(float(loss.values[0]))}")
        )
    if validation is not None and len(curve := validation.finite()):
        best = int(curve.values.argmin())
        found.append(
            ("best validation loss", float(curve.values[best]), f"step {curve.steps[best]:,}")
        )
    found.append(("events", len(facts.events), ""))
    if speed is not None and len(curve := speed.finite()):
        found.append(("tokens/s", round(curve.values.mean()), "mean"))
    shown = [
        tag(
            "div",
            tag("span", name, class_="name"),
            tag("b", wording.number(value)),
            tag("span", note, class_="note"),
        )
        for name, value, note in found
        if value is not None
    ]
    return tag("div", shown, class_="figures")
