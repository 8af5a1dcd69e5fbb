"""The resume report of sonde's own trainer.

A checkpoint of the trainer has everything, and is verified before it is loaded, all of it or
nothing; so little can be lost. What a resume may still change is told: weights or moments that a
callback touched, another rate, frozen layers. Data and generators depend on the step alone.
"""

import logging

from sonde.checkpoint.digest import Live, take_digest
from sonde.checkpoint.digest_log import NextUpdate, as_record, read_digests
from sonde.checkpoint.resume_comparison import BY_NUMBER, Claim, compare
from sonde.checkpoint.resume_course import Now
from sonde.checkpoint.resume_report import DATA, EVENT, GENERATORS, without
from sonde.records.journal import read_steps
from sonde.records.layout import DIGESTS
from sonde.run import Run

_logger = logging.getLogger("sonde")


def record_state(run: Run, live: Live, step: int) -> None:
    """Record the digest of the state that is saved after `step` updates."""
    digest = take_digest(live, step, reason="checkpoint", world_size=run.world_size)
    run.records(DIGESTS).append(as_record(digest))


def tell_resume(run: Run, live: Live, step: int, rate: float) -> None:
    """Compare a training that was resumed after `step` updates with its digest of that step, and
    tell what is not as it was. `rate` is that of the next update.
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
    level = logging.WARNING if report.lost else logging.INFO
    _logger.log(level, "%s", report.text())
    run.event(EVENT, **report.as_details())
