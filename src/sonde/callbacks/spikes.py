"""The spike recorder as a callback: it is shown every update, and says so once when an event begins.

A trainer with a run has one unless it is told otherwise (`TrainerSettings.watch_spikes`, or a `SpikeCallback` of your own with other
settings). The loss it judges is the mean over all ranks, so all of them see the same event and each writes its own samples. Single samples
are judged by the rank that had them. The detectors' state is part of every checkpoint, that of all ranks.
"""

import logging
import sys
from collections.abc import Sequence
from typing import Any, ClassVar, final

from typing_extensions import override

from sonde import ranks
from sonde.callbacks.base import Callback, Context
from sonde.run import Run
from sonde.spikes.recorder import SpikeRecorder
from sonde.spikes.spike_records import StepDetails

_logger = logging.getLogger("sonde")


def with_spikes(callbacks: Sequence[Callback], run: Run, data: object, *, seed: int) -> Sequence[Callback]:
    """The callbacks of a training into a run, and one that records spikes unless there is one."""
    if any(isinstance(one, SpikeCallback) for one in callbacks):
        return callbacks
    dataset = getattr(data, "dataset", None)
    named = {} if dataset is None else {getattr(dataset, "name", ""): dataset}
    return [*callbacks, SpikeCallback(run.spikes(datasets=named), seed=seed)]


@final
class SpikeCallback(Callback):
    """Shows a `SpikeRecorder` every update."""

    asks: ClassVar[bool] = False

    def __init__(self, recorder: SpikeRecorder, *, seed: int = 0) -> None:
        """`seed` is the training's: with the number of the update it identifies the random numbers of a step."""
        self.recorder = recorder
        self._seed = seed

    @override
    def on_step_end(self, context: Context) -> None:
        """Hand the update over, without reading any tensor; one without target tokens has no loss to judge."""
        if not context.weight:
            return
        outputs = context.outputs
        one = outputs[0] if len(outputs) == 1 else None
        details: StepDetails = {
            "sample_ids": list(one.sample_ids) if one else context.sample_ids,
            "sample_losses": one.sample_losses if one else _in_one(context.sample_losses),
            "token_losses": one.token_losses if one else _in_one(context.token_losses),
            "token_counts": one.token_counts if one else _in_one(context.token_counts),
            "lr": context.lr,
            "grad_norm": context.grad_norm,
            "rng": f"{self._seed}:{context.step - 1}",
        }
        event = self.recorder.observe(context.step, context.tensors["loss"], **details)
        if event is not None and context.rank == 0:
            _logger.warning(
                "%s at step %d: %s %.4g, expected %.4g; `sonde spikes %s --step %d` shows its samples",
                *(event.kind, event.first_step, event.metric, event.value, event.baseline),
                *(context.run_directory or "RUN", event.first_step),
            )

        found = self.recorder.sample_event
        if found is not None and found.is_worth_a_look:
            _logger.info(
                "a sample of step %d stands out, %.1f deviations above others of its length; `sonde spikes %s --step %d` shows it",
                *(found.step, found.z[0], context.run_directory or "RUN", found.step),
            )

    @override
    def on_run_end(self, context: Context) -> None:
        """Wait until everything is written."""
        self.recorder.flush()

    @override
    def state_dict(self) -> dict[str, Any]:
        """What the detectors know; of samples, on every rank. Every rank must call it."""
        state = self.recorder.state_dict()
        return {**state, "samples": ranks.gather(state["samples"])}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Back from it. With another number of ranks, new ones take what another knew."""
        samples = state.get("samples") or [None]
        self.recorder.load_state_dict({**state, "samples": samples[ranks.rank() % len(samples)]})


def _in_one(parts: Sequence[Any]) -> Any:
    """What several micro-batches gave, as one tensor, or as rows where they differ in width; None when one gave nothing."""
    if not parts or any(part is None for part in parts):
        return None
    if all(getattr(part, "ndim", 0) == 1 for part in parts):
        return sys.modules["torch"].cat(list(parts))
    return [row for part in parts for row in part]
