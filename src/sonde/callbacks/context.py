"""What a callback may see of a training and ask of it, and who may change it.

The trainer owns `ContextValues` and writes them as training goes on. Callbacks get a `Context`,
which shows the values as read-only properties and collects what callbacks ask for. One of each
lives for a whole training; what a context shows is valid during the call.
"""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sonde.checkpoint.folder import Keep
from sonde.errors import SettingError


@dataclass(frozen=True, kw_only=True, slots=True)
class CheckpointPlan:
    """Where checkpoints are, and which ones are kept."""

    folder: Path | str
    """The folder, or its URL, that checkpoints are saved to."""
    load_from: str | os.PathLike[str] | None = None
    """Where the first start restores from; None means `folder`."""
    must_load: bool = False
    """Whether it is an error if nothing can be restored."""
    saves: bool = True
    """Whether to save at all; False only restores."""
    keep: Keep = field(default_factory=Keep)
    """Which checkpoints to keep."""


@dataclass(kw_only=True, slots=True)
class ContextValues:
    """The values that a context shows. They belong to the trainer; `Context` says what each is."""

    rank: int = 0
    world_size: int = 1
    run_directory: Path | None = None
    step: int = 0
    epoch: int = 1
    num_epochs_done: int = 0
    lr: float = 0.0
    tensors: Mapping[str, Any] = field(default_factory=dict)
    weight: Any = 0
    grad_norm: Any = None
    step_seconds: float = 0.0
    logged: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    outputs: Sequence[Any] = ()
    distrusted: str | None = None
    checkpoint_plan: CheckpointPlan | None = None


class Context:
    """What a callback may see and ask for. Read-only: only the trainer changes the values.

    One object lives for a whole training; its values are valid during the call.
    """

    def __init__(self, values: ContextValues | None = None) -> None:
        """`values` are the trainer's own: what it writes there is what callbacks see."""
        self._values = values or ContextValues()
        self.requests: dict[str, str] = {}
        """Pending requests with their reasons."""
        self.closing: list[Any] = []
        """Resources to close at the end."""

    @property
    def rank(self) -> int:
        """The rank of this process."""
        return self._values.rank

    @property
    def world_size(self) -> int:
        """The number of ranks."""
        return self._values.world_size

    @property
    def run_directory(self) -> Path | None:
        """The run directory, if the training has one."""
        return self._values.run_directory

    @property
    def step(self) -> int:
        """Updates made so far: 0 before the first, 1 at the end of the first step."""
        return self._values.step

    @property
    def epoch(self) -> int:
        """The current epoch, starting at 1."""
        return self._values.epoch

    @property
    def num_epochs_done(self) -> int:
        """Completed epochs."""
        return self._values.num_epochs_done

    @property
    def lr(self) -> float:
        """The learning rate of the last update."""
        return self._values.lr

    @property
    def tensors(self) -> Mapping[str, Any]:
        """The task's named values for the last micro-batch, always including `loss`."""
        return self._values.tensors

    @property
    def weight(self) -> Any:
        """Target tokens of the last update, over all ranks."""
        return self._values.weight

    @property
    def grad_norm(self) -> Any:
        """Global gradient norm of the last update before clipping; None if it was not computed."""
        return self._values.grad_norm

    @property
    def step_seconds(self) -> float:
        """Wall time of the last update in seconds."""
        return self._values.step_seconds

    @property
    def logged(self) -> Mapping[str, float]:
        """Values that the task logged in the last update (`metrics.log_scalar`), by name.

        A callback can add values in the same way in `on_step_end`; they then appear in the log and
        in the update's record.
        """
        return self._values.logged

    @property
    def metrics(self) -> Mapping[str, Any]:
        """Results of the evaluation, or of the last one at other hooks."""
        return self._values.metrics

    @property
    def outputs(self) -> Sequence[Any]:
        """The task's outputs in the last update on this rank: a `StepOutput` for each micro-batch,
        with the ids and losses of its samples.
        """
        return self._values.outputs

    @property
    def distrusted(self) -> str | None:
        """Why the weights are suspect; None if they are not."""
        return self._values.distrusted

    @property
    def checkpoint_plan(self) -> CheckpointPlan | None:
        """The checkpoint plan that a callback has set, if any."""
        return self._values.checkpoint_plan

    def distrust(self, reason: str | None) -> None:
        """Mark checkpoints from now on as suspect, so that they do not replace good ones; None ends
        this.
        """
        self._values.distrusted = reason

    def plan_checkpoints(self, plan: CheckpointPlan) -> None:
        """In `on_setup`: set where to restore from and save to. The trainer then saves on request
        and at the end.
        """
        if self.checkpoint_plan is not None:
            raise SettingError(
                f"two callbacks say where checkpoints are: {self.checkpoint_plan.folder} and"
                f" {plan.folder}",
                hint="use one CheckpointCallback",
            )
        self._values.checkpoint_plan = plan

    def add_metrics(self, metrics: Mapping[str, float]) -> None:
        """In `on_evaluation_end`: add results to the evaluation. The next checkpoint includes
        them.
        """
        self._values.metrics = {**self.metrics, **metrics}

    def close_at_end(self, resource: Any) -> None:
        """Have `resource.close()` called once on rank 0, after the last hook of every callback.
        None is ignored.
        """
        if (
            self.rank == 0
            and resource is not None
            and not any(resource is other for other in self.closing)
        ):
            self.closing.append(resource)

    def ask_to_stop(self, reason: str) -> None:
        """End the run after this step, with an evaluation and a checkpoint."""
        self.requests.setdefault("stop", reason)

    def ask_to_give_up(self, reason: str) -> None:
        """End the run after this step without an evaluation or a checkpoint, because its state is
        not worth keeping.
        """
        self.requests.setdefault("stop", reason)
        self.requests.setdefault("give up", reason)

    def ask_to_save(self, reason: str = "asked") -> None:
        """Save a checkpoint after this step."""
        self.requests.setdefault("save", reason)

    def ask_to_evaluate(self, reason: str = "asked") -> None:
        """Evaluate after this step."""
        self.requests.setdefault("evaluate", reason)
