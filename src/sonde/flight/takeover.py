"""In a replay, the script's first step is where sonde takes over: it restores, makes steps again, experiments, answers, and ends the process.

The script has built model, optimiser and data as always; its own step function makes the updates. Nothing is written into the run but a verdict.
"""

import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

from sonde import ranks
from sonde.errors import SettingError, SondeError
from sonde.flight.kept_training import seams_of
from sonde.flight.training_state import Parts
from sonde.forensics.diagnose import diagnose
from sonde.forensics.replay import ReplayOptions
from sonde.forensics.replayed_step import replay_step
from sonde.forensics.seams import Seams
from sonde.forensics.verdict import write_verdict
from sonde.records.replay_order import ReplayOrder, order_of_process, write_answer
from sonde.records.steps import read_steps


def take_over(parts: Parts, step_function: Callable[..., Any], batch: Any) -> NoReturn:
    """Do what this process was asked for, and end it. Every rank must call it."""
    order = order_of_process()
    assert order is not None  # the run is a shadow only in a process that has one
    try:
        seams = seams_of(parts, step_function, batch, read_steps(Path(order.run)).by_number)
        answer = _answer(order, seams)
    except SondeError as error:
        give_up(error)
    except Exception as error:  # noqa: BLE001  the user's own code runs here: whoever asked is told what it raised
        traceback.print_exc()
        give_up(SondeError(f"the script failed in the replay: {type(error).__name__}: {error}"))
    if ranks.rank() == 0:
        write_answer(order, answer)
    raise SystemExit(0)


def give_up(error: SondeError) -> NoReturn:
    """Answer that it cannot be done, and end the process."""
    order = order_of_process()
    if order is not None and ranks.rank() == 0:
        write_answer(order, {"error": [error.message, error.cause, error.hint]})
    raise SystemExit(1)


def _answer(order: ReplayOrder, seams: Seams) -> Mapping[str, Any]:
    run = Path(order.run)
    options = ReplayOptions(
        **{**order.options, "drop": tuple((str(name), int(number)) for name, number in order.options.get("drop", ()))}
    )
    if order.verb == "diagnose":
        verdict = diagnose(run, order.step, options=options, seams=seams)
        if ranks.rank() == 0:
            write_verdict(run, verdict)
        return {"verdict": asdict(verdict)}
    if order.step is None:
        raise SettingError("a replay needs a step")
    return {"replay": asdict(replay_step(run, order.step, options, dump=order.dump, seams=seams))}
