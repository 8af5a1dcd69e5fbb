"""The steps in the ring, and the records of a spike made from them (docs/formats/spikes.md).

    SPIKE        an event has begun: what, where, how far; the steps up to it, with their samples;
                 tokens of the worst ones
    SPIKE_END    it is over: its span and peak, and the bad steps that followed the first
    SAMPLE       single samples of a step are outliers: which, how far, and the losses of their
                 tokens
    SPIKE_DATA   which files the datasets are, so that samples can be found again

Values from the loop are copied without being read, because their owner may overwrite them in the
next step; a CPU tensor is copied as an array, which is cheaper than another tensor. The losses of
every token are kept by reference with torch's count of in-place changes: if the count has changed
when they are needed, they are lost and are left out, never mistaken for others. No tensor is moved
or waited for here.

Random generators are recorded as a digest: equal digests mean equal dropout. Getting torch's state
costs 2 µs without synchronization, digesting it 6 µs more, so a step keeps the state and a spike
digests it. The states of Python and numpy cost 30 µs and more, so they are recorded only when a
spike is written.

A background thread creates and writes the records, so that a training step never waits for a disk
or a device. If the process is killed, the record being written is lost or torn; all earlier records
are intact (records/append.py).
"""

import logging
import math
import random
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Final, TypeAlias, TypedDict

import numpy as np
from numpy.typing import NDArray

from sonde.records.append import RecordFile
from sonde.records.values import is_tensor_type
from sonde.records.worker import Worker
from sonde.spikes.detectors import Event
from sonde.spikes.sample_watch import SampleEvent

SPIKE: Final = "SPIKE"
SPIKE_END: Final = "SPIKE_END"
SPIKE_DATA: Final = "SPIKE_DATA"
SAMPLE: Final = "SAMPLE"
VERSION: Final = 1
_DIGITS: Final = 5
"""The number of decimals of a token's loss in a record."""
_MAX_READ: Final = 32
"""Arrays and CPU tensors with at most this many values are read at once: plain numbers are cheaper
than an array.
"""

_logger = logging.getLogger("sonde")


def is_tensor(value: object) -> bool:
    """Return whether this is a torch tensor, judging by its type without importing torch."""
    kind = type(value)
    return kind.__module__ == "torch" or (
        kind.__module__ not in ("builtins", "numpy") and is_tensor_type(kind)
    )


def hold(value: Any) -> Any:
    """Hold a value such that its owner may change or reuse it: few numbers as a list, more as an
    array, tensors on a device as such.
    """
    kind = type(value)
    if value is None or kind is float or kind is int or kind is tuple:
        return value
    if kind is list:
        return value.copy()
    if is_tensor(value):
        if not value.is_cpu:
            return value.detach().clone()
        value = value.tolist() if value.numel() <= _MAX_READ else as_array(value)
    if isinstance(value, np.ndarray):
        return value.tolist() if value.size <= _MAX_READ else value.copy()
    return value


def as_array(tensor: Any) -> NDArray[Any]:
    """Return the values of a CPU tensor as an array, without a copy if numpy supports the type."""
    try:
        array: NDArray[Any] = tensor.numpy()
    except (TypeError, RuntimeError):  # bfloat16, which numpy does not support; or part of a graph
        array = tensor.detach().float().numpy()
    return array


def released(held: Any) -> Any:
    """Return a held value as plain Python data. Waits for the device of a tensor.

    A function is called for its value, so that expensive values are computed only when needed.
    """
    if callable(held):
        held = held()
    if isinstance(held, (list, tuple)):
        return [part.tolist() if hasattr(part, "tolist") else part for part in held]
    return held.tolist() if hasattr(held, "tolist") else held


def are_few(held: Any, kind: type) -> bool:
    """Return whether these are a few plain numbers of one type."""
    return type(held) is list and 0 < len(held) <= _MAX_READ and set(map(type, held)) == {kind}


def is_filler(sample_ids: Any) -> bool:
    """Return whether this is the placeholder row of a rank without data."""
    first = sample_ids[0] if isinstance(sample_ids, list) and sample_ids else None
    return isinstance(first, tuple) and first[-1] == -1


def version_of(value: Any) -> int:
    """Return how often a tensor was changed in place; 0 for other values."""
    try:
        return int(getattr(value, "_version", 0))
    except RuntimeError:  # inference-mode tensors have no version counter
        return -1


