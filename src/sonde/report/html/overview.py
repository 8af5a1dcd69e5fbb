"""The overview of a run: header, key figures, time, checkpoints and settings."""

import shlex
from collections.abc import Mapping

from sonde.records.manifest import RUNNING, Manifest
from sonde.report import wording
from sonde.report.facts import LOSS, SPEED, VALIDATION_LOSS, RunFacts
from sonde.report.html.markup import Child, Markup, group, note, pairs, picture, section, table, tag


def head(facts: RunFacts) -> Markup:
    """Render the run's name, its status, and when, where and how it was run."""
    manifest, kicker = facts.manifest, tag("p", "sonde report", class_="kicker")
    status = tag("p", state(facts.status, manifest), class_="state")
    about = pairs(origin(facts, manifest)) if manifest is not None else None
    return tag("header", kicker, tag("h1", facts.name), status, about, figures(facts))


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
    return section("How the run was mended", tag("ul", chapters), id="healing")


def speed(facts: RunFacts) -> Markup:
    """Render where the time of an update went. Speed over the steps is one of the curves."""
    total = sum(facts.phases.values())
    if not total > 0:
        return section("Time", note("No times were logged.", "none"), id="time")
    rows, shapes, start = [], [], 0.0
    for place, (phase, seconds) in enumerate(facts.phases.items()):
        width = 100 * seconds / total
        shapes.append(tag("rect", class_=f"phase{place}", x=f"{start:.2f}", width=f"{width:.2f}", height="10"))
        start += width
        square = tag("rect", class_=f"phase{place}", width="10", height="10")
        key = tag("svg", square, class_="key", viewBox="0 0 10 10")
        rows.append([[key, phase], wording.duration(seconds), wording.percent(seconds / total)])
    rows.append([tag("b", "an update"), wording.duration(total), ""])
    numbers = table(("", "mean", "share"), rows, right=("mean", "share"), class_="narrow")
    return section("Time", picture(shapes, "phases", "0 0 100 10"), numbers, id="time")


def checkpoints(facts: RunFacts, states: Mapping[int, Child] | None = None) -> Markup | None:
    """Render the checkpoints with their states, and the skipped samples."""
    rows: list[list[Child]] = []
    for one in reversed(facts.checkpoints):
        metrics = (f"{name} {wording.number(value)}" for name, value in one.metrics.items() if name != "weight")
        bad = tag("span", f"distrusted: {one.distrusted}", class_="bad") if one.distrusted else None
        known = bad or (states or {}).get(one.step)
        rows.append([one.step, wording.size(one.num_bytes), ", ".join(metrics), known])
    columns = ("after updates", "size", "evaluation before it", "state")
    listed = table(columns, rows, right=columns[:2], class_="narrow events")
    shown = [section("Checkpoints", listed, id="checkpoints")] * bool(rows)
    shown += [section("Samples left out", tag("pre", facts.skip_list), id="skipped")] * bool(facts.skip_list)
    return tag("div", shown) if shown else None


def settings(facts: RunFacts) -> Markup | None:
    """Render settings, versions, machine and data."""
    shown = []
    for title, values in facts.manifest_groups().items():
        rows = [(name, wording.shortened(text, 2000)) for name, text in wording.setting_rows(values)]
        shown += [tag("div", tag("h3", title), pairs(rows))] if rows else []
    return section("Settings and versions", shown, id="settings") if shown else None


def state(status: str, manifest: Manifest | None = None) -> Markup:
    """Render the status of a run and its reason."""
    bad = "bad" if status in ("failed", "killed", "damaged") else "calm"
    tone = "good" if status in ("finished", RUNNING) else bad
    reason = tag("span", manifest.reason, class_="reason") if manifest is not None and manifest.reason else None
    return group([tag("span", status, class_=f"status {tone}"), reason])


def origin(facts: RunFacts, manifest: Manifest) -> list[tuple[str, Child]]:
    """Return when, where and how the run was run, as names and values."""
    ended = f", ended after {wording.duration(manifest.ended - manifest.created)}" if manifest.ended else ""
    starts = f", started {manifest.num_starts} times" if manifest.num_starts > 1 else ""
    ranks = f"{manifest.world_size} {'rank' if manifest.world_size == 1 else 'ranks'}"
    return [
        ("id", manifest.run_id),
        ("began", wording.moment(manifest.created) + ended + starts),
        ("host", ", ".join(part for part in (str(manifest.host.get("name", "")), ranks) if part)),
        ("command", _command(manifest.command) if manifest.command else None),
        ("directory", tag("code", str(facts.directory))),
    ]


def _command(words: list[str]) -> Markup:
    """Wrap each word in its own element, so that lines break between words and not after an option's dashes."""
    boxes = [[tag("span", shlex.quote(str(word)), class_="word"), " "] for word in words]
    return tag("code", boxes)


def figures(facts: RunFacts) -> Markup:
    """Render the key figures of a run."""
    loss, validation, speed = map(facts.curves.get, (LOSS, VALIDATION_LOSS, SPEED))
    found: list[tuple[str, float | None, str]]
    found = [("updates", facts.last_step, f"{facts.num_skipped:,} skipped" if facts.num_skipped else "")]
    if loss is not None and len(loss):
        found.append(("loss", float(loss.values[-1]), f"from {wording.number(float(loss.values[0]))}"))
    if validation is not None and len(curve := validation.finite()):
        best = int(curve.values.argmin())
        found.append(("best validation loss", float(curve.values[best]), f"step {curve.steps[best]:,}"))
    found.append(("events", len(facts.events), ""))
    if speed is not None and len(curve := speed.finite()):
        found.append(("tokens/s", round(curve.values.mean()), "mean"))
    shown = [
        tag("div", tag("span", name, class_="name"), tag("b", wording.number(value)), tag("span", note, class_="note"))
        for name, value, note in found
        if value is not None
    ]
    return tag("div", shown, class_="figures")
