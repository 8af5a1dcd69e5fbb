"""In a replay, the checkpoint that the script itself has loaded: which one it is, and the state to
replay from.

    sonde replay RUN --step 1234 -- python train.py --resume out/step-1200

A run that keeps no states of its own has the digests of the script's checkpoints and all batches
since. So the script resumes as it always does, and what it has loaded is found among the digests by
its weights and moments. A state that the run does not know is refused: a replay from it would prove
nothing. Nothing is written, and the digest costs milliseconds (benchmarks/digest.py).
"""

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sonde import ranks
from sonde.checkpoint import resume_state
from sonde.checkpoint.digest import Live, take_digest
from sonde.checkpoint.digest_log import DigestLog, StateDigest, read_digests_of_rank
from sonde.checkpoint.resume_command import script_checkpoints
from sonde.checkpoint.resume_report import SAME
from sonde.errors import SettingError
from sonde.recorder.hooks import NOBODY
from sonde.recorder.training import Training

_NUM_NAMED: Final = 5
"""How many checkpoints a message names."""


class LoadedCheckpoint:
    """The state that the script has loaded, as the only one of a replay."""

    def __init__(self, training: Training, step: int, *, goes_back: bool) -> None:
        """The script has loaded the state after `step` updates. With `goes_back`, the replay may
        return to it, and it is copied. Every rank must create one.
        """
        self._training = training
        self._step = step
        self._copy = copy.deepcopy(training.collect()) if goes_back else None

    def steps(self) -> list[int]:
        """Return the updates after which there is a state: one number."""
        return [self._step]

    def is_good(self, step: int) -> bool:
        """Return True: it was compared with its digest."""
        return step == self._step

    def load(self, step: int) -> Mapping[str, Any]:
        """Return the state. Without a copy it is that of the training, which has not moved yet."""
        assert step == self._step
        return self.collect() if self._copy is None else copy.deepcopy(self._copy)

    def collect(self) -> Mapping[str, Any]:
        """Return the current state of the training. Every rank must call this."""
        return self._training.collect()

    def restore(self, state: Mapping[str, Any]) -> None:
        """Put the training into a state."""
        self._training.restore(state)


def loaded_step(training: Training, run: Path, replayed: int | None) -> int:
    """Return after how many updates the state is that the script has loaded. Every rank must call
    this. `replayed` is the step that is to be replayed, or None if that is not known yet: raises
    if the state is not from before it, or if the run knows no such state.
    """
    log = read_digests_of_rank(run, ranks.rank())
    step, problem = _find(log, _digest_now(training), replayed)
    of_ranks = ranks.gather([step, problem])
    known = [str(checkpoint) for checkpoint in script_checkpoints(log.states, replayed)]
    hint = "the run has recorded no checkpoint: call recorder.checkpoint(path) after each"
    if known:
        hint = f"let the script resume from {', '.join(known[-_NUM_NAMED:])}"
    for rank, (found, why) in enumerate(of_ranks):
        if found is None:
            where = f"on rank {rank}, " if len(of_ranks) > 1 else ""
            cause = f"{where}{why}"
            raise SettingError(_refusal(replayed), cause=cause, hint=hint)
    steps = {found for found, _ in of_ranks}
    if len(steps) > 1:
        texts = [f"{found} on rank {rank}" for rank, (found, _) in enumerate(of_ranks)]
        cause = f"the ranks have loaded different checkpoints: after {', '.join(texts)} steps"
        raise SettingError(_refusal(replayed), cause=cause, hint=hint)
    assert step is not None
    return step


def check_batches(kept: Sequence[int], loaded: int, step: int) -> None:
    """Raise if batches are missing between the checkpoint after `loaded` updates and `step`."""
    known = set(kept)
    missing = [number for number in range(loaded + 1, step + 1) if number not in known]
    if not missing:
        return
    hint = "no batches were kept"
    if kept:
        hint = f"kept are the batches of the steps {kept[0]} to {kept[-1]}"
    raise SettingError(
        f"step {step} cannot be replayed from the checkpoint after {loaded} steps",
        cause=f"the batch of step {missing[0]} was not kept",
        hint=hint,
    )


def _refusal(replayed: int | None) -> str:
    what = "the run" if replayed is None else f"step {replayed}"
    return f"{what} cannot be replayed from what the script has loaded"


def _digest_now(training: Training) -> StateDigest:
    with training.hooks.observed_by(NOBODY):
        live = Live(training.model, training.optimizer, {})
        return take_digest(live, 0, world_size=ranks.world_size())


def _find(log: DigestLog, now: StateDigest, replayed: int | None) -> tuple[int | None, str]:
    """Return the step of the loaded state, or None and why it is not known."""
    same = [state for state in log.states if resume_state.has_weights_of(state, now)]
    if not same:
        return None, "its weights are those of no state that the run has recorded"
    problem = ""
    for state in reversed(same):
        problem = _difference(state, now)
        if problem:
            continue
        if replayed is not None and state.step >= replayed:
            problem = f"it is at the state after {state.step} steps, which is not before the step"
            continue
        return state.step, ""
    return None, problem


def _difference(state: StateDigest, now: StateDigest) -> str:
    """Return what of the optimizer is not as it was; empty if everything is."""
    findings = (resume_state.moments(state, now, ()), resume_state.step_count(state, now))
    for finding in findings:
        if finding is not None and finding.status != SAME:
            return (
                f"its weights are those after {state.step} steps, but not its {finding.what}:"
                f" {finding.text}"
            )
    return ""
