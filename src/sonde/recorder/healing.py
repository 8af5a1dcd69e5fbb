"""Healing in a loop of one's own: the loop rolls back by itself when the loss jumps and does not
recover, or is not finite.

Detection and decisions use the same code as `sonde train --heal` (heal/); the verdict is that of
the scene. The update that triggers it is not applied. At its end, the training returns to a kept
state: model, optimizer, named objects, and generators.

If the loop takes its batches from `recorder.batches(loader)`, the loader goes back too, provided it
has a `state_dict`; otherwise the data continues where it is. In both cases, the rows to blame are
removed from all later batches. A loop over its own loader continues with the next batch; the
samples to blame are on the run's skip list, which `sonde.without` applies at the next start.

This module loads what healing needs and nothing else does, so it is imported only where healing is
asked for.
"""

import logging
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import msgspec

from sonde import ranks
from sonde.errors import SondeError, TrainingStopped
from sonde.forensics.verdict import UNKNOWN, Verdict, read_verdict
from sonde.heal.decision import ENDED, Act, Call, Heal, describe_action, read_history, write_event
from sonde.heal.supervisor import HealCallback, mend
from sonde.recorder.batch_tree import named_rows, num_rows, without_rows
from sonde.recorder.samples import skipped
from sonde.recorder.update import Update
from sonde.run import Run

_logger = logging.getLogger("sonde")


class Healing:
    """Watches the updates of one training and decides what to do about anomalies."""

    def __init__(self, run: Run, heal: Heal) -> None:
        """Complete what an earlier start decided but did not carry out; its kept states are those
        to resume from.
        """
        self._run = run
        self._heal = replace(heal, diagnose=heal.diagnose or _scene)
        self.watch = HealCallback(heal)
        """The watch, which is part of every kept state."""
        self.call: Call | None = None
        """The anomaly reported at the current update, if any."""
        if run.rank == 0 and not run.is_replay:
            self._mend()
        self.left_out: frozenset[tuple[str, int]] = frozenset()
        """The samples that are left out, by dataset."""
        self._read_skip_list()

    def judge(self, update: Update) -> None:
        """Process the loss of an update; an update that reports an anomaly is not applied."""
        if update.loss is None:
            return
        loss = update.loss
        if update.grad_norm is not None and not math.isfinite(update.grad_norm):
            loss = math.inf  # the loss of the next step would show it, with the weights gone
        self.call = self.watch.judge(update.step, loss)
        if self.call is not None:
            update.skipped = "the training goes back"

    def act(self) -> Act:
        """Decide about the anomaly, record the decision and roll back the run's files. Flush the
        run first. Every rank must call this.
        """
        call = self.call
        self.call = None
        found = None
        if self._run.rank == 0 and call is not None:
            write_event(self._run.layout.root, "called", call=call)
            self._mend()
            found = asdict(read_history(self._run.layout.root).acts[-1])
        act = msgspec.convert(ranks.gather(found)[0], Act)
        if act.kind == "stop":
            raise TrainingStopped(
                f"{ENDED}: {act.why}",
                cause=" ".join(describe_action(act)[:2]),
                hint=" ".join(act.advice),
            )
        self._read_skip_list()
        _logger.warning("%s", " ".join(describe_action(act)))
        return act

    def _mend(self) -> None:
        run = self._run
        mend(run.layout.root, self._heal, is_ours=True, checkpoints=str(run.checkpoint_place))

    def kept(self, batches: Iterable[Any], names_of: Callable[[Any], Any]) -> Iterator[Any]:
        """Yield batches without the rows that are left out; batches with no rows left on some rank
        are skipped. Every rank must iterate.
        """
        for batch in batches:
            if not self.left_out:
                yield batch
                continue
            keep = [
                row
                for row, name in enumerate(named_rows(names_of(batch), batch))
                if name not in self.left_out
            ]
            count = num_rows(batch)
            if not ranks.any_rank(count > 0 and not keep):
                yield batch if len(keep) == count else without_rows(batch, keep)

    def _read_skip_list(self) -> None:
        skip = skipped(self._run.layout)
        self.left_out = frozenset(
            (name, number) for name in skip.entries for number in skip.samples(name).tolist()
        )


def _scene(run: Path, step: int) -> Verdict | None:
    """Return the verdict of the scene of a step. If the state is bad, go back before it, whatever
    the cause.
    """
    try:
        verdict = read_verdict(run, step)
    except SondeError:
        return None
    first = verdict.causes[0]
    if first.cause == UNKNOWN and first.bad_checkpoint is not None:
        first = replace(first, cause="bad_state", blames="tensor")
    return replace(verdict, causes=(first, *verdict.causes[1:]))
