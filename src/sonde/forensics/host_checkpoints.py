"""Checkpoints that a host wrote itself (Hugging Face, Lightning): where they are, and how the host goes on from one. No torch.

The integrations note each as an event of the run. They are the user's: nothing here moves or removes one.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from sonde.records.events import read_events

EVENT: Final = "host_checkpoint"
"""The event that tells of one."""
_WAYS: Final = {
    "huggingface": 'trainer.train(resume_from_checkpoint="{path}")',
    "lightning": 'trainer.fit(…, ckpt_path="{path}")',
    "accelerate": 'accelerator.load_state("{path}")',
}


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class HostCheckpoint:
    """One of them; `path` is empty for the beginning."""

    host: str
    step: int
    path: str

    @property
    def way_on(self) -> str:
        """What the script has to say to go on from here."""
        way = _WAYS[self.host]
        return way.format(path=self.path) if self.path else f"{way.partition('(')[0]}(…) without a checkpoint"


def newest_before(run: Path, step: int) -> HostCheckpoint | None:
    """The host's newest checkpoint from before a step that is still there; None when no host trained the run."""
    found: HostCheckpoint | None = None
    for record in read_events(run, EVENT):
        host, at, path = record.get("host"), record.get("step"), record.get("path")
        if not isinstance(host, str) or host not in _WAYS:
            continue
        found = found or HostCheckpoint(host=host, step=0, path="")
        if isinstance(at, int) and isinstance(path, str) and found.step <= at < step and Path(path).exists():
            found = HostCheckpoint(host=host, step=at, path=path)
    return found
