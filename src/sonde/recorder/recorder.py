"""`Recorder`: follows your own training loop, judges each update before the optimizer moves, and
keeps what a replay needs.

    with sonde.Recorder("runs/mine", model, optimizer, decode=tokenizer.decode) as recorder:
        for batch in loader:
            loss = recorder.step(train_step, batch)

`train_step(batch)` is your existing loop body: forward, backward, clipping, `optimizer.step()`,
scheduler. Training with and without a recorder is the same to the bit. Nothing raises into the loop
except what was asked for (docs/any-loop.md has the list). `SONDE=off` in the environment turns
every call into a plain one. The way of an update through the recorder is in pipeline.py; what it
costs is in benchmarks/flight.py.
"""

import inspect
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sonde import ranks
from sonde.errors import SettingError, SondeError, TrainingStopped, did_you_mean
from sonde.forensics.checks.check_report import CheckReport
from sonde.recorder.alerting import EventAlerts
from sonde.recorder.checking.session import CheckSession, check_here
from sonde.recorder.guard import PASSES, Guard, guarded
from sonde.recorder.hooks import STANDING_STILL
from sonde.recorder.judgement import Judgement
from sonde.recorder.keeper import Keeper
from sonde.recorder.opening import make_visible, tell_what_is_watched
from sonde.recorder.options import OnEvent, RecorderOptions, check_on_event, split_on_event
from sonde.recorder.pipeline import Pipeline
from sonde.recorder.samples import Rewound
from sonde.recorder.takeover import give_up, take_over
from sonde.recorder.training import Training
from sonde.records.replay_order import is_check
from sonde.run import Run
from sonde.train import determinism
from sonde.train.saving import Stateful
from sonde.train.task import has_state

_T = TypeVar("_T")

_open: "weakref.WeakSet[Recorder]" = weakref.WeakSet()
"""The recorders of this process, which a forked child must not use."""


