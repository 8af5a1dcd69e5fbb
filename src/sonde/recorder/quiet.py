"""Failures without a jump in a training under way: told once each, and recorded in the run.

The recorder's background worker looks at the updates, because nothing of this is urgent. The
training's own thread tells what was found, at the end of a later update. So an update costs the
training a glance at an empty queue.
"""

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import torch
from torch import Tensor

from sonde.data.skip_list import CONTENT
from sonde.forensics.precursors import UPDATE_RATIO
from sonde.recorder.alerting import EventAlerts
from sonde.recorder.batch_tree import named_rows
from sonde.recorder.guard import Guard, guarded
from sonde.recorder.memory import MemoryWatch
from sonde.recorder.update import MicroBatch, Update
from sonde.records.journal import read_events
from sonde.run import Run
from sonde.spikes.label_order import LabelOrder
from sonde.spikes.memory_climb import memory_climbs
from sonde.spikes.quiet_rules import QUIET_FAILURE, SAME_BATCH, QuietFinding, QuietWatch
from sonde.spikes.recorder import SpikeRecorder
from sonde.spikes.rows_again import RowsAgain
from sonde.spikes.update_size import MAX_SIZES, MeasuredSize, update_size

REPEATED_ROWS_TOLD: Final = "check repeated_rows"
"""What the look at the first updates tells of the same thing."""
_NUM_SAME: Final = 8
"""The same batch so many times in a row is told."""
_MEMORY_EVERY: Final = 64
"""How many steps pass between two looks at the memory."""
_MAX_COMPARED: Final = 1 << 20
"""Larger tensors are not compared with those of the step before."""


class QuietLook:
    """Looks at every finished update of one training: `look` in the worker, all else in the
    training's own thread.
    """

    def __init__(
        self,
        run: Run,
        guard: Guard,
        spikes: SpikeRecorder,
        alerts: EventAlerts,
        memory: MemoryWatch,
    ) -> None:
        """`spikes` records the failure as an event, `alerts` tells others."""
        self._alerts = alerts
        self.guard = guard
        self._memory = memory
        self._rows = RowsAgain()
        self._labels = LabelOrder()
        self._spikes = spikes
        self._run = run
        self._told = set[str]()
        if run.resumed:
            for record in read_events(run.layout.root, QUIET_FAILURE):
                self._told.add(str(record.get("kind")))
        self._watch = QuietWatch(self._told)
        self._last_micro: MicroBatch | None = None
        self._num_same = 0
        self._sizes: deque[MeasuredSize] = deque(maxlen=MAX_SIZES)
        self.found: deque[tuple[QuietFinding, float]] = deque()
        """What was found and is not told yet, with the loss of its step."""

    @guarded("quiet failures are not looked for")
    def look(self, update: Update, vitals: Mapping[str, float]) -> None:
        """Look at an update that is over and whose loss is known, and at its vitals."""
        if update.loss is None:
            return
        found: list[QuietFinding | None] = []
        found += self._watch.observe(
            update.step,
            update.loss,
            None if update.skipped else update.grad_norm,
            update.lr,
            update.seconds,
            update.wait_seconds,
        )
        if UPDATE_RATIO in vitals:
            self._sizes.append(MeasuredSize(update.step, vitals[UPDATE_RATIO], update.lr))
            found.append(update_size(self._sizes))
        found.append(self._look_at_batch(update))
        found.append(self._look_at_rows(update))
        found.append(self._look_at_labels(update))
        if update.step % _MEMORY_EVERY == 0:
            climbing = memory_climbs(self._memory.samples)
            if climbing is not None:
                found.append(replace(climbing, step=update.step))
        if any(found):
            self.found.extend((finding, update.loss) for finding in found if finding is not None)

    def start_over(self) -> None:
        """Forget the steps so far, because the training went back. The worker is idle then."""
        self._watch.start_over()
        self._rows = RowsAgain()
        self._labels = LabelOrder()
        self._num_same = 0
        self._sizes.clear()

    def tell_found(self) -> None:
        """Tell what the worker has found."""
        while self.found:
            self.tell(*self.found.popleft())

    def _look_at_batch(self, update: Update) -> QuietFinding | None:
        """Notice that a loader gives the same batch again and again."""
        if SAME_BATCH in self._told or not update.micro or not update.micro[0].tensors:
            return None
        if self.guard.has_told(REPEATED_ROWS_TOLD):
            return None
        micro = update.micro[0]
        before = self._last_micro
        self._last_micro = micro
        if before is None or not _is_same(before, micro):
            self._num_same = 0
            return None
        self._num_same += 1
        if self._num_same != _NUM_SAME:
            return None
        return QuietFinding(
            kind=SAME_BATCH,
            step=update.step,
            sentence=f"the same batch has come {_NUM_SAME + 1} times in a row",
            look_at="the loader: an iterator made anew at every step, a sampler that is not"
            " advanced",
        )

    def _look_at_rows(self, update: Update) -> QuietFinding | None:
        """Notice rows that come again, if they have numbers of the user's own."""
        if self._rows.is_over:
            return None
        names: list[tuple[str, int]] = []
        for micro in update.micro:
            if micro.names is None or (isinstance(micro.names, Tensor) and not micro.names.is_cpu):
                return None  # names on a device are not waited for
            names += named_rows(micro.names, micro.batch)
        if names and names[0][0] == CONTENT:
            self._rows.is_over = True
            return None
        rows = [hash(name) for name in names]
        return self._rows.observe(update.step, rows)

    def _look_at_labels(self, update: Update) -> QuietFinding | None:
        """Notice batches of one class each, if the loss shows the class of every row."""
        if self._labels.is_over:
            return None
        targets = [micro.rows.targets for micro in update.micro if micro.rows is not None]
        if not targets or len(targets) < len(update.micro):
            return None
        if any(labels is None or labels.shape[1] != 1 for labels in targets):
            self._labels.is_over = True  # on a device, or several targets in a row
            return None
        lowest = min(int(labels.min()) for labels in targets)
        highest = max(int(labels.max()) for labels in targets)
        num_rows = sum(len(labels) for labels in targets)
        return self._labels.observe(update.step, lowest, highest, num_rows)

    def tell(self, finding: QuietFinding, loss: float | None) -> None:
        """Tell of a failure and record it, unless it was told before in this run."""
        if finding.kind in self._told:
            return
        self._told.add(finding.kind)
        self._spikes.report(finding.kind, finding.step, math.nan if loss is None else loss)
        if self._run.rank == 0:
            self._run.event(
                QUIET_FAILURE,
                kind=finding.kind,
                step=finding.step,
                sentence=finding.sentence,
                look_at=finding.look_at,
            )
            self._alerts.quiet(finding)
            self.guard.tell(
                finding.kind,
                f"sonde: step {finding.step}: {finding.sentence}. Look at {finding.look_at}",
            )


def _is_same(before: MicroBatch, after: MicroBatch) -> bool:
    """Return whether the first tensors of two batches have the same content. Tensors on a device
    are not waited for, and a buffer that the loop fills anew cannot be compared with itself.
    """
    old = before.to_write()[0]
    new = after.to_write()[0]
    if old is new or not new.is_cpu or new.layout is not torch.strided or new.is_nested:
        return False
    if new.shape != old.shape or new.dtype != old.dtype:
        return False
    if not 1 < new.numel() <= _MAX_COMPARED or new.data_ptr() == old.data_ptr():
        return False
    is_equal = torch.equal(old, new)
    return is_equal and before.is_whole() and after.is_whole()
