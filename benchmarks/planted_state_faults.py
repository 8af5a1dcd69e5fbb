"""Faults of the state, of a setting and of the machine: learning rate, weights, moments, one activation, half precision."""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final, final

import torch
from benchmarks.planted_site import NUM_UPDATES, Planted, Site, edit_checkpoint, go_on, moments_at
from torch import Tensor, nn
from typing_extensions import override

from sonde.callbacks.base import Callback, Context
from sonde.forensics import verdict as causes
from sonde.forensics.replay import Replay
from sonde.records.manifest import read_manifest, write_manifest
from sonde.train.loop import Trainer
from sonde.train.rates import rates_of
from sonde.train.recipe import Pieces, build
from sonde.train.schedule import Schedule

_MAX_HALF: Final = 65504.0


def jump_rate(site: Site) -> Planted:
    """A learning rate many times as high: after a restart with another setting, or by a fault of the schedule."""
    factor = site.generator.choice([15.0, 30.0, 60.0])
    if site.is_saved:
        go_on(site, settings=replace(site.settings, lr=site.settings.lr * factor))
        return Planted(cause=causes.LEARNING_RATE, step=site.base.last + 2, how="restart")
    schedule = JumpingSchedule(usual=site.settings.learning_rate, at=site.step - 2, factor=factor)

    def change(trainer: Trainer) -> None:
        trainer._rates = rates_of(schedule.lr, trainer._optimizer)

    go_on(site, change=change)
    return Planted(cause=causes.LEARNING_RATE, step=site.step, how="schedule")


def corrupt_weight(site: Site) -> Planted:
    """Elements of one parameter that are not what training made them."""
    names, place = _pick_parameter(site)
    how, spoil = _spoiling(site.generator)
    if site.is_saved:
        edit_checkpoint(site, lambda state: spoil(state["model"][names[0]]))
        go_on(site)
    else:

        def in_memory(pieces: Pieces) -> list[Callback]:
            parameter = list(pieces.task.model.parameters())[place]
            return [BeforeUpdate(site.step, lambda: spoil(parameter.data))]

        go_on(site, watchers=in_memory)
    step = site.base.last + 1 if site.is_saved else site.step
    return Planted(cause=causes.WEIGHTS, step=step, modules=frozenset(names), how=f"{how} {_where(site)}")


def blow_moment(site: Site) -> Planted:
    """A first moment many times too large."""
    names, place = _pick_parameter(site)
    factor = site.generator.choice([1e3, 1e4, 1e5])

    def blow(moments: dict[str, Any]) -> None:
        moments["exp_avg"].mul_(factor)

    if site.is_saved:
        edit_checkpoint(site, lambda state: blow(moments_at(state, place)))
        go_on(site)
    else:

        def in_memory(pieces: Pieces) -> list[Callback]:
            parameter = list(pieces.task.model.parameters())[place]
            return [BeforeUpdate(site.step - 1, lambda: blow(pieces.optimizer.state[parameter]))]

        go_on(site, watchers=in_memory)
    step = site.base.last + 2 if site.is_saved else site.step
    return Planted(
        cause=causes.OPTIMIZER_STATE, step=step, modules=frozenset(names), how=f"{factor:.0e} {_where(site)}"
    )


def flip_bit(site: Site) -> Planted:
    """One bit of one element that a module returns, once."""
    generator = site.generator

    def watchers(pieces: Pieces) -> list[Callback]:
        modules = [
            module
            for name, module in pieces.task.model.named_modules()
            if isinstance(module, (nn.Linear, nn.LayerNorm))
        ]
        module = generator.choice(modules[:-1])
        return [BeforeUpdate(site.step, lambda: _flip_once(module, generator))]

    go_on(site, watchers=watchers)
    return Planted(cause=causes.MACHINE, step=site.step, rank=0)


def overflow(site: Site) -> Planted:
    """A feed-forward layer whose activations have grown until, in one batch, half precision cannot hold them.

    The layer's first matrix is larger and its second one smaller by the same factor, which changes nothing in float32; the moments are such
    that training goes on as before. All checkpoints are made so: as far as the run knows, it always was.
    """
    settings = replace(site.settings, precision="float16")
    step, name, factor = _overflowing(site)
    parameters = [one for one, _ in build(settings).task.model.named_parameters()]

    def grow(state: dict[str, Any]) -> None:
        for parameter, by in (("inner.weight", factor), ("inner.bias", factor), ("outer.weight", 1 / factor)):
            state["model"][f"{name}.{parameter}"].mul_(by)
            moments = moments_at(state, parameters.index(f"{name}.{parameter}"))
            moments["exp_avg"].div_(by)
            # The second moment of the smaller matrix is as if its gradients had been larger still: its updates stay small beside it.
            moments["exp_avg_sq"].mul_(by**-2 if by > 1 else by**-4)

    for saved in (site.base.last - 50, site.base.last):
        edit_checkpoint(site, grow, step=saved)
    write_manifest(site.run, replace(read_manifest(site.run), settings=settings.as_saved()))
    go_on(site, settings=settings)
    return Planted(cause=causes.OVERFLOW, step=step, modules=frozenset({f"{name}.inner"}))