class Recorder:
    """Records one training. Use it in a `with` block, or call `close`; a clean exit of Python
    closes it too.

    ```python
    import torch
    import sonde

    model = torch.nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train_step(batch):
        loss = model(batch).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    with sonde.Recorder("runs/mine", model, optimizer) as recorder:
        for batch in torch.randn(20, 4, 8):
            recorder.step(train_step, batch)
    ```
    """

    def __init__(
        self,
        run: "Run | str | os.PathLike[str]",
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        decode: Callable[[list[int]], str] | None = None,
        sample_ids: Callable[[Any], Any] | None = None,
        config: object = None,
        on_event: OnEvent = "record",
        options: RecorderOptions | None = None,
        **named: Stateful,
    ) -> None:
        """Start recording.

        Args:
            run: A directory, or a `Run` that you opened.
            model: What the loop calls, including any wrapper and compilation.
            optimizer: The optimizer of the loop.
            decode: Converts a list of tokens to text. Without it, reports have no text.
            sample_ids: Returns the IDs of the samples in a batch: numbers, or pairs of dataset and
                number. A batch that is a dict may hold them under the key `sample_ids` instead.
            config: The hyperparameters: any value.
            on_event: What to do at an event (`"record"`, `"skip"`, `"stop"` or `"heal"`), who gets
                a message (a function, a command, the URL of a webhook), or a list of both.
            options: What is watched, what is kept, and what an event may cost.
            named: Everything else with a `state_dict`, by name: `scheduler=`, `scaler=`.
        """
        self._is_off = os.environ.get("SONDE", "").lower() == "off"
        self._is_closed = False
        if self._is_off:
            return
        options = options or RecorderOptions()
        if is_check():  # its run is thrown away
            options = replace(options, max_bytes=0)
            on_event = "record"
        reaction, targets = split_on_event(on_event)
        check_on_event(reaction, options)
        innermost = _innermost(optimizer)
        _check_arguments(model, innermost, named)
        # whether closing the recorder closes the run
        self.owns_run = not isinstance(run, Run)
        self.run = run if isinstance(run, Run) else Run(run, config=config)
        """The run that is recorded."""
        self.guard = Guard(self.run)
        self.training = Training(self.run, options, model, innermost, dict(named), decode)
        """The model, the optimizer and everything else that is recorded."""
        self.keeper = Keeper(self.training, self.guard)
        alerts = EventAlerts(self.run, targets)
        self._judgement = Judgement(self.training, self.keeper, self.guard, reaction, alerts)
        self._pipeline = Pipeline(
            self.training, self.keeper, self._judgement, self.guard, sample_ids
        )
        self._pipeline.before_first_update = partial(_set_aside_earlier_attempt, self.run)
        self._data: Rewound | None = None
        self._has_told_opening = is_check()
        self._check: CheckSession | None = None
        if is_check():
            make_visible()
            self.keeper.copies_batches = True
            self._check = CheckSession(self.training, self._pipeline.first_look.steps)
        if self.run.is_replay or self._check is not None or reaction == "heal":
            self._pipeline.before_update = self._before_update
        self.training.hooks.observer = self._pipeline
        self._pipeline.state_watch.listen(self._pipeline.num_applied)
        self.run.event(determinism.EVENT, **determinism.describe_determinism())
        self.run.closing.append(self.close)
        _watch_forks(self)

    def step(self, train_step: Callable[..., _T], batch: Any, *, last: bool | None = None) -> _T:
        """Call `train_step(batch)`, which does everything for one batch, record it, and return its
        result.

        A scaler passed by name may skip an update whose gradients overflow; it is recorded as
        skipped. With gradient accumulation, say which micro-batch is the last of its update: then
        `train_step(batch, last)` is called, and must step the optimizer if `last` is true. Without
        `last`, an update ends when the optimizer has moved.
        """
        if self._is_off or self._is_closed:
            return self._plain_step(train_step, batch, last)
        if self.run.is_replay:
            take_over(self.training, train_step, batch)  # and end the process
        if self._check is not None:
            # After the first updates it makes the check, and ends the process.
            self._check.before_batch(train_step)
        pipeline = self._pipeline
        hooks = self.training.hooks
        if hooks.observer is not pipeline or (STANDING_STILL and not hooks.heeds()):
            return self._plain_step(train_step, batch, last)  # it is run again
        if self.training.step_function is None:
            pipeline.begin_steps(train_step)
        self.training.step_function = train_step
        try:
            pipeline.begin_batch(batch, last)
            pipeline.is_inside = True
            result = train_step(batch) if last is None else train_step(batch, last)
        except BaseException as error:
            pipeline.failed(error)
            if self._check is not None:
                self._check.failed(error, batch)
            raise
        pipeline.end_batch(result, last)
        if not self._has_told_opening and pipeline.num_updates:
            self._tell_opening()
        if self._judgement.healing is not None:
            self._go_back_if_called()
        return result

    def check(
        self, batches: Iterable[Any], train_step: Callable[..., Any] | None = None
    ) -> CheckReport:
        """Look for mistakes by experiment with the first of some batches, print what was found, and
        return it. Afterwards training goes on as if nothing had happened, to the bit.

        `train_step` is the step function; without it, the one that `step` was last called with.
        """
        if self._is_off:
            return CheckReport(results=())
        report = check_here(self.training, batches, train_step)
        sys.stdout.write(report.text())
        return report

    def batches(self, loader: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of a loader, for `on_event="heal"`.

        A loader with a `state_dict` goes back with the training and resumes with `restore`. Rows
        that healing left out are removed from their batches, and empty batches are skipped.
        """
        if self._is_off:
            return iter(loader)
        if has_state(loader):
            loader = self._data = self.training.add("data", Rewound(loader))
            self._pipeline.before_update = self._before_update
        return self._judgement.without_left_out(loader, self._pipeline.intake.names_of)

    def loss(self, loss: Tensor, *, token_losses: Tensor | None = None) -> Tensor:
        """Report the loss of the micro-batch, before backward and not divided by anything. Returns
        the loss. `token_losses` are needed from a fused kernel only: rows by tokens, NaN where a
        token does not count.
        """
        if self._is_off or (self._pipeline.meets_compilation and torch.compiler.is_compiling()):
            return loss  # in a compiled graph: it is taken where backward begins
        if not STANDING_STILL or self.training.hooks.heeds():
            self.training.hooks.observer.loss_reported(loss, token_losses)
        return loss

    def grad_norm(self, norm: Any) -> Any:
        """Report the gradient norm before clipping. Returns the norm.
        `torch.nn.utils.clip_grad_norm_` is observed automatically.
        """
        if self._is_off or (self._pipeline.meets_compilation and torch.compiler.is_compiling()):
            return norm
        if not STANDING_STILL or self.training.hooks.heeds():
            self.training.hooks.observer.norm_seen(norm)
        return norm

    def end_update(self) -> None:
        """End the update, also if the optimizer was not called. For hosts, which know when."""
        if not self._is_off:
            self._pipeline.end_update()

    @property
    def num_updates(self) -> int:
        """The number of completed updates."""
        return 0 if self._is_off else self._pipeline.num_updates

    @num_updates.setter
    def num_updates(self, number: int) -> None:
        if not self._is_off:
            self._pipeline.num_updates = number

    @property
    def is_repeating(self) -> bool:
        """Whether a step is being run again, at a scene or in a replay."""
        return not self._is_off and not self.training.hooks.tells(self._pipeline)

    def checkpoint(self, path: str | os.PathLike[str], *, resume: Sequence[str] = ()) -> None:
        """Record that a checkpoint was written: a resume is checked, and steps are replayed from
        it. Call it right after writing, on every rank that has a part in it. Calls of `torch.save`
        with the weights or the optimizer are noticed without it.

        `resume` are the words that `sonde replay --again` adds to the script's command line to
        resume from it, such as `["--resume", path]`.
        """
        if self._is_off or self._is_closed:
            return
        step = self._pipeline.num_applied()
        if step is not None:
            self._pipeline.state_watch.saved(step, os.fspath(path), [str(word) for word in resume])

    def expect(self, *parts: str) -> None:
        """Accept that parts of the state are not as they were when this run resumes, such as
        "rate" or "data". Call it before the first step.
        """
        if not self._is_off:
            self._pipeline.state_watch.expect(parts)

    def leave_saves_to_the_host(self) -> None:
        """Notice no calls of `torch.save`. For hosts, which call `checkpoint` themselves."""
        if not self._is_off:
            self._pipeline.state_watch.hears_saves = False

    def restore(self) -> int:
        """Resume from the newest kept state, if any, and return its number of updates. Every rank
        must call this. All of the state is restored, or nothing.
        """
        if self._is_off:
            return 0
        step = ranks.found_by_rank_0(lambda: self.keeper.store.folder.newest()[0])
        return 0 if step is None or self.run.is_replay else self._restore(int(step))

    def flush(self) -> None:
        """Judge and write everything that is pending."""
        if self._is_off or self._is_closed:
            return
        self._judgement.flush()

    def close(self) -> None:
        """Stop recording: remove the hooks and write everything. A second call does nothing."""
        if self._is_off or self._is_closed:
            return
        if self._check is not None:
            self._check.finish()  # a script with fewer updates ends here
        self._is_closed = True
        self._pipeline.state_watch.close(self._pipeline.num_applied())
        self.training.hooks.close()
        try:
            self._judgement.flush()
            self.keeper.close()
        except PASSES:
            raise
        except Exception as error:  # noqa: BLE001  the run must still be closed
            self.guard.catch("the last steps may not be recorded", error)
        finally:
            if self.owns_run:
                self.run.close()

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._is_off:
            return
        if self.owns_run:
            self.run.__exit__(kind, error, trace)  # closes this recorder too
        else:
            self.close()

    def _plain_step(self, train_step: Callable[..., _T], batch: Any, last: bool | None) -> _T:
        if self._is_closed:
            self.guard.tell("closed", "sonde: the recorder is closed, so nothing is recorded")
        return train_step(batch) if last is None else train_step(batch, last)

    @guarded("what is watched is not told")
    def _tell_opening(self) -> None:
        self._has_told_opening = True
        self.keeper.plan_states(self._pipeline.num_updates)
        tell_what_is_watched(self.training, self.keeper, self._pipeline.why_no_rows or "")

    def _restore(self, step: int) -> int:
        self.training.restore(self.training.load(step))
        self.num_updates = step
        self.run.event("resume", step=step)
        return step

    def _before_update(self) -> None:
        if self.run.is_replay:
            give_up(_without_step_function("replayed in a new process"))
        if self._check is not None and not self._check.has_begun and self._pipeline.num_updates:
            give_up(_without_step_function("checked"))
        self._go_back_if_called()
        if self._data is not None:
            self._data.begin_update()

    def _go_back_if_called(self) -> None:
        """Between two updates, go back if the last one requires it."""
        healing = self._judgement.healing
        if healing is None or healing.call is None:
            return
        self.flush()
        act = healing.act()
        try:
            step = self._restore(act.checkpoint)
        except SondeError as error:
            raise TrainingStopped(
                f"healing ended: the state after {act.checkpoint} steps cannot be restored",
                cause=error.message,
                hint=error.hint,
            ) from error
        self._judgement.go_back(step)
        self.keeper.begin_again()

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy, such as that in a copy of an object that holds it, records nothing."""
        return _switched_off, ()

    def _leave_to_the_parent(self) -> None:
        """In a forked child, become a recorder that does nothing."""
        self._is_off = True
        self.training.hooks.leave_to_the_parent()


def _switched_off() -> Recorder:
    """Return a recorder that only calls the loop's functions."""
    recorder = Recorder.__new__(Recorder)
    recorder._is_off = True  # noqa: SLF001  of this module
    recorder._is_closed = False  # noqa: SLF001
    return recorder


def _set_aside_earlier_attempt(run: Run) -> None:
    """Move aside what an earlier attempt in this directory recorded, so that it is not mixed with
    this one.
    """
    try:
        if run.rank == 0 and run.resumed:
            make_visible()
            run.begin_attempt()
    finally:
        ranks.any_rank(False)  # the others wait until the folders have been moved
    if run.rank > 0 and run.resumed:
        run.begin_attempt()


def _without_step_function(what: str) -> SettingError:
    """Return why a loop that is followed by hooks alone cannot be replayed, or checked."""
    return SettingError(
        f"this loop cannot be {what}",
        cause="it does not hand its step function to the recorder: hooks alone follow it",
        hint=(
            "put all that happens to one batch into a function, and call"
            " recorder.step(function, batch)"
        ),
    )


def _innermost(optimizer: Any) -> Any:
    """Return the optimizer that does the updates: Accelerate wraps it in another, which has no
    hooks.
    """
    while isinstance(getattr(optimizer, "optimizer", None), torch.optim.Optimizer):
        optimizer = optimizer.optimizer
    return optimizer


def _check_arguments(model: Any, optimizer: Any, named: dict[str, Any]) -> None:
    if not isinstance(model, nn.Module):
        raise SettingError(f"model must be a torch.nn.Module, not {type(model).__name__}")
    for part in (model, optimizer):
        if type(part).__module__.partition(".")[0] == "deepspeed":
            raise deepspeed_refused(type(part).__name__)
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise SettingError(
            f"optimizer must be a torch.optim.Optimizer, not {type(optimizer).__name__}"
        )
    for name, part in named.items():
        if not (hasattr(part, "state_dict") and hasattr(part, "load_state_dict")):
            raise SettingError(
                f"{name}={part!r:.80} has no state_dict",
                hint=did_you_mean(
                    name,
                    inspect.signature(Recorder).parameters,
                    "pass objects with a state by name, such as scheduler=scheduler",
                ),
            )


def deepspeed_refused(name: str) -> SettingError:
    """Return the error for a training with DeepSpeed; `name` is the part of it that was met."""
    return SettingError(
        f"sonde cannot record a training with DeepSpeed ({name})",
        cause="DeepSpeed makes the update itself, so it can neither be judged before nor replayed",
        hint="train with FSDP2 or DistributedDataParallel; `sonde why` reads the log of this one",
    )


def _watch_forks(recorder: Recorder) -> None:
    """Make a recorder one that does nothing in forked children, which must not write, close or wait
    for the parent's run.
    """
    if not _open:
        os.register_at_fork(after_in_child=_in_child)
    _open.add(recorder)


def _in_child() -> None:
    for recorder in _open:
        recorder._leave_to_the_parent()  # noqa: SLF001  of this module
