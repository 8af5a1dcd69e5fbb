"""`SondeCallback` and `SondeLogger` for Lightning, as `lightning` or `pytorch_lightning`.

    trainer = Trainer(…, callbacks=[SondeCallback("runs/x", decode=tokenizer.decode)])

During `fit`, what Lightning does with a batch is routed through the recorder: forward,
backward, clipping and the optimizer step, with automatic or manual optimization. The loss comes
from `on_before_backward`. The strategy's `process_dataloader` and `save_checkpoint` are wrapped to
observe the training data and checkpoints. Everything is restored at the end.

Lightning's checkpoints contain neither random generators nor the position in the epoch. The
callback's state does, so that resuming in the middle of an epoch sees the right samples.
"""

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

import torch

from sonde import ranks
from sonde.integrations.hosts import (
    Hosted,
    note_checkpoint,
    note_state,
    require,
    resume_recording,
    skip_list_of,
)
from sonde.recorder.options import OnEvent, RecorderOptions
from sonde.recorder.recorder import Recorder, deepspeed_refused
from sonde.recorder.samples import BatchOrder, follow
from sonde.records.manifest import FAILED, FINISHED
from sonde.records.replay_order import is_check, order_of_process
from sonde.run import Run
from sonde.train.determinism import generators, set_generators

# A trainer of one package rejects callbacks of the other, so use the one that is already imported.
if ("pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules) or find_spec(
    "lightning"
) is None:
    from pytorch_lightning import Callback
    from pytorch_lightning.loggers import Logger

    _PACKAGE = "pytorch-lightning"
else:
    from lightning.pytorch import Callback
    from lightning.pytorch.loggers import Logger

    _PACKAGE = "lightning"

OLDEST: Final = "2.5"
"""2.1 and 2.2 cannot be imported with a current setuptools, which no longer has `pkg_resources`."""
_HOST: Final = "lightning"
_BATCH: Final = "sonde.batch"
_INDEX: Final = "sonde.index"
_LAST: Final = "sonde.last"
_OWN: Final = frozenset((_INDEX, _LAST))


