"""Digests of training states as a run records them, and the reader (docs/formats/digests.md). Needs
no torch.

    log = read_digests(run)
    log.states[-1].step, log.states[-1].tensors["head.weight"].hash

`StateDigest` is what a state was when it was kept or written to a checkpoint. `NextUpdate` is what
the update after it began with: its samples, rates and generators. A process that ends right after a
checkpoint leaves no such record.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from sonde.records.layout import DIGESTS, RunLayout
from sonde.records.reader import Record, read_records

DIGEST: Final = "DIGEST"
"""The `type` of the record of a state."""
_SAME_NORM: Final = 1e-5
"""Norms of the same tensor in other parts differ by less than this fraction."""
NEXT: Final = "NEXT"
"""The `type` of the record of the update that followed a state."""


class TensorDigest(NamedTuple):
    """One tensor of the model."""

    hash: str
    """A CRC-32 of its bytes, or of a sample of them if it is large."""
    norm: float
    """The norm of the same values."""
    dtype: str
    shape: Sequence[int]
    is_trainable: bool


class MomentDigest(NamedTuple):
    """One tensor of an optimizer's state."""

    hash: str
    norm: float


class GeneratorDigest(NamedTuple):
    """The state of a generator: the block of numbers that it draws from, and its position there."""

    block: str
    position: int
    next_block: str = ""
    """The block that follows, which a few draws may reach."""


class SamplesSeen(NamedTuple):
    """The samples of one update."""

    first: Sequence[tuple[str, int]]
    """The names of the first few: dataset and number."""
    num: int
    """How many there were."""
    hash: str
    """A CRC-32 of all names."""


class Mode(NamedTuple):
    """Whether the model trains or evaluates."""

    is_training: bool
    others: Sequence[str] = ()
    """The modules whose mode is not the model's; those inside one of them are left out."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StateDigest:
    """The state of a training after `step` updates."""

    step: int
    world_size: int = 1
    reason: str = ""
    """Why it was taken: "kept", "checkpoint", "closed" or "resumed"."""
    path: str = ""
    """The checkpoint that was written, if its place is known."""
    resume: Sequence[str] = ()
    """The words of a command line that resume from it, if the script said so."""
    time: float = 0.0
    is_sharded: bool = False
    """Whether the tensors are this rank's parts only."""
    tensors: Mapping[str, TensorDigest] = field(default_factory=dict)
    """Weights and buffers, by name."""
    optimizer: str = ""
    """The class of the optimizer."""
    moments: Mapping[str, Mapping[str, MomentDigest]] = field(default_factory=dict)
    """The state of the optimizer by kind (such as `exp_avg`) and parameter."""
    num_without_moments: int = 0
    """How many trained parameters the optimizer has no state for."""
    counts: tuple[float, float] | None = None
    """The lowest and the highest number of updates that the optimizer has counted."""
    rates: Sequence[float] = ()
    """The learning rate of every parameter group."""
    objects: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """The states of scheduler, scaler and other named objects: small values, else a hash."""
    generators: Mapping[str, GeneratorDigest] = field(default_factory=dict)
    last_samples: Sequence[SamplesSeen] = ()
    """The samples of the last updates, oldest first."""

    @property
    def num_trainable(self) -> int:
        """The number of trainable tensors."""
        return sum(tensor.is_trainable for tensor in self.tensors.values())


@dataclass(frozen=True, kw_only=True, slots=True)
class NextUpdate:
    """What the update after `step` updates began with."""

    step: int
    time: float = 0.0
    samples: SamplesSeen | None = None
    rates: Sequence[float] = ()
    """The rates at the moment before the optimizer moved."""
    generators: Mapping[str, GeneratorDigest] = field(default_factory=dict)
    draws: Sequence[str] = ()
    """The generators that the update drew from."""
    mode: Mode | None = None


