"""Checkpoints that a host framework wrote (Hugging Face, Lightning): where they are, and how to resume from one. Needs no torch.

The integrations record each as an event of the run. They belong to the user: nothing here moves or deletes one.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sonde.records.events import read_events

EVENT: Final = "host_checkpoint"
"""The event that records a host checkpoint."""
_WAYS: Final = {
    "huggingface": 'trainer.train(resume_from_checkpoint="{path}")',
    "lightning": 'trainer.fit(…, ckpt_path="{path}")',
    "accelerate": 'accelerator.load_state("{path}")',
}


@dataclass(frozen=True, kw_only=True, slots=True)
class HostCheckpoint:
    """A checkpoint written by a host. `path` is empty for the beginning of the run."""

    host: str
    step: int
    path: str

    @property
    def way_on(self) -> str:
        """The code that resumes from this checkpoint in the user's script."""
        way = _WAYS[self.host]
        return way.format(path=self.path) if self.path else f"{way.partition('(')[0]}(…) without a checkpoint"


def newest_before(run: Path, step: int) -> HostCheckpoint | None:
    """Return the host's newest existing checkpoint before `step`; None if no host trained the run."""
    found: HostCheckpoint | None = None
    for record in read_events(run, EVENT):
        host, at, path = record.get("host"), record.get("step"), record.get("path")
        if not isinstance(host, str) or host not in _WAYS:
            continue
        found = found or HostCheckpoint(host=host, step=0, path="")
        if isinstance(at, int) and isinstance(path, str) and found.step <= at < step and Path(path).exists():
            found = HostCheckpoint(host=host, step=at, path=path)
    return found
