"""Events on runs that nobody here made: do they recur where runs share their data, are calm runs
left alone, and are known spikes found?

    python benchmarks/public_runs.py             prints the tables; exits with 1 if a gate is missed
    python benchmarks/public_runs.py --write     also writes docs/public-runs.md and its picture

The curves are losses from logs in public repositories, in a folder beside the project
(shared/data/public-runs, or what SONDE_PUBLIC_RUNS names); without it, this says so and ends.

What is decided before any event is looked at: runs share an order of data if their residuals
correlate by 0.5 or more (`sonde.curves.together`), copies of one curve count once, the calm runs
are those of every submitter but the one with known spikes, and a known spike is a loss at least a
quarter above the median of the 101 points around it.
"""

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # so that this also runs as a script

from benchmarks.measure import markdown_table
from benchmarks.public_runs_picture import picture

from sonde.curves.judgement import LOSS_KINDS, Finding, judge
from sonde.curves.loss_curves import LossCurve, loss_curve
from sonde.curves.recognise import find_sources
from sonde.curves.together import Group, correlation, groups_of, has_event_at

PROJECT: Final = Path(__file__).resolve().parents[1]
PAGE: Final = PROJECT / "docs" / "public-runs.md"
PICTURE: Final = PROJECT / "docs" / "images" / "public-runs.svg"
SPEED_RUNS: Final = "modded-nanogpt.csv.gz"
SUBMISSIONS: Final = "mlperf-training-5.1.csv.gz"
SPIKED: Final = "Cisco"
"""The submitter whose runs have real spikes."""
MIN_RECURRING: Final = 0.9
MAX_FALSE: Final = 1.0
"""Events per 10,000 points of calm runs."""
_KNOWN: Final = 1.25
_REACH: Final = 50
_NEAR: Final = 8
"""A known spike is found by an event that spans it or begins at most this many points before."""
_CALM_POINTS: Final = 12
_SPEED_RUNS: Final = (
    "Thirty-one runs of a small GPT on FineWeb, with a loss at every step. Runs whose residuals"
    " correlate form a group. The correlations are those of its first run with each of the others."
)


class Run(NamedTuple):
    """One run and what was found in it."""

    name: str
    curve: LossCurve
    findings: list[Finding]

    @property
    def events(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.kind in LOSS_KINDS]


@dataclass(frozen=True, slots=True)
class Recurrence:
    """How many events of the runs that share an order occur in another run too."""

    num_events: int
    num_recurring: int
    num_alone: int
    """Events at steps that no other run of the group reached: they cannot recur."""

    @property
    def share(self) -> float:
        return self.num_recurring / max(self.num_events - self.num_alone, 1)

    @property
    def share_of_all(self) -> float:
        return self.num_recurring / max(self.num_events, 1)


def find_folder() -> Path | None:
    given = os.environ.get("SONDE_PUBLIC_RUNS")
    places = [parent / "shared" / "data" / "public-runs" for parent in PROJECT.parents]
    candidates = [Path(given)] if given else places
    return next((place for place in candidates if (place / SPEED_RUNS).is_file()), None)


def read_runs(path: Path) -> list[Run]:
    runs = []
    for source in find_sources(path):
        curve = loss_curve(source.points)
        assert curve is not None
        runs.append(Run(source.name, curve, judge(curve)))
    return runs


def recurrence(runs: Sequence[Run], groups: Sequence[Group]) -> Recurrence:
    num_events = 0
    num_recurring = 0
    num_alone = 0
    for group in groups:
        if len(group.members) < 2:
            continue
        for place in group.members:
            others = [runs[member] for member in group.members if member != place]
            for event in runs[place].events:
                step = event.first_step
                reached = [other for other in others if other.curve.steps[-1] >= step]
                num_events += 1
                num_alone += not reached
                num_recurring += any(has_event_at(other.findings, step) for other in reached)
    return Recurrence(num_events, num_recurring, num_alone)


