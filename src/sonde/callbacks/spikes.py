"""The spike recorder as a callback: it sees every step and warns once when an event begins.

A trainer with a run has one by default (see `TrainerSettings.watch_spikes`); add your own
`SpikeCallback` to use other settings. The loss it judges is the mean over all ranks, so all of them
see the same spike, and each writes its own samples. Single samples are judged by the rank that had
them. Every checkpoint contains the detector state of all ranks.
"""

import logging
import sys
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

from sonde import ranks
from sonde.callbacks.base import Callback
from sonde.callbacks.context import Context
from sonde.data.datasets import BlockDataset, PairDataset
from sonde.data.directory import DataDirectory
from sonde.errors import SondeError
from sonde.run import Run
from sonde.spikes.bits_watch import CharacterCounts
from sonde.spikes.recorder import SpikeRecorder
from sonde.spikes.step_entry import StepDetails, StepEntry

_logger = logging.getLogger("sonde")


def with_spikes(
    callbacks: Sequence[Callback], run: Run, data: object, *, seed: int
) -> Sequence[Callback]:
    """Return the callbacks, plus one that records spikes unless there is one already."""
    if any(isinstance(callback, SpikeCallback) for callback in callbacks):
        return callbacks
    dataset = getattr(data, "dataset", None)
    named = {} if dataset is None else {getattr(dataset, "name", ""): dataset}
    spikes = run.spikes(datasets=named, characters=TargetCharacters(dataset))
    return [*callbacks, SpikeCallback(spikes, seed=seed)]


class TargetCharacters:
    """Counts the characters of samples of a dataset of ours, whose tokenizer lies beside it."""

    def __init__(self, dataset: object) -> None:
        self._dataset = dataset
        self._counts: CharacterCounts | None = None
        self._is_possible = isinstance(dataset, (BlockDataset, PairDataset))

    def __call__(self, entry: StepEntry, rows: Sequence[int]) -> list[int] | None:
        """Return the number of characters of some rows of a step; None if it is not known."""
        if not self._is_possible:
            return None
        dataset: Any = self._dataset
        try:
            if self._counts is None:
                directory = DataDirectory(dataset.target.prefix.parent)
                self._counts = CharacterCounts(directory.tokenizer().decode)
            numbers = [entry.sample_ids[row][1] for row in rows]
            return [self._counts.count(dataset[number].target.tolist()) for number in numbers]
        except (SondeError, OSError, LookupError, TypeError, ValueError):
            self._is_possible = False  # without a tokenizer, only losses are watched
            return None


class SpikeCallback(Callback):
    """Passes every step to a `SpikeRecorder`. A trainer with a run has one without asking.

    ```python
    from sonde import SpikeCallback, SpikeRecorder

    watch = SpikeCallback(SpikeRecorder("spikes.jsonl"), seed=1)
    ```

    Pass it on: `trainer.train(stop=…, callbacks=[watch])`.
    """

    asks: ClassVar[bool] = False

    def __init__(self, recorder: SpikeRecorder, *, seed: int = 0) -> None:
        """Prepare to watch.

        Args:
            recorder: Receives every step.
            seed: The seed of the training; it and the number of the step determine the random
                numbers of the step.
        """
        self.recorder = recorder
        self._seed = seed

    def on_step_end(self, context: Context) -> None:
        """Pass the step to the recorder without reading any tensor. Steps without target tokens are
        left out.
        """
        if not context.weight:
            return
        output = context.outputs[0] if len(context.outputs) == 1 else _joined(context.outputs)
        details: StepDetails = {
            "sample_ids": list(output.sample_ids),
            "sample_losses": output.sample_losses,
            "token_losses": output.token_losses,
            "token_counts": output.token_counts,
            "lr": context.lr,
            "grad_norm": context.grad_norm,
            "rng": f"{self._seed}:{context.step - 1}",
        }
        event = self.recorder.observe(context.step, context.tensors["loss"], **details)
        if event is not None and context.rank == 0:
            _logger.warning(
                "%s at step %d: %s %.4g, expected %.4g; `sonde spikes %s --step %d` shows its"
                " samples",
                *(event.kind, event.first_step, event.metric, event.value, event.baseline),
                *(context.run_directory or "RUN", event.first_step),
            )
        found = self.recorder.sample_event
        if found is not None and found.is_worth_a_look:
            _logger.info(
                "a sample of step %d stands out: its %s, %.1f deviations above others of its"
                " length; `sonde spikes %s --step %d` shows it",
                *(found.step, found.measure, found.z[0]),
                *(context.run_directory or "RUN", found.step),
            )

    def on_run_end(self, context: Context) -> None:
        """Wait until everything is written."""
        self.recorder.flush()

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the detectors, with the sample detectors of all ranks. Every rank
        must call it.
        """
        state = self.recorder.state_dict()
        return {**state, "samples": ranks.gather(state["samples"])}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore from `state_dict`. If there are more ranks than before, new ones take another
        rank's state.
        """
        samples = state.get("samples") or [None]
        self.recorder.load_state_dict({**state, "samples": samples[ranks.rank() % len(samples)]})


def _joined(outputs: Sequence[Any]) -> Any:
    """Return the samples of several micro-batches as if they were one; of none, if this rank ran
    out of memory.
    """
    values = ("sample_losses", "token_losses", "token_counts")
    joined = {name: _in_one([getattr(output, name) for output in outputs]) for name in values}
    return SimpleNamespace(
        sample_ids=[sample for output in outputs for sample in output.sample_ids], **joined
    )


def _in_one(parts: Sequence[Any]) -> Any:
    """Join the values of several micro-batches into one tensor, or rows if their widths differ;
    None if one is missing.
    """
    if not parts or any(part is None for part in parts):
        return None
    if all(getattr(part, "ndim", 0) == 1 for part in parts):
        return sys.modules["torch"].cat(list(parts))
    return [row for part in parts for row in part]