class SondeLogger(Logger):  # type: ignore[misc]  # lightning is Any to the type checker
    """A Lightning logger that writes into a run; shared with a `SondeCallback` that uses the same
    directory.
    """

    name = "sonde"
    version = ""
    save_dir = ""

    def __init__(self, directory: str | Path) -> None:
        super().__init__()
        require(_PACKAGE, OLDEST)
        self.save_dir = str(Path(directory))
        self.version = Path(directory).name
        self._run: Run | None = None
        self._hparams: dict[str, Any] = {}

    def open(self, settings: Mapping[str, Any], rank: int, world_size: int) -> Run:
        """Open the run if necessary and return it."""
        if self._run is None:
            self._run = Run(self.save_dir, config=dict(settings), rank=rank, world_size=world_size)
        return self._run

    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """Store the hyperparameters as settings of the run, if this logger opens it."""
        if ranks.rank() == 0 and params:
            self._hparams |= dict(params) if isinstance(params, Mapping) else vars(params)

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Log one record."""
        if ranks.rank() == 0:
            self.open(self._hparams, 0, ranks.world_size()).logger.log(
                step=step or 0, data=dict(metrics)
            )

    def finalize(self, status: str) -> None:
        """Close the run."""
        run = self._run
        self._run = None
        if run is not None:
            run.close(status=FAILED if status == "failed" else FINISHED)


class SondeCallback(Hosted, Callback):  # type: ignore[misc]  # lightning is Any to the type checker
    """A callback that records one Trainer into one run directory.

    ```python
    import lightning
    import torch
    from sonde.integrations.lightning import SondeCallback

    class Module(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def training_step(self, batch):
            return self.layer(batch).square().mean()

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.1)

    trainer = lightning.Trainer(
        max_steps=4, accelerator="cpu", logger=False, callbacks=[SondeCallback("runs/mine")]
    )
    trainer.fit(Module(), torch.utils.data.DataLoader(torch.randn(32, 4), batch_size=4))
    ```
    """

    def __init__(
        self,
        directory: str | Path,
        *,
        decode: Callable[[list[int]], str] | None = None,
        on_event: OnEvent = "record",
        options: RecorderOptions | None = None,
    ) -> None:
        """Prepare to record; the run is opened when training begins.

        Args:
            directory: The directory of the run.
            decode: Converts a list of tokens to text. Without it, reports have no text.
            on_event: What to do at an event, and who gets a message, as for a `Recorder`.
            options: The options of the recorder.
        """
        super().__init__(_PACKAGE, OLDEST, directory, on_event, options)
        self.is_from_environment = False
        """Whether nobody wrote it into the script (lightning_factory.py)."""
        self._decode = decode
        self._order: BatchOrder | None = None
        self._numbers: Sequence[int] | None = None
        self._loaded: Mapping[str, Any] | None = None
        """The state that the Trainer resumes from."""

    @property
    def state_key(self) -> str:
        """The name of its state in a checkpoint: another one for that of the environment, because
        Lightning refuses two callbacks with one name.
        """
        own: str = super().state_key
        return f"{own}, from the environment" if self.is_from_environment else own

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Open the run and start recording."""
        if stage != "fit":
            return
        self._end()
        if self._is_off or not self._is_first(trainer):
            return
        if type(trainer.strategy).__name__ == "DeepSpeedStrategy":
            raise deepspeed_refused("DeepSpeedStrategy")
        self._trainer = trainer
        self._order = None
        hparams = dict(getattr(trainer.lightning_module, "hparams", {}))
        logger = next(
            (logger for logger in trainer.loggers if isinstance(logger, SondeLogger)), None
        )
        if logger is not None and Path(logger.save_dir).absolute() == self._directory.absolute():
            self.run = logger.open(hparams, trainer.global_rank, trainer.world_size)
        else:
            self.run = Run(
                self._directory,
                config=hparams,
                rank=trainer.global_rank,
                world_size=trainer.world_size,
            )
        epoch_loop = trainer.fit_loop.epoch_loop
        self._automatic = self._wrap(epoch_loop.automatic_optimization, "run", self._run_automatic)
        self._manual = self._wrap(epoch_loop.manual_optimization, "run", self._run_manual)
        self._process = self._wrap(trainer.strategy, "process_dataloader", self._process_dataloader)
        self._save = self._wrap(trainer.strategy, "save_checkpoint", self._save_checkpoint)
        if order_of_process() is not None:
            trainer.loggers = []
            trainer.num_sanity_val_steps = 0

    def _is_first(self, trainer: Any) -> bool:
        """Return whether no other callback records this Trainer: the script may have one, and the
        environment another.
        """
        own = [callback for callback in trainer.callbacks if isinstance(callback, SondeCallback)]
        return own[0] is self

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: torch.Tensor) -> None:
        """Record the loss, which Lightning has divided by the number of accumulated batches."""
        if self._recorder is not None:
            num = trainer.accumulate_grad_batches
            self._recorder.loss(
                loss * num if pl_module.automatic_optimization and num > 1 else loss
            )

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Stop recording and close the run."""
        if stage == "fit":
            self._end()
            self._loaded = None

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Close the run as failed."""
        if self.run is not None:
            self.run.close(status=FAILED, reason=f"{type(exception).__name__}: {exception}"[:500])

    def state_dict(self) -> dict[str, Any]:
        """Return what a resume needs and Lightning does not save: the position in the epoch, the
        generators of every rank, and the spike recorder's state.
        """
        if self.run is None:
            return {}
        return {
            "order": None if self._order is None else self._order.state_dict(),
            "ranks": ranks.gather(generators()),
            "spikes": self.run.spikes().state_dict() if self._recorder is not None else None,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Keep the state from the checkpoint for the resume."""
        self._loaded = state_dict or None

    def _process_dataloader(self, dataloader: Any) -> Any:
        """Replaces the strategy's `process_dataloader`, which Lightning calls for every loader
        before iterating it.
        """
        found = self._process(dataloader)
        if self._trainer.training and self.run is not None:
            self._order = follow(found, skip_list_of(self.run))
            if self._order is not None and self._loaded is not None and self._loaded.get("order"):
                self._order.load_state_dict(self._loaded["order"])
        return found

    def _save_checkpoint(self, checkpoint: Any, filepath: Any, *args: Any, **kwargs: Any) -> None:
        if is_check():
            return
        if self._recorder is not None:
            # After a kill it resumes behind these steps, so their records must be there.
            self._recorder.flush()
        self._save(checkpoint, filepath, *args, **kwargs)
        note_state(self._recorder, filepath)
        if self.run is not None and self.run.rank == 0 and not self.run.is_replay:
            note_checkpoint(self.run, _HOST, self._trainer.global_step, filepath)

    def _run_automatic(
        self, optimizer: Any, batch_idx: int, kwargs: "OrderedDict[str, Any]"
    ) -> Any:
        return self._step(kwargs, batch_idx, partial(self._automatic, optimizer))

    def _run_manual(self, kwargs: "OrderedDict[str, Any]") -> Any:
        return self._step(
            kwargs,
            self._trainer.fit_loop.epoch_loop.batch_idx,
            lambda _, given: self._manual(given),
        )

    def _step(
        self, kwargs: "OrderedDict[str, Any]", batch_idx: int, make: Callable[[int, Any], Any]
    ) -> Any:
        """Route everything that Lightning does with one batch through the recorder."""
        trainer = self._trainer
        recorder = self._recorder or self._begin(self._trainer.strategy.model)
        self._numbers = None if self._order is None else self._order.taken()
        place = next(iter(kwargs))
        whole = kwargs[place]
        is_dict = type(whole) is dict
        batch = {
            **(whole if is_dict else {_BATCH: whole}),
            _INDEX: batch_idx,
            # Lightning has no public way to ask whether this batch completes an update.
            _LAST: not trainer.fit_loop._should_accumulate(),  # noqa: SLF001
        }
        outputs: list[Any] = []

        def step(given: dict[str, Any]) -> Any:
            if is_dict:
                own = {name: value for name, value in given.items() if name not in _OWN}
            else:
                own = given[_BATCH]
            named = OrderedDict({**kwargs, place: own})
            if "batch_idx" in named:
                named["batch_idx"] = given[_INDEX]
            if not recorder.is_repeating:
                outputs.append(make(given[_INDEX], named))
                return
            with self._once_more(given, moves=recorder.run.is_replay):
                outputs.append(make(given[_INDEX], named))

        recorder.step(step, batch)
        return outputs[-1]

    @contextmanager
    def _once_more(self, given: Mapping[str, Any], *, moves: bool) -> Iterator[None]:
        """Replay a batch within the block: nothing is logged, and the optimizer steps only where it
        did originally.
        """
        module = self._trainer.lightning_module
        loop = self._trainer.fit_loop
        replaced = {"log": module, "log_dict": module, "_should_accumulate": loop}
        module.log = module.log_dict = lambda *_, **__: None
        loop._should_accumulate = lambda: not moves or not given[_LAST]  # noqa: SLF001
        try:
            yield
        finally:
            for name, owner in replaced.items():
                owner.__dict__.pop(name, None)

    def _begin(self, model: Any) -> Recorder:
        trainer = self._trainer
        run = self.run
        assert run is not None
        first, *others = trainer.optimizers
        named: dict[str, Any] = {
            f"optimizer_{at}": optimizer for at, optimizer in enumerate(others, 1)
        }
        named |= {
            f"scheduler_{at}": config.scheduler
            for at, config in enumerate(trainer.lr_scheduler_configs)
        }
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        if scaler is not None:
            named["scaler"] = scaler
        self._recorder = Recorder(
            run,
            model,
            first,
            decode=self._decode,
            sample_ids=lambda batch: self._numbers or batch.get("sample_ids"),
            on_event=self._on_event,
            options=self._options,
            **named,
        )
        self._recorder.leave_saves_to_the_host()
        loaded = self._loaded
        self._loaded = None
        if trainer.global_step and not run.is_replay:
            resume_recording(self._recorder, trainer.global_step)
        if loaded is not None and not run.is_replay:
            if loaded.get("spikes"):
                run.spikes().load_state_dict(loaded["spikes"])
            of_ranks = loaded["ranks"]
            own = ranks.rank()
            if own < len(of_ranks):
                set_generators(of_ranks[own])
        return self._recorder