def take_state() -> Any:
    """Return the state of torch's CPU generator; None if torch is not loaded."""
    torch = sys.modules.get("torch")
    return None if torch is None else torch.default_generator.get_state()


def digest_of_state(state: Any) -> str | None:
    """Return a digest of the state from `take_state`."""
    return None if state is None else f"{zlib.crc32(state.numpy()):08x}"


def digests_now() -> dict[str, str]:
    """Return digests of the current states of Python's and numpy's generators."""
    # the global one, which users' code draws from
    key = np.random.get_state(legacy=True)  # noqa: NPY002
    python = zlib.crc32(repr(random.getstate()).encode())
    # numpy's legacy tuple
    return {
        "python": f"{python:08x}",
        "numpy": f"{zlib.crc32(repr((key[1].tobytes(), key[2:])).encode()):08x}",  # type: ignore[index]
    }


class StepDetails(TypedDict, total=False):
    """Optional details about a step besides its loss."""

    sample_ids: Any
    """The samples of this rank: numbers, texts, or pairs (dataset, number)."""
    sample_losses: Any
    """The mean loss per token of each sample: a list, array or tensor."""
    token_losses: Any
    """The loss of each token: a tensor or array (samples, tokens), or a sequence with one row per
    sample.
    """
    token_counts: Any
    """The number of target tokens of each sample; entries of `token_losses` beyond it are
    padding.
    """
    lr: Any
    """The learning rate."""
    grad_norm: Any
    """The global gradient norm before clipping."""
    rng: Any
    """An identifier of this step's random numbers. Default: a digest of torch's CPU generator."""


class StepEntry:
    """The values of one step, held but not read."""

    __slots__ = (
        "_version",
        "grad_norm",
        "loss",
        "lr",
        "rng",
        "rng_state",
        "sample_ids",
        "sample_losses",
        "step",
        "token_counts",
        "token_losses",
    )

    def __init__(self, step: int, loss: Any, details: StepDetails) -> None:
        get = details.get
        self.step = step
        self.loss = loss
        ids = get("sample_ids")
        self.sample_ids: Any = ids if callable(ids) else hold(ids)
        self.sample_losses: Any = hold(get("sample_losses"))
        self.token_counts: Any = hold(get("token_counts"))
        self.token_losses: Any = get("token_losses")
        self._version = 0 if self.token_losses is None else version_of(self.token_losses)
        self.lr = get("lr")
        self.grad_norm: Any = hold(get("grad_norm"))
        self.rng = get("rng")
        self.rng_state = None if self.rng is not None else take_state()

    def secure_tokens(self) -> None:
        """Copy the token losses if they are unchanged, because another thread is about to read
        them.
        """
        self.token_losses = hold(self._tokens())
        self._version = version_of(self.token_losses)

    def _tokens(self) -> Any:
        return self.token_losses if version_of(self.token_losses) == self._version else None

    def as_record(self) -> dict[str, Any]:
        """Return the entry as plain data."""
        return {
            "step": self.step,
            "loss": released(self.loss),
            "lr": released(self.lr),
            "grad_norm": released(self.grad_norm),
            "rng": released(self.rng) if self.rng is not None else digest_of_state(self.rng_state),
            "sample_ids": released(self.sample_ids),
            "sample_losses": self._losses_of_samples(),
            "token_counts": released(self.token_counts),
        }

    def worst_tokens(
        self, losses: Sequence[float] | None, num_samples: int
    ) -> list[dict[str, Any]]:
        """Return the token losses of the worst samples; `row` is the sample's position in the
        step.
        """
        losses = losses or ()
        # The worst first; NaN is worst.
        rows = sorted(
            range(len(losses)), key=lambda row: (losses[row] == losses[row], -losses[row])
        )
        known = [(row, self.token_row(row)) for row in rows[:num_samples]]
        return [{"row": row, "losses": tokens} for row, tokens in known if tokens is not None]

    def token_row(self, row: int) -> list[float] | None:
        """Return the token losses of one sample, if they are known. Waits for their device."""
        rows = self._tokens()
        counts = released(self.token_counts)
        if rows is None or row >= len(rows):
            return None
        losses = released(rows[row])
        if counts is not None:
            losses = losses[: int(counts[row])]
        return [round(loss, _DIGITS) for loss in losses]

    def _losses_of_samples(self) -> Any:
        """Return the sample losses as given, otherwise the means over each sample's tokens."""
        if self.sample_losses is not None or self.token_losses is None:
            return released(self.sample_losses)
        rows = map(released, released(self.token_losses))
        counts = released(self.token_counts)
        return [
            _mean(row if counts is None else row[: int(counts[place])])
            for place, row in enumerate(rows)
        ]


