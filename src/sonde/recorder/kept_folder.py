"""What is removed of kept states and batches, so that they stay within the disk budget."""

import contextlib
from collections.abc import Sequence
from itertools import pairwise

from sonde.checkpoint.folder import CheckpointFolder
from sonde.errors import SondeError
from sonde.recorder.batch_file import batch_files
from sonde.recorder.guard import Guard
from sonde.records.storage import storage_at
from sonde.run import Run


class KeptFolder:
    """The folder of one run's states and of the batches of one rank."""

    def __init__(self, run: Run, states: CheckpointFolder, max_bytes: int, guard: Guard) -> None:
        self._run = run
        self._folder = run.layout.kept
        self._states = states
        self._max_bytes = max_bytes
        self._guard = guard

    def prune(self, events: Sequence[int], *, keeps_states: bool) -> None:
        """Remove batch files from before the oldest kept state, and whatever exceeds the budget.
        `events` are the states from before events, after how many updates each.
        """
        regular = [step for step in self._states.steps() if step not in events]
        oldest = regular[0] if regular else 0
        for (first, path), (end, _) in pairwise(batch_files(self._folder, self._run.rank)):
            if end <= oldest and not any(first <= step < end for step in events):
                path.unlink(missing_ok=True)
        if self._is_full(keeps_states=keeps_states):
            self.thin()

    def _is_full(self, *, keeps_states: bool) -> bool:
        """Return whether what is kept exceeds the budget. Without states, every rank looks at its
        own files only: hundreds of ranks must not ask for the sizes of each other's.
        """
        if not keeps_states:
            own = [path for _, path in batch_files(self._folder, self._run.rank)]
            num_bytes = sum(path.stat().st_size for path in own)
            return num_bytes * self._run.world_size > self._max_bytes
        # States and the batches of all ranks, which remove theirs at any time.
        return sum(storage_at(self._folder).sizes().values()) > self._max_bytes

    def thin(self) -> None:
        """Remove the oldest kept state and the batches that only it needs. At least one state
        remains.
        """
        states = self._states.steps()
        files = batch_files(self._folder, self._run.rank)
        if len(states) > 1 and self._run.rank == 0:
            try:
                self._states.remove(states[0])
            except (OSError, SondeError) as error:
                self._guard.tell("thin", f"{self._states.directory} cannot be thinned: {error}")
        if len(files) > 1:
            if len(states) == 1 and files[1][0] > states[0]:
                self._guard.tell(
                    "few batches",
                    f"the batches since the state after {states[0]} steps exceed max_bytes, so the"
                    " oldest are removed; a smaller state_every or a larger max_bytes keeps them",
                )
            with contextlib.suppress(OSError):
                files[0][1].unlink(missing_ok=True)
