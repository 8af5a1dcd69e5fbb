"""Steps that are unlike the plain one: closures, compiled ones, functional ones, several models."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from loops.context import NUM_STEPS, Context, network
from loops.control import CONTROLS, inputs, loop, parts
from torch import Tensor, nn


def run(context: Context, recorder: Any, train_step: Any) -> None:
    for step in range(1, NUM_STEPS + 1):
        recorder.step(train_step, inputs(context, step))


class ScaledStep(torch.optim.SGD):
    """Its step takes a number, and no closure."""

    @torch.no_grad()
    def step(self, scale: float = 1.0) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                parameter.add_(parameter.grad, alpha=-group["lr"] * scale)


class GivesArguments(ScaledStep):
    """Its step takes more than a closure, and gives the closure something."""

    def step(self, closure: Callable[..., Tensor], scale: float = 1.0) -> None:  # type: ignore[override]
        closure(1.1)
        super().step(scale)


@loop("an optimizer's step with a number")
def step_with_a_number(context: Context) -> None:
    model = network()
    optimizer = ScaledStep(model.parameters(), lr=1e-2)
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        recorder.loss(model(batch).square().mean()).backward()
        optimizer.step(0.5)
        optimizer.zero_grad()

    run(context, recorder, train_step)


@loop("an optimizer's step with more than a closure")
def closure_with_arguments(context: Context) -> None:
    model = network()
    optimizer = GivesArguments(model.parameters(), lr=1e-2)
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        def evaluate(factor: float) -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = recorder.loss(model(batch).square().mean()) * factor
            loss.backward()
            return loss

        optimizer.step(evaluate, 0.5)

    run(context, recorder, train_step)


@loop("line search")
def line_search(context: Context) -> None:
    model = network()
    optimizer = torch.optim.LBFGS(
        model.parameters(), lr=0.1, max_iter=5, line_search_fn="strong_wolfe"
    )
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> Any:
        def evaluate() -> Tensor:
            optimizer.zero_grad()
            loss: Tensor = model(batch).square().mean()
            loss.backward()
            return loss

        return optimizer.step(evaluate)

    run(context, recorder, train_step)


@loop("a compiled step")
def compiled_step(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    @torch.compile(backend="eager")
    def train_step(batch: Tensor) -> Tensor:
        loss: Tensor = recorder.loss(model(batch).square().mean())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run(context, recorder, train_step)


@loop("the loss is told in a compiled graph")
def told_in_a_graph(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    @torch.compile(backend="eager", fullgraph=True)
    def measure(batch: Tensor) -> Any:
        return recorder.loss(model(batch).square().mean())

    def train_step(batch: Tensor) -> Tensor:
        loss: Tensor = measure(batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run(context, recorder, train_step)


@loop("gradients of single samples")
def of_single_samples(context: Context) -> None:
    model = network()
    model.eval()  # no random numbers within vmap
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    recorder = context.record(model, optimizer)

    def loss_of(weights: dict[str, Tensor], row: Tensor) -> Tensor:
        return torch.func.functional_call(model, weights, (row[None],)).square().mean()

    def train_step(batch: Tensor) -> Tensor:
        weights = {name: weight.detach() for name, weight in model.named_parameters()}
        each = torch.vmap(torch.func.grad_and_value(loss_of), in_dims=(None, 0))
        gradients, losses = each(weights, batch)
        for name, weight in model.named_parameters():
            weight.grad = gradients[name].clamp(-1, 1).mean(0)
        optimizer.step()
        optimizer.zero_grad()
        mean: Tensor = losses.mean()
        return mean

    run(context, recorder, train_step)


@loop("an inner update that is part of the graph")
def inner_update(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> Tensor:
        weights: dict[str, Tensor] = dict(model.named_parameters())
        call = partial(torch.func.functional_call, model)
        inner = call(weights, (batch[:3],)).square().mean()
        gradients = torch.autograd.grad(inner, list(weights.values()), create_graph=True)
        pairs = zip(weights.items(), gradients, strict=True)
        fast = {name: weight - 0.01 * gradient for (name, weight), gradient in pairs}
        loss: Tensor = call(fast, (batch[3:],)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run(context, recorder, train_step)


@loop("a copy that is trained within the step")
def trained_copy(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> Tensor:
        fast = copy.deepcopy(model)
        inner = torch.optim.SGD(fast.parameters(), 1e-2)
        loss = batch.new_zeros(())
        for _ in range(3):
            loss = fast(batch).square().mean()
            loss.backward()
            inner.step()
            inner.zero_grad()
        for slow, moved in zip(model.parameters(), fast.parameters(), strict=True):
            slow.grad = slow.detach() - moved.detach()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    run(context, recorder, train_step)


@loop("gradient penalty")
def gradient_penalty(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        given = batch.requires_grad_()
        scores = model(given)
        (slopes,) = torch.autograd.grad(scores.sum(), given, create_graph=True)
        penalty = (slopes.norm(dim=1) - 1).square().mean()
        recorder.loss(scores.square().mean() + 0.1 * penalty).backward()
        optimizer.step()
        optimizer.zero_grad()

    run(context, recorder, train_step)


def adversaries(context: Context, order: str) -> None:
    """`order` says whose turn it is: the judge's or the generator's."""
    generator = nn.Linear(8, 8)
    judge = network(8, 1)
    of_generator = torch.optim.Adam(generator.parameters(), 1e-3)
    of_judge = torch.optim.Adam(judge.parameters(), 1e-3)
    recorder = context.record(generator, of_generator, judge=judge, of_judge=of_judge)
    context.hashed.append(judge)

    def train_judge(batch: Tensor) -> None:
        of_judge.zero_grad()
        fake = generator(torch.randn_like(batch)).detach()
        (F.softplus(-judge(batch)).mean() + F.softplus(judge(fake)).mean()).backward()
        of_judge.step()

    def train_generator(batch: Tensor) -> Tensor:
        of_generator.zero_grad()
        fooled = F.softplus(-judge(generator(torch.randn_like(batch)))).mean()
        loss: Tensor = fooled * batch.square().mean()
        loss.backward()
        of_generator.step()
        return loss

    def train_step(batch: Tensor) -> Tensor | None:
        found = None
        for turn in order:
            if turn == "j":
                train_judge(batch)
            else:
                found = train_generator(batch)
        return found

    run(context, recorder, train_step)


for _order in ("jg", "gj", "jjjg"):
    CONTROLS[f"adversaries: {_order}"] = partial(adversaries, order=_order)


@loop("several updates for a batch")
def several_updates(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> Tensor:
        loss = batch.new_zeros(())
        for _ in range(4):
            for part in batch[torch.randperm(6)].chunk(2):
                loss = recorder.loss(model(part).square().mean())
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
        return loss

    run(context, recorder, train_step)


@loop("an optimizer for each weight, in its backward hook")
def in_backward(context: Context) -> None:
    model = network()
    optimizers = {weight: torch.optim.SGD([weight], lr=1e-2) for weight in model.parameters()}

    def move(weight: Tensor) -> None:
        optimizers[weight].step()  # type: ignore[index]
        optimizers[weight].zero_grad()  # type: ignore[index]

    for weight in model.parameters():
        weight.register_post_accumulate_grad_hook(move)
    recorder = context.record(model, next(iter(optimizers.values())))
    run(context, recorder, lambda batch: recorder.loss(model(batch).square().mean()).backward())


@loop("everything that is raised is caught, and tried again")
def catches_everything(context: Context) -> None:
    model, optimizer = parts()
    recorder = context.record(model, optimizer)

    def train_step(batch: Tensor) -> None:
        for _ in range(3):
            try:
                recorder.loss(model(batch).square().mean()).backward()
                optimizer.step()
                optimizer.zero_grad()
                return
            except BaseException:  # noqa: BLE001  as people write
                optimizer.zero_grad()

    run(context, recorder, train_step)


@loop("averaged weights within a block that has no finally")
def without_finally(context: Context) -> None:
    model, optimizer = parts()
    weights: list[Tensor] = list(model.parameters())
    average = [weight.detach().clone() for weight in weights]
    recorder = context.record(model, optimizer)
    context.hashed += average

    @contextlib.contextmanager
    def averaged() -> Iterator[None]:
        kept = [weight.detach().clone() for weight in weights]
        with torch.no_grad():
            torch._foreach_copy_(weights, average)
        yield
        with torch.no_grad():
            torch._foreach_copy_(weights, kept)

    def train_step(batch: Tensor) -> None:
        with averaged():
            recorder.loss(model(batch).square().mean()).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            torch._foreach_lerp_(average, weights, 0.1)

    run(context, recorder, train_step)
