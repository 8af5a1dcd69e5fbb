"""What the run was: its head, its figures, its speed, its checkpoints, its settings."""

import shlex
from collections.abc import Mapping

from sonde.records.manifest import RUNNING, Manifest
from sonde.report import wording
from sonde.report.facts import HEALING, RunFacts
from sonde.report.html.markup import Child, Markup, pairs, table, tag


def head(facts: RunFacts) -> Markup:
    """The run's name, how it stands, and when, where and how it was run."""
    manifest = facts.manifest
    status = [tag("span", facts.status, class_=f"status {tone(facts.status)}")]
    if manifest is not None and manifest.reason:
        status.append(tag("span", manifest.reason, class_="reason"))
    return tag(
        "header",
        tag("p", "sonde report", class_="kicker"),
        tag("h1", facts.name),
        tag("p", status, class_="state"),
        pairs(origin(facts, manifest)) if manifest is not None else None,
        figures(facts),
    )


def notices(facts: RunFacts) -> Markup | None:
    """What could not be read."""
    if not facts.problems:
        return None
    return tag(
        "section",
        tag("h2", "Not everything could be read"),
        tag("ul", [tag("li", problem) for problem in facts.problems]),
        class_="notice",
        id="notices",
    )


def healing(facts: RunFacts) -> Markup | None:
    """What the run did about itself."""
    if not facts.healing:
        return None
    chapters = [tag("li", tag("b", first), " ", " ".join(rest)) for first, *rest in facts.healing]
    return tag("section", tag("h2", HEALING), tag("ul", chapters), id="healing")


def speed(facts: RunFacts) -> Markup:
    """What an update's time went into. How fast it was over the steps is one of the curves."""
    total = sum(facts.phases.values())
    if not total > 0:
        return tag("section", tag("h2", "Time"), tag("p", "No times were logged.", class_="none"), id="time")
    rows, shapes, start = [], [], 0.0
    for place, (phase, seconds) in enumerate(facts.phases.items()):
        width = 100 * seconds / total
        shapes.append(tag("rect", class_=f"phase{place}", x=f"{start:.2f}", width=f"{width:.2f}", height="10"))
        start += width
        key = tag(
            "svg", tag("rect", class_=f"phase{place}", width="10", height="10"), class_="key", viewBox="0 0 10 10"
        )
        rows.append([[key, phase], wording.duration(seconds), wording.percent(seconds / total)])
    rows.append([tag("b", "an update"), wording.duration(total), ""])
    picture = tag("svg", shapes, class_="phases", viewBox="0 0 100 10", preserveAspectRatio="none", aria_hidden="true")
    numbers = table(("", "mean", "share"), rows, right=("mean", "share"), class_="narrow")
    return tag("section", tag("h2", "Time"), picture, numbers, id="time")


def checkpoints(facts: RunFacts, states: Mapping[int, Child] | None = None) -> Markup | None:
    """The checkpoints, each with its state, and the samples that are left out."""
    rows: list[list[Child]] = [
        [
            wording.number(one.step),
            wording.size(one.num_bytes),
            ", ".join(f"{name} {wording.number(value)}" for name, value in one.metrics.items() if name != "weight"),
            tag("span", f"distrusted: {one.distrusted}", class_="bad")
            if one.distrusted
            else (states or {}).get(one.step),
        ]
        for one in reversed(facts.checkpoints)
    ]
    columns = ("after updates", "size", "evaluation before it", "state")
    listed = table(columns, rows, right=columns[:2], class_="narrow events")
    left_out = tag("section", tag("h2", "Samples left out"), tag("pre", facts.skip_list), id="skipped")
    shown = [tag("section", tag("h2", "Checkpoints"), listed, id="checkpoints")] * bool(rows)
    shown += [left_out] * bool(facts.skip_list)
    return tag("div", shown) if shown else None


def settings(facts: RunFacts) -> Markup | None:
    """Settings, versions, machine and data."""
    groups = [(title, wording.setting_rows(values)) for title, values in facts.manifest_groups().items()]
    shown = [
        tag("div", tag("h3", title), pairs((name, wording.shortened(text, 2000)) for name, text in rows))
        for title, rows in groups
        if rows
    ]
    return tag("section", tag("h2", "Settings and versions"), shown, id="settings") if shown else None


def tone(status: str) -> str:
    """How a status is coloured."""
    if status in ("finished", RUNNING):
        return "good"
    return "bad" if status in ("failed", "killed", "damaged") else "calm"


def origin(facts: RunFacts, manifest: Manifest) -> list[tuple[str, Child]]:
    """When, where and how it was run."""
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
    """Each word in a box of its own, so that lines break between words and not after the dashes of an option."""
    boxes = [[tag("span", shlex.quote(str(word)), class_="word"), " "] for word in words]
    return tag("code", boxes)


def figures(facts: RunFacts) -> Markup:
    """Its few great numbers."""
    found: list[tuple[str, str, str]] = []
    if facts.last_step is not None:
        skipped = f"{facts.num_skipped:,} skipped" if facts.num_skipped else ""
        found.append(("updates", wording.number(facts.last_step), skipped))
    if facts.loss is not None and len(facts.loss):
        first = wording.number(float(facts.loss.values[0]))
        found.append(("loss", wording.number(float(facts.loss.values[-1])), f"from {first}"))
    if facts.validation_loss is not None and len(facts.validation_loss.finite()):
        curve = facts.validation_loss.finite()
        best = int(curve.values.argmin())
        found.append(("best validation loss", wording.number(float(curve.values[best])), f"step {curve.steps[best]:,}"))
    found.append(("events", wording.number(len(facts.events)), ""))
    if facts.speed is not None and len(facts.speed.finite()):
        values = facts.speed.finite().values
        found.append(("tokens/s", f"{values.mean():,.0f}", "mean"))
    return tag(
        "div",
        [
            tag("div", tag("span", name, class_="name"), tag("b", value), tag("span", note, class_="note"))
            for name, value, note in found
        ],
        class_="figures",
    )
