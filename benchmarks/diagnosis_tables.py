"""The figures of the diagnosis benchmark as tables: by kind, by share of bad rows, calibration,
false alarms; and the fit of the confidences.
"""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

from benchmarks.measure import markdown_table

from sonde.forensics.causes import rules
from sonde.forensics.causes.cause_rule import CONFIDENCES
from sonde.forensics.verdict import NOTHING

Outcome = Mapping[str, Any]

STANDS_OUT: Final = 4.0
"""A sample or a step so many deviations out can be seen."""
_SURE: Final = 0.7
_BANDS: Final = ((0.9, 1.01), (0.7, 0.9), (0.5, 0.7), (0.0, 0.5))
_EDGES: Final = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95, 1.0)


def print_tables(outcomes: Sequence[Outcome]) -> None:
    """Everything that is judged by."""
    missing = [outcome["corpus"] for outcome in outcomes if outcome["what"] == "missing"]
    if missing:
        print(f"Left out, because this machine does not have them: {', '.join(missing)}.\n")
    batches = [outcome for outcome in outcomes if outcome["what"] == "batch"]
    state = [outcome for outcome in outcomes if outcome["what"] == "state"]
    clean = [outcome for outcome in outcomes if outcome["what"] in ("clean", "hard")]
    for title, chosen, by in (
        ("bad batches by kind", batches, "kind"),
        ("bad batches by rows", batches, "share"),
        ("bad batches by corpus", batches, "corpus"),
        ("state and settings", state, "kind"),
        ("clean steps by corpus", clean, "corpus"),
    ):
        if chosen:
            print(f"\n### {title}\n")
            _print_by(chosen, by)
    seen, costly = ([batch for batch in batches if has(batch)] for has in (stands_out, costs_more))
    faults = [*batches, *state]
    sentences = [
        (
            "right first, where the loss of a sample or of the step stands out",
            _share(seen, is_right),
            "≥ 85 %",
        ),
        (
            "right first, where the bits per character of a sample may stand out instead",
            _share(costly, is_right),
            "–",
        ),
        (
            "wrong cause, 0.7 and more sure",
            _share(outcomes_of(faults, clean), _is_surely_wrong),
            "≤ 2 %",
        ),
        ("false alarms on clean steps", _share(clean, lambda one: not is_right(one)), "≤ 2 %"),
        ("state and settings right first", _share(state, is_right), "≥ 92 %"),
        (
            "CPU seconds a verdict",
            f"{_mean_seconds(outcomes_of(faults, clean)):.1f}",
            "< 10",
        ),
    ]
    print("\n### judged by\n")
    print(
        markdown_table(("figure", "measured", "asked"), [list(sentence) for sentence in sentences])
    )
    print("\n### calibration\n")
    rows = []
    for low, high in _BANDS:
        said = [
            outcome
            for outcome in outcomes_of(faults, clean)
            if low <= outcome["causes"][0][1] < high
        ]
        rows.append(
            [
                f"{low:.1f} and more" if high > 1 else f"{low:.1f} to {high:.1f}",
                str(len(said)),
                _share(said, _counts_as_right),
            ]
        )
    print(markdown_table(("confidence said", "verdicts", "right"), rows))


def print_fit(outcomes: Sequence[Outcome]) -> None:
    """The confidences of causes/cause_rule.py: how often a first cause with such a score was right,
    made to rise.
    """
    known = [outcome for outcome in outcomes if outcome["what"] != "missing"]
    for family in CONFIDENCES["replay"]:
        chosen = [outcome for outcome in known if rules()[outcome["causes"][0][0]].family == family]
        points = [(0.0, 0.0)]
        for low, high in pairwise(_EDGES):
            said = [outcome for outcome in chosen if low < outcome["score"] <= high]
            if len(said) >= 4:
                right = sum(map(_counts_as_right, said))
                points.append(((low + high) / 2, (right + 1) / (len(said) + 2)))
                print(f"  {family} {low}-{high}: {right}/{len(said)}")
        rising = [
            (score, max(value for _, value in points[: place + 1]))
            for place, (score, value) in enumerate(points)
        ]
        print(
            f'    "{family}":'
            f" {tuple((round(score, 2), round(value, 2)) for score, value in rising)},"
        )


def _mean_seconds(outcomes: Sequence[Outcome]) -> float:
    return float(sum(outcome["seconds"] for outcome in outcomes)) / max(len(outcomes), 1)


def outcomes_of(*parts: Sequence[Outcome]) -> list[Outcome]:
    """All of them together."""
    return [outcome for part in parts for outcome in part]


def is_right(one: Outcome) -> bool:
    """Is the first cause an accepted one?"""
    return bool(one["causes"][0][0] in one["accepted"])


def stands_out(one: Outcome) -> bool:
    """Is the loss of a planted sample, or of the step, far out?"""
    return bool(one["sample_z"] > STANDS_OUT or one["step_z"] > STANDS_OUT)


def costs_more(one: Outcome) -> bool:
    """Is it, or the bits per character of a planted sample?"""
    return stands_out(one) or bool(one["sample_bits_z"] > STANDS_OUT)


def _counts_as_right(one: Outcome) -> bool:
    """For the calibration: "nothing wrong" is right too where nothing can be seen."""
    return is_right(one) or (
        one["causes"][0][0] == NOTHING and not costs_more(one) and one["what"] == "batch"
    )


def _is_surely_wrong(one: Outcome) -> bool:
    return bool(one["causes"][0][1] >= _SURE) and not _counts_as_right(one)


def _print_by(outcomes: Sequence[Outcome], by: str) -> None:
    rows = []
    for name in [*dict.fromkeys(str(outcome[by]) for outcome in outcomes), "**all**"]:
        chosen = [outcome for outcome in outcomes if name == "**all**" or str(outcome[by]) == name]
        seen = [outcome for outcome in chosen if stands_out(outcome)]
        wrong = [outcome for outcome in chosen if not is_right(outcome)]
        nothing = [outcome for outcome in wrong if outcome["causes"][0][0] == NOTHING]
        others = dict.fromkeys(
            outcome["causes"][0][0] for outcome in wrong if outcome not in nothing
        )
        rows.append(
            [
                *(
                    name,
                    str(len(chosen)),
                    _share(chosen, is_right),
                    f"{_share(seen, is_right)} of {len(seen)}",
                ),
                *(str(len(nothing)), str(sum(map(_is_surely_wrong, chosen))), ", ".join(others)),
            ]
        )
    columns = (
        "",
        "verdicts",
        "right first",
        "where it stands out",
        "nothing wrong said",
        "wrong, surely",
        "wrong causes",
    )
    print(markdown_table(columns, rows))


def _share(outcomes: Sequence[Outcome], has: Callable[[Outcome], bool]) -> str:
    return f"{sum(map(has, outcomes)) / len(outcomes):.0%}" if outcomes else "–"
