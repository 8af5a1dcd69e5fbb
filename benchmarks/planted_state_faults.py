"""Faults of the state, of a setting and of the machine: learning rate, weights, moments, one
activation, half precision.
"""

import math
import random
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from benchmarks.planted_site import NUM_UPDATES, Planted, Site, edit_checkpoint, go_on, moments_at
from torch import Tensor, nn
from typing_extensions import override

from sonde.callbacks.base import Callback
from sonde.callbacks.context import Context
from sonde.checkpoint.store import CheckpointStore
from sonde.forensics.replay import Replay
from sonde.records.journal import read_steps
from sonde.records.layout import RunLayout
from sonde.records.manifest import read_manifest, write_manifest
from sonde.train.rates import Rates
from sonde.train.recipe import Pieces, build
from sonde.train.schedule import Schedule
from sonde.train.trainer import Trainer

_MAX_HALF: Final = 65504.0
_SETTINGS: Final = frozenset({"changed_settings"})


def jump_rate(site: Site) -> Planted:
    """A learning rate many times as high: after a restart with another setting, or by a fault of
    the schedule.
    """
    factor = site.generator.choice([15.0, 30.0, 60.0])
    if site.is_saved:
        go_on(site, settings=replace(site.settings, lr=site.settings.lr * factor))
        return Planted(
            cause="learning_rate", step=site.base.last + 4, how="restart", neighbours=_SETTINGS
        )
    schedule = JumpingSchedule(usual=site.settings.learning_rate, at=site.step - 2, factor=factor)

    def change(trainer: Trainer) -> None:
        trainer.rates = Rates(schedule.lr, trainer.optimizer)

    go_on(site, change=change)
    return Planted(cause="learning_rate", step=site.step, how="schedule")


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
    return Planted(
        cause="corrupted_weights", step=step, modules=frozenset(names), how=f"{how} {_where(site)}"
    )


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
        cause="optimizer_state",
        step=step,
        modules=frozenset(names),
        how=f"{factor:.0e} {_where(site)}",
    )


def lose_moments(site: Site) -> Planted:
    """An optimizer that forgot its moments: at a restart, or in memory."""
    how = site.generator.choice(["forgotten", "zeroed"])

    def lose(states: dict[Any, dict[str, Any]]) -> None:
        for moments in states.values():
            moments["exp_avg"].zero_()
            moments["exp_avg_sq"].zero_()
            if how == "forgotten":
                moments["step"].zero_()

    if site.is_saved:
        edit_checkpoint(site, lambda state: lose(state["optimizer"]["state"]))
        go_on(site)
    else:
        go_on(
            site,
            watchers=lambda pieces: [
                BeforeUpdate(site.step - 1, lambda: lose(pieces.optimizer.state))
            ],
        )
    step = site.base.last + 2 if site.is_saved else site.step
    return Planted(cause="optimizer_state", step=step, how=f"{how} {_where(site)}")


def put_back_weights(site: Site) -> Planted:
    """Weights of an earlier checkpoint, with everything else as it was."""
    back = 100 if site.generator.random() < 0.5 else 200
    store = CheckpointStore(RunLayout(site.run).checkpoints)
    old = store.load(site.base.last - back)["model"]

    def put_back(weights: Mapping[str, Tensor]) -> None:
        for name, value in old.items():
            weights[name].copy_(value)

    if site.is_saved:
        edit_checkpoint(site, lambda state: put_back(state["model"]))
        go_on(site)
    else:

        def in_memory(pieces: Pieces) -> list[Callback]:
            return [BeforeUpdate(site.step, lambda: put_back(pieces.task.model.state_dict()))]

        go_on(site, watchers=in_memory)
    step = site.base.last + 1 if site.is_saved else site.step
    return Planted(
        cause="stale_weights",
        step=step,
        how=f"{back} updates back {_where(site)}",
        neighbours=frozenset({"corrupted_weights"}),
    )


def change_dropout(site: Site) -> Planted:
    """Far more dropout since a restart."""
    dropout = site.generator.choice([0.5, 0.6, 0.7])
    go_on(site, settings=replace(site.settings, dropout=dropout))
    return Planted(cause="changed_settings", step=site.base.last + 2, how=f"dropout {dropout}")


def lose_clipping(site: Site) -> Planted:
    """No limit on the gradient norm since a restart. Adam divides by the size of gradients, so that
    alone may do no harm: then nothing is wrong.
    """
    go_on(site, settings=replace(site.settings, clip_norm=None))
    return Planted(
        cause="changed_settings",
        step=site.base.last + 4,
        how="clipping",
        neighbours=frozenset({"nothing_wrong"}),
    )


def rise_of_the_rate(site: Site) -> Planted:
    """A learning rate that creeps up until the training diverges: no step of it is a jump."""
    growth = site.generator.choice([1.2, 1.3])
    schedule = CreepingSchedule(usual=site.settings.learning_rate, at=site.base.last, growth=growth)

    def change(trainer: Trainer) -> None:
        trainer.rates = Rates(schedule.lr, trainer.optimizer)

    last = site.base.last + 45
    go_on(site, settings=replace(site.settings, max_updates=last), change=change)
    return Planted(
        cause="learning_rate",
        step=last - 4,
        how=f"{growth} a step",
        neighbours=frozenset({"stuck"}),
    )


def no_warm_up(site: Site) -> Planted:
    """A training of its own that never learns: a learning rate far too high, without a warm-up."""
    shutil.rmtree(site.run)
    rate = site.generator.choice([0.2, 0.4])
    go_on(site, settings=replace(site.settings, lr=rate, warmup=1, max_updates=270))
    return Planted(cause="learning_rate", step=260, how=f"{rate}", neighbours=frozenset({"stuck"}))


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
    return Planted(cause="not_reproduced", step=site.step, rank=0)


