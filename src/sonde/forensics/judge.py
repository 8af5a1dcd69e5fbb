"""The one judge: every cause is asked what speaks for it, and the answers become a ranked list.

    judge_scene(scene)          # at the scene of an event, while training stands still
    judge_replay(evidence)      # with records and a replay, afterwards (`sonde diagnose`)

Both ask the same causes (causes/); they differ in the evidence, and in what a score is worth there
(`CONFIDENCES`). The order of explanations is that of an engineer: numbers that are not finite, then
what changed, then the state, and samples last. "Without these samples the loss is normal" weighs
only what the explanations before it leave. "Not known" and "nothing wrong" share the rest.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from sonde.forensics.causes import rules
from sonde.forensics.causes.cause_rule import (
    CauseFinding,
    Family,
    Need,
    Place,
    confidence_of,
)
from sonde.forensics.evidence import Evidence
from sonde.forensics.precursors import what_preceded
from sonde.forensics.scene_evidence import SceneEvidence
from sonde.forensics.verdict import NOTHING, UNKNOWN, Cause

_LAST: Final = (UNKNOWN, NOTHING)
"""These come last in the list, and get the confidence that the other causes leave."""
_BEFORE_SAMPLES: Final[frozenset[Family]] = frozenset({"numbers", "setting", "state", "machine"})
"""What these families explain is no longer to be explained by samples that merely are hard."""
_OF_ROWS: Final[frozenset[Family]] = frozenset({"text", "pair", "sample"})
"""The causes of these families are rows of the step."""
_LIKELY: Final = 0.5
"""At a calm step, where nothing asks for an explanation, a cause comes before "nothing wrong" only
if it is at least this likely.
"""
_LEAST: Final = 0.02
"""Causes with a lower confidence are not listed."""


def judge_scene(scene: SceneEvidence) -> list[Cause]:
    """Return the causes that the scene of an event speaks for, most likely first."""
    findings = []
    for name, rule in rules().items():
        finding = None if rule.at_scene is None else rule.at_scene(scene)
        if finding is not None:
            findings.append((name, finding))
    causes = _ranked(findings, "scene", scene.step, is_calm=False)
    return _with_precursors(causes, scene.preceded)


def judge_replay(evidence: Evidence) -> list[Cause]:
    """Return the causes that records and replay speak for, most likely first."""
    case = evidence.case
    findings = []
    for name, rule in rules().items():
        finding = rule.judge(evidence) if _has(evidence, rule.needs) else None
        if finding is not None:
            findings.append((name, finding))
    causes = _ranked(findings, "replay", case.step, is_calm=case.is_calm)
    vitals = [(number, record.values) for number, record in case.steps.items()]
    preceded = [] if case.is_calm else what_preceded(vitals, case.step)
    return _with_precursors(causes, preceded)


def _with_precursors(causes: list[Cause], preceded: Sequence[str]) -> list[Cause]:
    """Return causes with what preceded the event as evidence of the first, unless that is about
    rows, which nothing precedes.
    """
    if not preceded or rules()[causes[0].cause].family in _OF_ROWS:
        return causes
    first = replace(causes[0], evidence=(*causes[0].evidence, *preceded))
    return [first, *causes[1:]]


def _ranked(
    findings: Sequence[tuple[str, CauseFinding]], place: Place, step: int, *, is_calm: bool
) -> list[Cause]:
    """Return findings as causes, by confidence."""
    explained = 0.0
    """How much is explained by what comes before samples."""
    for name, finding in findings:
        rule = rules()[name]
        if rule.family in _BEFORE_SAMPLES:
            explained = max(explained, confidence_of(place, rule.family, finding.score))
    causes: list[Cause] = []
    for name, finding in findings:
        if name not in _LAST:
            rule = rules()[name]
            confidence = confidence_of(place, rule.family, finding.score)
            if rule.family == "sample":
                confidence *= 1 - explained
            causes.append(rule.cause(name, finding, confidence, step, is_calm=is_calm))
    left = 1 - max((cause.confidence for cause in causes), default=0.0)
    for name, finding in findings:
        if name in _LAST:
            rule = rules()[name]
            confidence = left * confidence_of(place, rule.family, finding.score)
            causes.append(rule.cause(name, finding, confidence, step, is_calm=is_calm))
    listed = [cause for cause in causes if cause.confidence >= _LEAST]
    ranked = sorted(listed or causes, key=lambda cause: -cause.confidence)
    if is_calm and ranked[0].confidence < _LIKELY:
        ranked.sort(key=lambda cause: cause.cause != NOTHING)
    return ranked


def _has(evidence: Evidence, need: Need) -> bool:
    """Return whether the evidence has what a rule needs."""
    if need == "records":
        return True
    if not evidence.is_replayed:
        return False
    if need == "replay":
        return True
    if evidence.corpus is None:
        return False
    return need == "text" or evidence.has_sources