def by_chance(runs: Sequence[Run], groups: Sequence[Group]) -> tuple[int, int]:
    """Return the events of runs that share their order with no other, and how many of them fall on
    a step at which any other run has one.
    """
    lonely = [group.members[0] for group in groups if len(group.members) == 1]
    num_events = 0
    num_met = 0
    for place in lonely:
        others = [run.findings for other, run in enumerate(runs) if other != place]
        for event in runs[place].events:
            num_events += 1
            num_met += any(has_event_at(findings, event.first_step) for findings in others)
    return num_events, num_met


def known_spikes(curve: LossCurve) -> list[tuple[int, int]]:
    """Return the first and last step of every spike that anybody would see, by a rule that has
    nothing to do with ours.
    """
    padded = np.pad(curve.values, _REACH, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, 2 * _REACH + 1)
    high = np.flatnonzero(curve.values > _KNOWN * np.median(windows, axis=1))
    # The steep fall at the beginning is no spike.
    high = high[high > 2 * _REACH]
    spikes: list[tuple[int, int]] = []
    for place in high.tolist():
        if spikes and place - spikes[-1][1] <= _CALM_POINTS:
            spikes[-1] = (spikes[-1][0], place)
        else:
            spikes.append((place, place))
    return [(int(curve.steps[first]), int(curve.steps[last])) for first, last in spikes]


def is_found(run: Run, spike: tuple[int, int]) -> bool:
    first, last = spike
    return any(
        event.first_step <= last and event.last_step >= first - _NEAR for event in run.events
    )


def group_rows(runs: Sequence[Run], groups: Sequence[Group]) -> list[list[object]]:
    rows: list[list[object]] = []
    for group in groups:
        curves = [runs[place].curve for place in group.members]
        pairs = [correlation(curves[0], curve) for curve in curves[1:]]
        alike = f"{min(pairs):.2f} to {max(pairs):.2f}" if pairs else ""
        alone = Recurrence(sum(len(runs[place].events) for place in group.members), 0, 0)
        found = recurrence(runs, [group]) if pairs else alone
        points = sum(map(len, curves))
        shared = f"{found.num_recurring}" if pairs else ""
        rows.append(
            [len(curves), len(group.copies), f"{points:,}", alike, found.num_events, shared]
        )
    return rows


def submitter_rows(runs: Sequence[Run]) -> list[list[object]]:
    rows: list[list[object]] = []
    for submitter in sorted({run.name.partition("/")[0] for run in runs}):
        own = [run for run in runs if run.name.startswith(f"{submitter}/")]
        num_points = sum(len(run.curve) for run in own)
        num_events = sum(len(run.events) for run in own)
        rows.append([submitter, len(own), f"{num_points:,}", num_events])
    return rows


