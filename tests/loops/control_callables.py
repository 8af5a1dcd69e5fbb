"""Callables of the user's that the recorder calls, and modes of torch."""

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from loops.context import NUM_STEPS, Context, network
from loops.control import CONTROLS, inputs, loop, parts, simple_step
from loops.control_changes import evaluation_inside
from loops.control_processes import clipping
from torch import Tensor, nn


def raising(kind: type[BaseException]) -> Callable[[Any], Any]:
    def call(*_: Any) -> Any:
        raise kind("a callable of the user's that the recorder calls")

    return call


def with_callable(context: Context, **arguments: Any) -> None:
    model = nn.Sequential(nn.Embedding(40, 8), nn.Linear(8, 40))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recorder = context.record(model, optimizer, **arguments)

    def train_step(tokens: Tensor) -> None:
        scores = model(tokens[:, :-1]).flatten(0, 1)
        loss = nn.functional.cross_entropy(scores, tokens[:, 1:].flatten())
        recorder.loss(loss).backward()
        optimizer.step()
        optimizer.zero_grad()

    for step in range(1, NUM_STEPS + 1):
        low = 30 if context.scale(step) > 1 else 0
        recorder.step(train_step, torch.randint(low, low + 10, (4, 12)))


_kind: type[BaseException]
for _kind in (ValueError, SystemExit):
    CONTROLS[f"decode raises {_kind.__name__}"] = partial(with_callable, decode=raising(_kind))
    CONTROLS[f"sample_ids raises {_kind.__name__}"] = partial(
        with_callable, sample_ids=raising(_kind)
    )


class Named:
    """Something with a state that is no state."""

    def state_dict(self) -> Any:
        raise RuntimeError("no state to be had")

    def load_state_dict(self, state: Any) -> None:
        pass


CONTROLS["a named state_dict raises"] = lambda context: with_callable(context, thing=Named())
CONTROLS["sample_ids of another length"] = lambda context: with_callable(
    context, sample_ids=lambda _: [1, 2]
)
CONTROLS["sample_ids are strings"] = lambda context: with_callable(
    context, sample_ids=lambda _: ["a", "b", "c", "d"]
)


@loop("sparse gradients")
def sparse_gradients(context: Context) -> None:
    model = nn.Sequential(nn.Embedding(40, 8, sparse=True), nn.Linear(8, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    recorder = context.record(model, optimizer)
    train_step = simple_step(recorder, model, optimizer)
    for step in range(1, NUM_STEPS + 1):
        low = 30 if context.scale(step) > 1 else 0
        recorder.step(train_step, torch.randint(low, low + 10, (6, 5)))


@loop("deterministic algorithms only")
def deterministic(context: Context) -> None:
    torch.use_deterministic_algorithms(True)
    evaluation_inside(context)


@loop("anomaly detection on")
def anomaly(context: Context) -> None:
    with torch.autograd.detect_anomaly(check_nan=False):
        clipping(context)


@loop("default dtype float64")
def double(context: Context) -> None:
    torch.set_default_dtype(torch.float64)
    clipping(context)


@loop("loss that is not finite, now and then")
def not_finite(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        loss = recorder.loss(model(batch).square().mean())
        if torch.isfinite(loss):
            loss.backward()
            optimizer.step()
        optimizer.zero_grad()

    context.num_updates = NUM_STEPS - 3
    for step in range(1, NUM_STEPS + 1):
        factor = float("nan") if step in (35, 36, 50) else 1.0
        recorder.step(train_step, inputs(context, step) * factor)


@loop("SONDE=off")
def turned_off(context: Context) -> None:
    os.environ["SONDE"] = "off"
    clipping(context)
    context.num_updates = -1


@loop("a model without parameters")
def without_parameters(context: Context) -> None:
    """What is trained is a bare tensor; the model only uses it."""

    class Bare(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x @ weight

    weight = torch.zeros(8, 4, requires_grad=True)
    model = Bare()
    optimizer = torch.optim.SGD([weight], lr=1e-2)
    recorder = context.record(model, optimizer)
    context.hashed.append(weight)

    def train_step(batch: Tensor) -> None:
        recorder.loss((model(batch) - 1).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


@loop("compiled")
def compiled(context: Context) -> None:
    model = network()
    fast = torch.compile(model, backend="aot_eager")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    recorder = context.record(fast, optimizer)

    def train_step(batch: Tensor) -> None:
        recorder.loss(fast(batch).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))