def _mean(row: Sequence[float]) -> float:
    # The sum of very large numbers may overflow where their mean does not.
    return sum(loss / len(row) for loss in row) if row else math.nan


def _log_error(error: Exception) -> None:
    _logger.warning("a spike record was not written: %r", error)


_Make: TypeAlias = Callable[[list[StepEntry]], dict[str, Any]]
"""Makes the contents of a record from the steps that belong to it."""


class SpikeWriter:
    """Writes the records of a recorder, in a thread of its own. If the values of a step cannot be
    read, they are left out.
    """

    def __init__(
        self, file: RecordFile, *, rank: int, worst_samples: int, data: Mapping[str, Any]
    ) -> None:
        """`data` describes the datasets; it is written before the first record."""
        self._file = file
        self._rank = rank
        self._worst_samples = worst_samples
        self._data = data
        self.worker = Worker("sonde-spikes", on_error=_log_error)
        """Creates and writes the records."""

    def begin(self, event: Event, entries: Iterable[StepEntry]) -> None:
        """Write an event that begins with the last entry, with the tokens of its worst samples."""

        def make(entries: list[StepEntry]) -> dict[str, Any]:
            steps = [entry.as_record() for entry in entries]
            tokens = (
                entries[-1].worst_tokens(steps[-1]["sample_losses"], self._worst_samples)
                if entries
                else []
            )
            return {
                "event": asdict(event),
                "generators": digests_now(),
                "steps": steps,
                "tokens": tokens,
            }

        self._write(SPIKE, event.first_step, make, entries)

    def end(self, event: Event, entries: Iterable[StepEntry], *, over: bool) -> None:
        """Write an event that is over, or was cut off by the end of the run."""

        def make(entries: list[StepEntry]) -> dict[str, Any]:
            return {
                "over": over,
                "event": asdict(event),
                "steps": [entry.as_record() for entry in entries],
            }

        self._write(SPIKE_END, event.first_step, make, entries)

    def samples(self, event: SampleEvent, entry: StepEntry) -> None:
        """Write the outlying samples of a step."""
        # Read their tokens now, if no device holds them: the step may still become a spike, which
        # needs them itself.
        is_here = not is_tensor(entry.token_losses) or entry.token_losses.is_cpu
        tokens = (
            {row: entry.token_row(row) for row in event.rows[: self._worst_samples]}
            if is_here
            else {}
        )

        def make(_: list[StepEntry]) -> dict[str, Any]:
            record = entry.as_record()
            ids = record["sample_ids"] or []
            losses = record["sample_losses"]
            counts = record["token_counts"]
            samples = [
                {
                    "row": row,
                    "sample": ids[row] if row < len(ids) else None,
                    "loss": losses[row],
                    "expected": expected,
                    "z": z,
                    "num_tokens": None if counts is None else counts[row],
                    "token_losses": tokens.get(row),
                }
                for row, z, expected in zip(event.rows, event.z, event.expected, strict=True)
            ]
            return {
                "num_samples": len(losses),
                "measure": event.measure,
                "limit": event.limit,
                "samples": samples,
            }

        self._write(SAMPLE, event.step, make)

    def _write(self, kind: str, step: int, make: _Make, entries: Iterable[StepEntry] = ()) -> None:
        head = self._head(kind, step=step)
        self.worker.do(partial(self._write_now, head, make, list(entries)))

    def _head(self, kind: str, **place: int) -> dict[str, Any]:
        return {"type": kind, "version": VERSION, **place, "time": time.time(), "rank": self._rank}

    def _write_now(self, head: dict[str, Any], make: _Make, entries: list[StepEntry]) -> None:
        data = self._data
        self._data = {}
        if data:
            self._file.append({**self._head(SPIKE_DATA), "datasets": data})
        try:
            record = {**head, **make(entries)}
        except Exception as error:  # noqa: BLE001
            # a user's value may fail in any way: the event itself is still written
            _logger.warning("a loss spike is recorded without its samples: %r", error)
            if not entries:
                return
            record = {**head, **make([]), "problem": repr(error)[:500]}
        self._file.append(record)
        for entry in entries:
            entry.token_losses = None  # they are large
