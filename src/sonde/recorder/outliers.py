"""Looks at samples that stand out in a step whose mean loss is as usual."""

import time
from collections.abc import Sequence
from typing import Final

from sonde.forensics.scene_evidence import SceneEvidence, SceneRow
from sonde.forensics.verdict import SAMPLE_TEXT
from sonde.recorder.alerting import EventAlerts
from sonde.recorder.first_verdict import write_first_verdict
from sonde.recorder.row_reader import RowReader
from sonde.recorder.update import Update
from sonde.run import Run
from sonde.spikes.sample_watch import LOSS, SampleEvent

_MAX_TEXTS: Final = 1000
"""The texts of at most this many outlying samples are kept."""


class OutlierLook:
    """Keeps the texts of outlying samples, and writes a first verdict on the first ones."""

    def __init__(self, run: Run, reader: RowReader, alerts: EventAlerts) -> None:
        self._run = run
        self._reader = reader
        self._alerts = alerts
        self._num_texts = 0

    def look(self, found: SampleEvent, held: Sequence[Update]) -> None:
        """Look at the outlying samples of one of the updates that are held. Each rank does this for
        its own.
        """
        if self._num_texts >= _MAX_TEXTS:
            return
        started = time.time()
        by_step = {update.step: update for update in held}
        judged = by_step.get(found.step)
        if judged is None:
            return
        rows = self._reader.read_rows(judged, held[:-1], found.rows)
        self._keep_texts(found.step, rows)
        if rows and found.is_worth_a_look:
            headline = _how_far_out(found, rows[0].loss)
            evidence = SceneEvidence(
                step=found.step,
                metric="sample",
                rows=rows,
                row_expected=found.expected,
                row_deviations=found.z,
                row_measure=found.measure,
            )
            # Some samples are hard: without a likely cause it is recorded, and nothing is said.
            verdict = write_first_verdict(
                self._run, headline, judged, evidence, started, may_be_noise=True
            )
            if verdict is not None:
                self._alerts.sample(headline, verdict)

    def _keep_texts(self, step: int, rows: Sequence[SceneRow]) -> None:
        for row in rows:
            suspect = row.suspect
            if suspect.text:
                self._num_texts += 1
                self._run.event(
                    SAMPLE_TEXT,
                    step=step,
                    dataset=suspect.dataset,
                    sample=suspect.sample,
                    text=suspect.text,
                )


def _how_far_out(found: SampleEvent, loss: float) -> str:
    """Say how far the worst outlying sample of a step, which has this loss, is from others."""
    if found.measure == LOSS:
        return f"a sample's loss is {loss:.4g}, samples of its length have {found.expected[0]:.4g}"
    return f"a sample's {found.measure} are {found.z[0]:.1f} deviations above others of its length"
