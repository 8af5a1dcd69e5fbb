"""What happened, what was done, what it cost: the same lines for `sonde show`, report and dashboard. No torch."""

import math
import os

from sonde.heal.decision import Act
from sonde.heal.history import read_history


def told(run: str | os.PathLike[str]) -> list[list[str]]:
    """The story of a run: a few sentences for each time that it was mended, or would have been; empty when it never was."""
    history = read_history(run)
    chapters = [told_of_act(one) for one in history.acts] + [told_of_act(one, would=True) for one in history.would]
    if history.acts:
        chapters.append([_in_all(history.acts)])
    return chapters


def told_of_act(act: Act, *, would: bool = False) -> list[str]:
    """What happened, what was found, what was done, what it cost: a sentence each."""
    return [_happened(act), _found(act), f"Would have been done: {_done(act)}" if would else _done(act), _cost(act)]


def _happened(act: Act) -> str:
    call = act.call
    if not math.isfinite(call.value):
        return f"Update {call.first_step}: the loss was not finite."
    expected = "" if math.isnan(call.baseline) else f" where {call.baseline:.4g} was expected"
    waited = call.step - call.first_step
    return (
        f"Update {call.first_step}: the loss was {call.value:.4g}{expected}, and did not come back in {waited} updates."
    )


def _found(act: Act) -> str:
    if not act.title:
        return f"No verdict: {act.why}."
    return f"The verdict, {act.confidence:.0%} sure: {act.title} So: {act.why}."


def _done(act: Act) -> str:
    place = f"the state after update {act.checkpoint}" if act.checkpoint else "the beginning"
    if act.kind == "stop":
        return " ".join(["The run ended.", *act.advice])
    if act.kind == "lower rate":
        return f"Back to {place}; the learning rate is at most {act.rate:.3g} until update {act.rate_until}."
    if act.kind == "go back":
        return f"Back to {place}, and on as it was."
    which = ", ".join(
        f"{name} {' '.join(map(str, numbers[:8]))}{' …' * (len(numbers) > 8)}" for name, numbers in act.skip.items()
    )
    whose = "the batch, " if act.kind == "skip batch" else ""
    return f"Back to {place}, and on without {whose}{_counted(act.num_skipped, 'sample')} ({which})."


def _cost(act: Act) -> str:
    return f"Cost: {_counted(act.num_repeated, 'update')} again, {act.seconds:.0f} s to find out."


def _in_all(acts: tuple[Act, ...]) -> str:
    back = [one for one in acts if one.kind != "stop"]
    samples = _counted(sum(one.num_skipped for one in back), "sample")
    updates = _counted(sum(one.num_repeated for one in back), "update")
    return f"In all: mended {_counted(len(back), 'time')}, {samples} left out, {updates} made again."


def _counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