def report(folder: Path) -> tuple[str, list[str], list[Run], list[Group]]:
    """Return the tables, the gates that were missed, and the runs that the picture shows."""
    speed_runs = read_runs(folder / SPEED_RUNS)
    groups = groups_of([run.curve for run in speed_runs])
    found = recurrence(speed_runs, groups)
    lonely_events, met = by_chance(speed_runs, groups)
    submissions = read_runs(folder / SUBMISSIONS)
    calm = [run for run in submissions if not run.name.startswith(f"{SPIKED}/")]
    num_calm = sum(len(run.curve) for run in calm)
    num_false = sum(len(run.events) for run in calm)
    rate = 10_000 * num_false / num_calm
    spiked = [run for run in submissions if run.name.startswith(f"{SPIKED}/")]
    known = [(run, spike) for run in spiked for spike in known_spikes(run.curve)]
    num_found = sum(is_found(run, spike) for run, spike in known)
    gates = [
        ("events that recur", f"{found.share:.1%}", "at least 90%", found.share >= MIN_RECURRING),
        ("events per 10,000 points of calm runs", f"{rate:.2f}", "at most 1", rate <= MAX_FALSE),
        (
            f"known spikes of {SPIKED} found",
            f"{num_found} of {len(known)}",
            "all",
            num_found == len(known),
        ),
    ]
    rows = [[what, got, wanted, "yes" if met_it else "NO"] for what, got, wanted, met_it in gates]
    missed = [what for what, _, _, met_it in gates if not met_it]
    recurring = (
        f"Of {found.num_events} events in groups, {found.num_recurring} occur at the same step in"
        f" another run of the group, which is {found.share_of_all:.1%}. {found.num_alone} of them"
        f" {'is' if found.num_alone == 1 else 'are'} at a step that no other run of the group"
        f" reached, so {'it' if found.num_alone == 1 else 'they'} cannot recur. Of the rest,"
        f" {found.share:.1%} recur."
    )
    control = (
        f"As a control, the runs with an order of their own have {lonely_events} events. {met} of"
        " them are at a step at which another run has an event."
    )
    calm_runs = (
        f"Ninety-three runs of Llama 3.1 8B and 405B and of Flux. {SPIKED}'s runs have real spikes."
        f" The others are nearly calm: {num_false} events in {num_calm:,} points, {rate:.2f} per"
        " 10,000."
    )
    lines = [
        markdown_table(("figure", "measured", "target", "met"), rows),
        "## Runs of modded-nanogpt",
        _SPEED_RUNS,
        markdown_table(
            ("runs", "copies", "points", "correlation", "events", "of them recur"),
            group_rows(speed_runs, groups),
        ),
        recurring,
        control,
        "## Submissions to MLPerf training 5.1",
        calm_runs,
        markdown_table(("submitter", "runs", "points", "events"), submitter_rows(submissions)),
    ]
    return "\n\n".join(lines), missed, speed_runs, groups


def page(tables: str) -> str:
    return (
        "# Events on public runs\n\n"
        "<!-- Written by benchmarks/public_runs.py --write; change that. -->\n\n"
        "Does sonde's rule find real events? This page tests it on loss curves from logs in public"
        " repositories.\n\nSome of these runs train on the same batches in the same order, with"
        " different weights, optimizers and architectures.\nIf several of them have an event at the"
        " same step, the data caused it. An event that no other run of the group has may\n"
        "be a false alarm.\n\n"
        "![Events of 28 runs over their steps, in columns](images/public-runs.svg)\n\n"
        "Each row is a run, and each mark an event. The marks of a group are in the same columns,"
        " because its runs have their\nevents at the same steps. The two rows in the middle are"
        " runs with an order of their own.\n\n"
        f"{tables}\n\n"
        "## How it is counted\n\n"
        "- The groups are formed first, before any event is known. Two runs belong to a group if"
        " their residuals correlate by 0.5\n  or more. A residual is the loss minus the median of"
        " the 17 points around it, clipped at three times its usual size.\n"
        "- Three of the 31 curves are copies of others and count once.\n"
        "- An event recurs if another run of its group has an event that spans its first step.\n"
        "- All runs are calm except those of the submitter with known spikes. A known spike is a"
        " loss at least a quarter above\n  the median of the 101 points around it, after the first"
        " 100 points.\n"
        "- The rule and its limits were tuned on generated curves (`benchmarks/traces`) and not on"
        " these.\n\n"
        "`python benchmarks/public_runs.py` prints these tables. The curves are in a folder beside"
        " the project; without it, the\nbenchmark says so and ends. Sources: KellerJordan/"
        "modded-nanogpt (MIT) and mlcommons/training_results_v5.1\n(Apache-2.0).\n"
    )


def main() -> int:
    folder = find_folder()
    if folder is None:
        print("the public runs are not here: name their folder in SONDE_PUBLIC_RUNS")
        return 0
    tables, missed, runs, groups = report(folder)
    print(tables)
    if "--write" in sys.argv[1:]:
        rows = [[runs[place] for place in group.members] for group in groups]
        marks = [
            [(run.name, [event.first_step for event in run.events], len(run.curve)) for run in row]
            for row in rows
        ]
        PICTURE.write_text(picture(marks), encoding="utf-8")
        PAGE.write_text(page(tables), encoding="utf-8")
    for what in missed:
        print(f"gate missed: {what}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