class DigestLog(NamedTuple):
    """The digests of one rank, oldest first."""

    states: Sequence[StateDigest]
    following: Sequence[NextUpdate]

    def after(self, state: StateDigest) -> NextUpdate | None:
        """Return what followed a state when training went on without a restart."""
        found = [update for update in self.following if update.step == state.step]
        later = [update for update in found if update.time >= state.time]
        return later[0] if later else None


def as_record(digest: StateDigest | NextUpdate) -> Record:
    """Return a digest as it is written."""
    kind = DIGEST if isinstance(digest, StateDigest) else NEXT
    return {"type": kind, **msgspec.to_builtins(digest)}


def from_record(record: Mapping[str, Any]) -> StateDigest:
    """Return the digest of a state from its record; raise ValidationError if it is damaged."""
    return msgspec.convert(record, StateDigest, strict=False)


def read_digests(run: str | Path, rank: int = 0) -> DigestLog:
    """Read the digests of a rank; none if there are none. Damaged records are left out."""
    states: list[StateDigest] = []
    following: list[NextUpdate] = []
    path = RunLayout(Path(run)).record_file(DIGESTS, rank)
    for record in read_records(path) if path.exists() else ():
        try:
            if record.get("type") == DIGEST:
                states.append(from_record(record))
            elif record.get("type") == NEXT:
                following.append(msgspec.convert(record, NextUpdate, strict=False))
        except msgspec.ValidationError:
            continue
    return DigestLog(states, following)


def read_digests_of_rank(run: str | Path, rank: int) -> DigestLog:
    """Read the digests of a rank. Of states that it did not record, because rank 0 alone wrote a
    checkpoint or because the rank is new, it takes rank 0's, without what is of rank 0 only.
    """
    own = read_digests(run, rank)
    if rank == 0:
        return own
    known = {state.step for state in own.states}
    of_rank_0 = [state for state in read_digests(run).states if not state.is_sharded]
    others = [
        replace(state, generators={}, last_samples=())
        for state in of_rank_0
        if state.step not in known
    ]
    states = sorted([*own.states, *others], key=lambda state: state.time)
    return DigestLog(states, own.following)


def whole(parts: Sequence[StateDigest]) -> StateDigest:
    """Return the digest of a sharded state from those of all ranks. Its norms are those of the
    whole tensors; its hashes mean nothing.
    """
    first = parts[0]
    tensors = {}
    for name, tensor in first.tensors.items():
        norms = [part.tensors[name].norm for part in parts if name in part.tensors]
        tensors[name] = tensor._replace(norm=math.hypot(*norms))
    moments: dict[str, dict[str, MomentDigest]] = {}
    for kind, by_name in first.moments.items():
        moments[kind] = {}
        for name, moment in by_name.items():
            found = [part.moments.get(kind, {}).get(name) for part in parts]
            norm = math.hypot(*(part.norm for part in found if part is not None))
            moments[kind][name] = moment._replace(norm=norm)
    return replace(first, is_sharded=False, tensors=tensors, moments=moments)


def with_hashes_of(state: StateDigest, other: StateDigest) -> StateDigest:
    """Return a whole state with the hashes of another where their norms are the same, because the
    hashes of parts cannot be compared.
    """
    tensors = {}
    for name, tensor in state.tensors.items():
        known = other.tensors.get(name)
        is_same = known is not None and _is_near(known.norm, tensor.norm)
        tensors[name] = tensor._replace(hash=known.hash if known and is_same else "")
    moments: dict[str, dict[str, MomentDigest]] = {}
    for kind, by_name in state.moments.items():
        moments[kind] = {}
        for name, moment in by_name.items():
            there = other.moments.get(kind, {}).get(name)
            is_same = there is not None and _is_near(there.norm, moment.norm)
            moments[kind][name] = moment._replace(hash=there.hash if there and is_same else "")
    return replace(state, tensors=tensors, moments=moments)


def _is_near(norm: float, other: float) -> bool:
    return abs(norm - other) <= _SAME_NORM * max(norm, other)