def _overflowing(site: Site) -> tuple[int, str, float]:
    """The step whose activations in some layer are larger than those before it, that layer, and by what they are to grow."""
    replay = Replay(site.run)
    last, best = site.base.last, (0.0, 0, "", 1.0)
    layers = [name.removesuffix(".inner") for name, _ in replay.model.named_modules() if name.endswith(".inner")]
    highest: dict[str, list[float]] = {name: [] for name in layers}
    replay.go_to(last + 1, checkpoint=last)
    for _ in range(NUM_UPDATES):
        for name, value in _inner_maxima(replay).items():
            highest[name].append(value)
    for name, values in highest.items():
        for place in range(3, len(values)):
            before = max(values[:place])
            if values[place] / before > best[0]:
                best = (values[place] / before, last + 1 + place, name, _MAX_HALF / math.sqrt(values[place] * before))
    return best[1], best[2], best[3]


def _inner_maxima(replay: Replay) -> dict[str, float]:
    found: dict[str, float] = {}

    def look(name: str) -> Any:
        def after(_: nn.Module, __: object, output: Tensor) -> None:
            found[name] = max(found.get(name, 0.0), float(output.detach().abs().max()))

        return after

    modules = [(name, module) for name, module in replay.model.named_modules() if name.endswith(".inner")]
    handles = [module.register_forward_hook(look(name.removesuffix(".inner"))) for name, module in modules]
    replay.update()
    for handle in handles:
        handle.remove()
    return found


def _pick_parameter(site: Site) -> tuple[list[str], int]:
    """A matrix of the model: all its names, and its place among the parameters."""
    model = build(site.settings).task.model
    named = list(model.named_parameters())
    places = [place for place, (_, one) in enumerate(named) if one.ndim == 2]
    place = site.generator.choice(places)
    same = [name for name, one in model.named_parameters(remove_duplicate=False) if one is named[place][1]]
    return [named[place][0], *(name for name in same if name != named[place][0])], place


def _spoiling(generator: random.Random) -> tuple[str, Callable[[Tensor], None]]:
    """What happens to a weight."""
    seed = generator.randrange(1 << 30)
    how = generator.choice(["a bit", "a column", "noise", "rows"])

    def spoil(weight: Tensor) -> None:
        source = torch.Generator().manual_seed(seed)
        flat = weight.view(-1)
        if how == "a bit":
            places = torch.randint(flat.numel(), (4,), generator=source)
            flat[places] = flat[places].sign() * 2.0 ** torch.randint(7, 40, (4,), generator=source).float()
        elif how == "a column":
            weight[:, int(torch.randint(weight.shape[1], (1,), generator=source))] = 30.0
        elif how == "noise":
            weight.add_(torch.randn(weight.shape, generator=source) * weight.std() * 3)
        else:
            weight[: max(1, len(weight) // 2)] *= -8.0

    return how, spoil


def _flip_once(module: nn.Module, generator: random.Random) -> None:
    handles: list[Any] = []

    def flip(_: nn.Module, __: object, output: Tensor) -> Tensor:
        for handle in handles:
            handle.remove()
        changed = output.detach().clone().view(-1)
        bits = changed.view(torch.int32)
        while True:
            place, bit = generator.randrange(changed.numel()), generator.choice([27, 28, 29, 30])
            if changed[place] != 0 and not int(bits[place]) >> bit & 1:
                break
        bits[place] ^= 1 << bit
        return output + (changed.view(output.shape) - output.detach())

    handles.append(module.register_forward_hook(flip))


def _where(site: Site) -> str:
    return "in the checkpoint" if site.is_saved else "in memory"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class JumpingSchedule:
    """A schedule that is right up to one update and many times too high from then on."""

    usual: Schedule
    at: int
    factor: float

    def lr(self, update: int) -> float:
        """The rate of an update."""
        return self.usual.lr(update) * (self.factor if update >= self.at else 1.0)

    def past_peak(self, update: int) -> bool:
        """As the schedule it should be."""
        return self.usual.past_peak(update)

    @property
    def peak_lr(self) -> float:
        """As the schedule it should be."""
        return self.usual.peak_lr


@final
class BeforeUpdate(Callback):
    """Does something once, before one update."""

    def __init__(self, step: int, action: Callable[[], None]) -> None:
        self._step = step
        self._action = action

    @override
    def on_step_start(self, context: Context) -> None:
        """Before the update."""
        if context.step == self._step - 1:
            with torch.no_grad():
                self._action()
