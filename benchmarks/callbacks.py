"""What a trainer costs per step beyond the bare loop: sonde beside Lightning 2.6 and the Hugging
Face Trainer.

One tiny model (Linear(8, 1), batches of 4, SGD), so that a step is nearly nothing but overhead.
Each contender runs the same steps in interleaved rounds; the smallest median of a round counts.
Peers that are not installed are left out.
"""

import importlib.util
import logging
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch
from torch import Tensor, nn

from sonde.callbacks.base import Callback, Dispatcher, Order
from sonde.callbacks.context import Context, ContextValues
from sonde.callbacks.learning_rate import LearningRateCallback
from sonde.callbacks.nan_guard import NanGuard
from sonde.compat.nemo.checkpoint import CheckpointCallback
from sonde.compat.nemo.evaluator import EvaluatorCallback
from sonde.compat.nemo.loss_logger import SimpleLossLoggerCallback
from sonde.train.schedule import Schedule
from sonde.train.settings import TrainerSettings
from sonde.train.stopping import StopWhen
from sonde.train.task import StepOutput
from sonde.train.trainer import Trainer

NUM_STEPS = 2000
NUM_ROUNDS = 5
GATE = 0.10
GOAL = 0.05


class Samples(torch.utils.data.Dataset[dict[str, Tensor]]):
    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self._rows = [{"x": torch.randn(8, generator=generator)} for _ in range(4 * NUM_STEPS)]

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self._rows[index]


def loader() -> Any:
    return torch.utils.data.DataLoader(Samples(), batch_size=4)


def loss_of(model: nn.Module, batch: Mapping[str, Tensor]) -> Tensor:
    loss: Tensor = model(batch["x"]).square().mean()
    return loss


class Stamps:
    """The time of each step."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def microseconds(self) -> float:
        """The first decile of the steps: what one takes when nothing else runs on the machine."""
        steps = [b - a for a, b in zip(self.times[100:], self.times[101:], strict=False)]
        return statistics.quantiles(steps, n=10)[0] * 1e6


def bare() -> float:
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    stamps = Stamps()
    for batch in loader():
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
        stamps.times.append(time.perf_counter())
    return stamps.microseconds()


class LoaderData:
    """A DataLoader as the trainer wants it."""

    def __init__(self) -> None:
        self._epoch = 1

    def __iter__(self) -> Iterator[Any]:
        yield from loader()
        self._epoch += 1

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self._epoch}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._epoch = state["epoch"]


class Regression:
    def __init__(self) -> None:
        self.model = nn.Linear(8, 1)

    def compute(self, batch: Mapping[str, Tensor]) -> StepOutput:
        # as many operators as the mean
        return StepOutput(loss_sum=self.model(batch["x"]).square().sum(), weight=4)


class StampCallback(Callback):
    def __init__(self) -> None:
        self.stamps = Stamps()

    def on_step_end(self, context: Context) -> None:  # noqa: ARG002
        self.stamps.times.append(time.perf_counter())


def with_sonde(callbacks: Callable[[nn.Module], list[Callback]]) -> float:
    task = Regression()
    optimizer = torch.optim.SGD(task.model.parameters(), lr=1e-3)
    trainer = Trainer(
        task,
        LoaderData(),
        optimizer,
        schedule=Schedule(schedule="constant", lr=1e-3),
        settings=TrainerSettings(),
    )
    stamp = StampCallback()
    trainer.train(stop=StopWhen(max_updates=NUM_STEPS), callbacks=[*callbacks(task.model), stamp])
    return stamp.stamps.microseconds()


def bare_with_callbacks() -> float:
    """A loop of one's own that tells five callbacks of every moment of a step."""
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    calls = Dispatcher(five(model), lambda *_, **__: None)
    shown = ContextValues()
    context = Context(shown)
    stamps = Stamps()
    for number, batch in enumerate(loader(), start=1):
        calls.call("on_step_start", context)
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        calls.call("on_backward_end", context)
        optimizer.step()
        shown.step = number
        shown.tensors = {"loss": 1.0}
        for order in Order:
            calls.call("on_step_end", context, order=order)
        stamps.times.append(time.perf_counter())
    return stamps.microseconds()


