"""A rank received other samples than its position in the data says.

The common mistakes are tried, one rank at a time, until one gives the recorded loss: another rank's
batch (a sampler with the wrong rank), the batch of a nearby step (a sampler that lags, runs ahead,
or stands still), the order of another epoch, or the order of the corpus. The loss must match to the
fifth digit and the number of tokens exactly, which is no coincidence among a few dozen attempts.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, Final

from sonde.forensics.case import Case, is_close
from sonde.forensics.causes.cause_rule import CauseFinding, CauseRule
from sonde.forensics.evidence import Evidence
from sonde.forensics.replay import Replay
from sonde.forensics.seams import Name, RunTexts

_CLOSE: Final = 1e-4
_SAME: Final = 1e-5
_NEARBY: Final = 8


def judge(evidence: Evidence) -> CauseFinding | None:
    """Judge whether recorded names differ from the expected ones, or whether a common mistake gives
    the recorded loss.
    """
    return _recorded(evidence) or _by_loss(evidence)


def _recorded(evidence: Evidence) -> CauseFinding | None:
    """Compare the recorded samples with the expected ones; only the records of an event have
    them.
    """
    case = evidence.case
    replay = evidence.lab.replay
    world = case.manifest.world_size
    recorded = case.recorded_samples()
    batches = replay.batches(case.step)
    planned: dict[int, list[Name]] = {rank: [] for rank in range(world)}
    for number, batch in enumerate(batches):
        planned[number % world] += [row.name for row in replay.seams.batches.rows(batch)]
    wrong = [
        rank for rank, samples in recorded.items() if planned.get(rank) and samples != planned[rank]
    ]
    if not wrong:
        return None
    sentences = [
        f"rank {rank} had the samples {_few(recorded[rank])}, and its place in the data says"
        f" {_few(planned[rank])}"
        for rank in wrong
    ]
    score = 0.85
    if len(batches) == world and _gives_recorded_loss(
        evidence, [recorded.get(rank, planned[rank]) for rank in range(world)]
    ):
        sentences.append("fed what was recorded, the step has the recorded loss again")
        score = 0.97
    return CauseFinding(score=score, evidence=sentences, rank=wrong[0] if len(wrong) == 1 else None)


def _by_loss(evidence: Evidence) -> CauseFinding | None:
    case = evidence.case
    lab = evidence.lab
    if not evidence.made.differs:
        return None
    found = evidence.once("order", lambda: _find_order(lab.replay, case))
    if (
        found is None
        and case.manifest.world_size > 1
        and not case.recorded_samples()
        and not evidence.has_bad_tensors
    ):
        sentences = [
            (
                f"{case.record.loss:.6g} was recorded, and made again the loss is"
                f" {evidence.made.result.replayed_loss:.6g}"
            ),
            "which samples its ranks had was not recorded: one of them may have been fed others",
        ]
        return CauseFinding(score=0.45, evidence=sentences)
    return found


def _gives_recorded_loss(evidence: Evidence, samples: Sequence[Sequence[Name]]) -> bool:
    """Return whether the step has the recorded loss if each rank has these samples."""
    corpus = evidence.corpus
    expected = evidence.case.record.loss
    rows = [None if corpus is None else corpus.read(sample) for sample in samples]
    if corpus is None or None in rows:
        return False
    loss = evidence.lab.replay.loss(
        batches=[corpus.batch(row) for row in rows if row is not None]
    ).loss
    done = (
        f"step {evidence.case.step} with the samples that were recorded instead of those in order"
    )
    found = f"the loss is {loss:.6g}, {expected:.6g} was recorded"
    evidence.lab.note("was every rank fed what it should have been?", done, found, loss=loss)
    return is_close(loss, expected, _CLOSE)


def _few(samples: Sequence[Name]) -> str:
    numbers = [str(sample) for _, sample in samples]
    return ", ".join(numbers[:4]) + (" …" if len(numbers) > 4 else "")


def _num_targets(replay: Replay, batches: Sequence[Any]) -> int:
    """Return the number of target tokens in batches, without placeholder rows."""
    num_targets = 0
    for batch in batches:
        for row in replay.seams.batches.rows(batch):
            if row.name[1] >= 0:
                num_targets += len(row.target)
    return num_targets


def _find_order(replay: Replay, case: Case) -> CauseFinding | None:
    """Return the rank and the batch it must have received, if a common mistake gives the recorded
    loss. The replay must be before the step.
    """
    recorded = case.record
    world = case.manifest.world_size
    corpus = replay.seams.batches.corpus
    own = replay.batches(case.step)
    if corpus is None or not math.isfinite(recorded.loss):
        return None
    for rank in range(min(world, len(own))):
        for what, batch in _candidates(replay, corpus, case.step, rank, world):
            tried = [*own[:rank], batch, *own[rank + 1 :]]
            if _num_targets(replay, tried) != recorded.weight:
                continue
            loss = replay.loss(batches=tried).loss
            if is_close(loss, recorded.loss, _SAME):
                sentence = (
                    f"fed {what}, rank {rank} makes the loss of the step {loss:.6g}, as was"
                    " recorded; in order it would be another"
                )
                return CauseFinding(score=0.97, evidence=[sentence], rank=rank)
    return None


def _candidates(
    replay: Replay, corpus: RunTexts, step: int, rank: int, world: int
) -> Iterator[tuple[str, Any]]:
    """Yield batches that a rank may have received by mistake, each with a description."""
    for other, batch in enumerate(replay.batches(step)):
        if other != rank:
            yield f"the batch of rank {other % world}", batch
    for distance in range(1, _NEARBY + 1):
        for nearby in (step - distance, step + distance):
            if nearby >= 1:
                batches = replay.batches(nearby)
                if rank < len(batches):
                    yield f"its batch of step {nearby}", batches[rank]
    yield from corpus.likely_order_bugs(step, rank)


RULE: Final = CauseRule(
    title="A rank was fed other samples than its place in the data says.",
    advice=(
        "Check the sampler, its seed and the rank it was given, on the named rank.",
        "Resume from the checkpoint before: the loader's position is good, what it was fed is not.",
    ),
    blames="machine",
    family="machine",
    judge=judge,
)