def overflow(site: Site) -> Planted:
    """A feed-forward layer whose activations have grown until, in one batch, half precision cannot
    hold them.

    The layer's first matrix is larger and its second one smaller by the same factor, which changes
    nothing in float32; the moments are such that training goes on as before. All checkpoints are
    made so: as far as the run knows, it always was.
    """
    settings = replace(site.settings, precision="float16")
    step, name, factor = _overflowing(site)
    parameters = [parameter for parameter, _ in build(settings).task.model.named_parameters()]

    store = CheckpointStore(RunLayout(site.run).checkpoints)
    grown = store.load(site.base.last)["model"]

    def grow(state: dict[str, Any]) -> None:
        for parameter, by in (
            ("inner.weight", factor),
            ("inner.bias", factor),
            ("outer.weight", 1 / factor),
        ):
            full = f"{name}.{parameter}"
            # The same in all checkpoints: what was grown has not moved since, as far as one can
            # see.
            state["model"][full].copy_(grown[full] * by)
            moments = moments_at(state, parameters.index(full))
            moments["exp_avg"].div_(by)
            # The second moment of the smaller matrix is as if its gradients had been larger still:
            # its updates stay small beside it.
            moments["exp_avg_sq"].mul_(by**-2 if by > 1 else by**-4)

    for saved in store.folder.steps()[-4:]:
        edit_checkpoint(site, grow, step=saved)
    # The digests would show that the weights were others.
    for digests in RunLayout(site.run).root.glob("records/digests.*"):
        digests.unlink()
    write_manifest(site.run, replace(read_manifest(site.run), settings=settings.as_saved()))
    go_on(site, settings=settings)
    made = read_steps(site.run).by_number
    bad = [
        step
        for step in sorted(made)
        if step > site.base.last and (made[step].skipped or not math.isfinite(made[step].loss))
    ]
    # the numbers have grown, and half precision holds them still: something is odd, and no overflow
    if not bad:
        neighbours = frozenset({"not_known", "nothing_wrong"})
        return Planted(cause="overflow", step=step, how="none", neighbours=neighbours)
    return Planted(cause="overflow", step=bad[0], modules=frozenset({f"{name}.inner"}))


def _overflowing(site: Site) -> tuple[int, str, float]:
    """The step whose activations in some layer are larger than those before it, that layer, and by
    what they are to grow.
    """
    replay = Replay(site.run)
    last = site.base.last
    best = (0.0, 0, "", 1.0)
    layers = [
        name.removesuffix(".inner")
        for name, _ in replay.model.named_modules()
        if name.endswith(".inner")
    ]
    highest: dict[str, list[float]] = {name: [] for name in layers}
    replay.go_to(last + 1)
    for _ in range(NUM_UPDATES):
        for name, value in _inner_maxima(replay).items():
            highest[name].append(value)
    for name, values in highest.items():
        for place in range(3, len(values)):
            before = max(values[:place])
            if values[place] / before > best[0]:
                best = (
                    values[place] / before,
                    last + 1 + place,
                    name,
                    _MAX_HALF / math.sqrt(values[place] * before),
                )
    return best[1], best[2], best[3]


def _inner_maxima(replay: Replay) -> dict[str, float]:
    found: dict[str, float] = {}

    def look(name: str) -> Any:
        def after(_: nn.Module, __: object, output: Tensor) -> None:
            found[name] = max(found.get(name, 0.0), float(output.detach().abs().max()))

        return after

    modules = [
        (name, module) for name, module in replay.model.named_modules() if name.endswith(".inner")
    ]
    handles = [
        module.register_forward_hook(look(name.removesuffix(".inner"))) for name, module in modules
    ]
    replay.update()
    for handle in handles:
        handle.remove()
    return found


def _pick_parameter(site: Site) -> tuple[list[str], int]:
    """A matrix of the model: all its names, and its place among the parameters."""
    model = build(site.settings).task.model
    named = list(model.named_parameters())
    places = [place for place, (_, parameter) in enumerate(named) if parameter.ndim == 2]
    place = site.generator.choice(places)
    same = [
        name
        for name, parameter in model.named_parameters(remove_duplicate=False)
        if parameter is named[place][1]
    ]
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
            flat[places] = (
                flat[places].sign() * 2.0 ** torch.randint(7, 40, (4,), generator=source).float()
            )
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
            place = generator.randrange(changed.numel())
            bit = generator.choice([27, 28, 29, 30])
            if changed[place] != 0 and not int(bits[place]) >> bit & 1:
                break
        bits[place] ^= 1 << bit
        return output + (changed.view(output.shape) - output.detach())

    handles.append(module.register_forward_hook(flip))


def _where(site: Site) -> str:
    return "in the checkpoint" if site.is_saved else "in memory"


@dataclass(frozen=True, kw_only=True, slots=True)
class JumpingSchedule:
    """A schedule that is right up to one update and many times too high from then on."""

    usual: Schedule
    at: int
    factor: float

    def lr(self, update: int) -> float:
        """The rate of an update."""
        return self.usual.rate(update) * (self.factor if update >= self.at else 1.0)


@dataclass(frozen=True, kw_only=True, slots=True)
class CreepingSchedule:
    """A schedule that is right up to one update and rises by a factor with every one from then
    on.
    """

    usual: Schedule
    at: int
    growth: float

    def lr(self, update: int) -> float:
        """The rate of an update."""
        return self.usual.rate(update) * min(self.growth ** max(update - self.at, 0), 400.0)


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
