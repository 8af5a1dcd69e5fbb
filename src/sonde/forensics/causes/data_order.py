"""A rank that was fed other samples than its place in the data says."""

from collections.abc import Sequence
from typing import Final

from sonde.forensics.causes.rule import Finding, Rule
from sonde.forensics.evidence import Evidence
from sonde.forensics.order_test import find_order
from sonde.forensics.seams import Name

_CLOSE: Final = 1e-4


def judge(evidence: Evidence) -> Finding | None:
    """Do recorded names differ from those in order, or does one of the usual mistakes give the recorded loss?"""
    return _recorded(evidence) or _by_loss(evidence)


def _recorded(evidence: Evidence) -> Finding | None:
    """Only the records of an event tell which samples a rank had."""
    case, replay = evidence.case, evidence.lab.replay
    world = case.manifest.world_size
    recorded = case.recorded_samples(case.step)
    batches = replay.batches(case.step)
    planned: dict[int, list[Name]] = {rank: [] for rank in range(world)}
    for number, batch in enumerate(batches):
        planned[number % world] += [row.name for row in replay.seams.batches.rows(batch)]
    wrong = [rank for rank, samples in recorded.items() if planned.get(rank) and samples != planned[rank]]
    if not wrong:
        return None
    told = [
        f"rank {rank} had the samples {_few(recorded[rank])}, and its place in the data says {_few(planned[rank])}"
        for rank in wrong
    ]
    score = 0.85
    if len(batches) == world and _gives_recorded_loss(
        evidence, [recorded.get(rank, planned[rank]) for rank in range(world)]
    ):
        told.append("fed what was recorded, the step has the recorded loss again")
        score = 0.97
    return Finding(score=score, evidence=told, rank=wrong[0] if len(wrong) == 1 else None)


def _by_loss(evidence: Evidence) -> Finding | None:
    case, lab = evidence.case, evidence.lab
    if not evidence.made.is_off or case.record is None:
        return None
    world = case.manifest.world_size
    loss, weight = case.record.loss, case.record.weight
    match = evidence.once("order", lambda: find_order(lab.replay, case.step, loss, weight, world))
    if match is not None:
        told = [
            f"fed {match.what}, rank {match.rank} makes the loss of the step {match.loss:.6g}, as was recorded; in order it would be another"
        ]
        return Finding(score=0.97, evidence=told, rank=match.rank)
    if world > 1 and not case.recorded_samples(case.step) and not evidence.has_bad_tensors:
        told = [
            f"{case.record.loss:.6g} was recorded, and made again the loss is {evidence.made.result.replayed_loss:.6g}",
            "which samples its ranks had was not recorded: one of them may have been fed others",
        ]
        return Finding(score=0.45, evidence=told)
    return None


def _gives_recorded_loss(evidence: Evidence, samples: Sequence[Sequence[Name]]) -> bool:
    """Does the step have the recorded loss, when each rank has these samples?"""
    corpus = evidence.corpus
    rows = [None if corpus is None else corpus.read(one) for one in samples]
    if corpus is None or None in rows or evidence.case.record is None:
        return False
    loss = evidence.lab.replay.loss(batches=[corpus.batch(one) for one in rows if one is not None]).loss
    expected = evidence.case.record.loss
    evidence.lab.note(
        "was every rank fed what it should have been?",
        f"step {evidence.case.step} with the samples that were recorded instead of those in order",
        f"the loss is {loss:.6g}, {expected:.6g} was recorded",
        loss=loss,
    )
    return abs(loss - expected) <= _CLOSE * abs(expected)


def _few(samples: Sequence[Name]) -> str:
    numbers = [str(sample) for _, sample in samples]
    return ", ".join(numbers[:4]) + (" …" if len(numbers) > 4 else "")


RULE: Final = Rule(
    name="data_order",
    title="A rank was fed other samples than its place in the data says.",
    advice=(
        "Check the sampler, its seed and the rank it was given, on the named rank.",
        "Resume from the checkpoint before: the loader's position is good, what it was fed is not.",
    ),
    blames="machine",
    family="machine",
    judge=judge,
)
