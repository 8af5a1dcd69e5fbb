"""The resume report of sonde's own trainer.

A checkpoint of the trainer has everything, and is verified before it is loaded, all of it or
nothing; so little can be lost. What a resume may still change is told: weights or moments of a
checkpoint that somebody changed, another rate, frozen layers, data that do not tell their position.
Other data or another seed are refused by sonde's own loader, and the generators depend on the step
alone.
"""

import logging
from dataclasses import replace

from sonde.checkpoint.digest import Live, take_digest
from sonde.checkpoint.digest_log import NextUpdate, as_record, read_digests
from sonde.checkpoint.resume_comparison import BY_NUMBER, Claim, compare
from sonde.checkpoint.resume_course import Now
from sonde.checkpoint.resume_report import (
    CHANGED,
    DATA,
    EVENT,
    GENERATORS,
    Finding,
    without,
)
from sonde.records.journal import read_steps
from sonde.records.layout import DIGESTS
from sonde.run import Run
from sonde.train.task import TrainingData, tells_position

_logger = logging.getLogger("sonde")


def record_state(run: Run, live: Live, step: int) -> None:
    """Record the digest of the state that is saved after `step` updates."""
    digest = take_digest(live, step, reason="checkpoint", world_size=run.world_size)
    run.records(DIGESTS).append(as_record(digest))


def tell_resume(
    run: Run, live: Live, step: int, rate: float, *, num_epochs: int, data: TrainingData
) -> None:
    """Compare a training that was resumed after `step` updates and `num_epochs` whole epochs with
    its digest of that step, and tell what is not as it was. `rate` is that of the next update.
    """
    if run.rank != 0:
        return
    log = read_digests(run.layout.root)
    found = [state for state in log.states if state.step == step]
    if not found:
        return
    now = take_digest(live, step, reason="resumed", world_size=run.world_size)
    steps = read_steps(run.layout.root).by_number
    rates = {number: record.lr for number, record in steps.items()}
    following = NextUpdate(step=step, rates=[rate])
    report = compare(Claim(BY_NUMBER, step, found[-1]), log, rates, Now(now, following))
    report = without(report, (DATA, GENERATORS))
    is_within_epoch = step in steps and steps[step].epoch > num_epochs
    if is_within_epoch and not tells_position(data):
        text = "begin their epoch again: the loader does not tell its position"
        finding = Finding(what=DATA, status=CHANGED, text=text)
        report = replace(report, findings=[*report.findings, finding])
    level = logging.WARNING if report.lost else logging.INFO
    _logger.log(level, "%s", report.text())
    run.event(EVENT, **report.as_details())