def five(model: nn.Module) -> list[Callback]:
    folder = tempfile.mkdtemp()
    return [
        SimpleLossLoggerCallback(["loss"], step_freq=10**6),
        CheckpointCallback(folder, step_freq=10**6),
        EvaluatorCallback(
            ["loss"], lambda *_: None, lambda _: None, eval_step=10**6, eval_at_start=False
        ),
        NanGuard(model),
        LearningRateCallback(step_freq=10**6),
    ]


def lightning_contender() -> Callable[[], float] | None:
    try:
        import lightning
    except ImportError:
        return None
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)

    class Module(lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model = nn.Linear(8, 1)

        def training_step(self, batch: Any, number: int) -> Tensor:  # noqa: ARG002
            return loss_of(self.model, batch)

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-3)

    class Stamp(lightning.Callback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.stamps = Stamps()

        def on_train_batch_end(self, *_: Any, **__: Any) -> None:
            self.stamps.times.append(time.perf_counter())

    def run() -> float:
        stamp = Stamp()
        trainer = lightning.Trainer(
            max_epochs=1,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            callbacks=[stamp],
        )
        trainer.fit(Module(), loader())
        return stamp.stamps.microseconds()

    return run


def hugging_face_contender() -> Callable[[], float] | None:
    try:
        import transformers
    except ImportError:
        return None
    if importlib.util.find_spec("accelerate") is None:  # the Trainer needs it
        return None

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(8, 1)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            return {"loss": loss_of(self.linear, {"x": x})}

    class Stamp(transformers.TrainerCallback):  # type: ignore[misc]
        def __init__(self) -> None:
            self.stamps = Stamps()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            self.stamps.times.append(time.perf_counter())

    def run() -> float:
        stamp = Stamp()
        arguments = transformers.TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=4,
            max_steps=NUM_STEPS,
            use_cpu=True,
            logging_strategy="no",
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            optim="sgd",
            remove_unused_columns=False,
        )
        trainer = transformers.Trainer(
            model=Model(), args=arguments, train_dataset=Samples(), callbacks=[stamp]
        )
        trainer.train()
        return stamp.stamps.microseconds()

    return run


def main() -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    logging.getLogger("sonde").setLevel(logging.ERROR)
    contenders: dict[str, Callable[[], float] | None] = {
        "bare loop": bare,
        "bare loop, 5 callbacks": bare_with_callbacks,
        "sonde": lambda: with_sonde(lambda _: []),
        "sonde, 5 callbacks": lambda: with_sonde(five),
        "Lightning": lightning_contender(),
        "Hugging Face Trainer": hugging_face_contender(),
    }
    best: dict[str, float] = {}
    for _ in range(NUM_ROUNDS):
        for name, contender in contenders.items():
            if contender is not None:
                best[name] = min(best.get(name, float("inf")), contender())
    overhead_of_lightning = best["Lightning"] - best["bare loop"] if "Lightning" in best else None
    print(f"{'':24}{'µs/step':>10}{'overhead':>10}{'of Lightning':>14}")
    for name, microseconds in best.items():
        overhead = microseconds - best["bare loop"]
        share = f"{overhead / overhead_of_lightning:.1%}" if overhead_of_lightning else ""
        print(f"{name:24}{microseconds:10.1f}{overhead:10.1f}{share:>14}")
    for name, contender in contenders.items():
        if contender is None:
            print(f"{name} is not installed: left out")
    for name in ("bare loop, 5 callbacks", "sonde, 5 callbacks"):
        if overhead_of_lightning is None:
            break
        part = (best[name] - best["bare loop"]) / overhead_of_lightning
        verdict = "MISSES THE GATE"
        if part <= GOAL:
            verdict = "meets the goal"
        elif part <= GATE:
            verdict = "meets the gate"
        print(
            f"{name}: {part:.1%} of Lightning's overhead, gate {GATE:.0%}, goal {GOAL:.0%}:"
            f" {verdict}"
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
