"""Write the first verdict on a step: the one that is made at its scene, before training goes on."""

import logging
import time
from collections.abc import Mapping
from typing import Any, Final

from sonde.data.skip_list import sample_name
from sonde.forensics.judge import judge_scene
from sonde.forensics.scene_evidence import SceneEvidence
from sonde.forensics.verdict import SURE, Verdict, write_verdict
from sonde.recorder.update import Update
from sonde.run import Run

_LIKELY: Final = 0.5
"""A cause is likely from this confidence on."""

_logger = logging.getLogger("sonde")


def write_first_verdict(
    run: Run,
    headline: str,
    update: Update,
    scene: SceneEvidence,
    started: float,
    event: Mapping[str, Any] | None = None,
    *,
    may_be_noise: bool = False,
) -> Verdict | None:
    """Judge a scene, write the verdict into the run, log it in one line, and return it.
    `headline` says what happened. If it `may_be_noise` and no cause is likely, nothing is said, and
    None is returned: the event itself is recorded in any case. A bad state is no noise, unless the
    rate has restarted, or the loss has risen by little: that is told if it lasts.
    """
    now = time.time()
    verdict = Verdict(
        step=update.step,
        causes=tuple(judge_scene(scene)),
        experiments=tuple(scene.experiments()),
        run_id=run.manifest.run_id,
        event=event,
        time=now,
        seconds=now - started,
        place="scene",
        loss=update.loss,
    )
    is_named = verdict.names_a_cause and verdict.causes[0].confidence >= _LIKELY
    may_recover = scene.has_restarted_rate or scene.has_risen_by_little
    is_state_bad = scene.is_state_bad and not may_recover
    if may_be_noise and not is_named and not is_state_bad:
        return None
    root = run.layout.root
    path = run.directory / write_verdict(root, verdict).relative_to(root)
    _logger.warning("step %d: %s. %s (%s)", update.step, headline, _in_a_line(verdict), path)
    return verdict


def _in_a_line(verdict: Verdict) -> str:
    """Return the first cause of a verdict in a sentence: how sure it is, and the text it names."""
    first = verdict.causes[0]
    sentence = first.title.removesuffix(".")
    if verdict.names_a_cause:
        if first.confidence < SURE:
            sentence = f"Perhaps: {sentence[0].lower()}{sentence[1:]}"
        sentence += f" ({first.confidence:.0%} sure)"
    if first.suspects:
        suspect = first.suspects[0]
        name = sample_name(suspect.dataset, suspect.sample)
        sentence += f": {suspect.text[:80]!r}" if suspect.text else f": sample {name}"
    return sentence
