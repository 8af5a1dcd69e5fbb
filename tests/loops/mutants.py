"""Twelve ways to break the guard and the putting-back. The table must catch at least eleven."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any


def apply(name: str) -> None:
    """Break the recorder of this process."""
    MUTANTS[name][1]()


def _nothing(*_: Any, **__: Any) -> Any:
    """Do nothing where something should be done."""
    return None


def _replace(path: str, value: Any) -> Callable[[], None]:
    """Return what replaces a name of the recorder, given as `module:Class.name`."""

    def replace() -> None:
        import importlib

        module, _, names = path.partition(":")
        owner: Any = importlib.import_module(f"sonde.recorder.{module}")
        *outer, last = names.split(".")
        for name in outer:
            owner = getattr(owner, name)
        setattr(owner, last, value)

    return replace


def _gradients_are_lost() -> None:
    from sonde.recorder.put_back import Remembered

    remember = Remembered._remember_weight

    def remember_without(self: Any, weight: Any) -> None:
        gradient = weight.grad
        weight.grad = None
        remember(self, weight)
        weight.grad = gradient

    Remembered._remember_weight = remember_without  # type: ignore[method-assign]


@contextlib.contextmanager
def _moving() -> Iterator[None]:
    yield


def _hooks_are_kept() -> None:
    from sonde.recorder.hooks import Hooks

    @contextlib.contextmanager
    def observed_by(self: Any, observer: Any) -> Iterator[None]:
        self.observer = observer
        yield

    Hooks.observed_by = observed_by  # type: ignore[method-assign]


def _raising(self: Any, lost: str, error: BaseException) -> None:
    raise error


def _system_exit_passes() -> None:
    from sonde.recorder import guard

    guard.PASSES = (*guard.PASSES, SystemExit)  # type: ignore[misc, assignment]


MUTANTS: dict[str, tuple[str, Callable[[], None]]] = {
    "gradients are not put back": ("batch: regression", _gradients_are_lost),
    "values of buffers are not put back": (
        "model: buffers that overlap",
        _replace("put_back:Remembered._remember_tensor", _nothing),
    ),
    "attributes are not put back": (
        "model: buffer reassigned",
        _replace("put_back:Remembered._remember_dict", _nothing),
    ),
    "lists are not put back": (
        "model: list of tensors that grows",
        _replace("put_back:Remembered._remember_list", _nothing),
    ),
    "generators of the model are not put back": (
        "model: own numpy generator",
        _replace("put_back:Remembered._remember_generator", _nothing),
    ),
    "global generators are not put back": (
        "batch: regression",
        _replace("put_back:generators_restored", _moving),
    ),
    "the closure is not put back": (
        "control: a counter of the step function",
        _replace("put_back:Remembered._remember_function", _nothing),
    ),
    "iterators are not noticed": (
        "control: the step takes its data itself",
        _replace("training:moves_by_itself", _nothing),
    ),
    "the guard raises": (
        "control: sample_ids raises ValueError",
        _replace("guard:Guard.catch", _raising),
    ),
    "SystemExit passes the guard": ("control: sample_ids raises SystemExit", _system_exit_passes),
    "a failed batch stays in its update": (
        "control: a batch fails: forward",
        _replace("pipeline:Pipeline.failed", _nothing),
    ),
    "the hooks are not given back": ("batch: regression", _hooks_are_kept),
}
"""By name: a loop that should catch it, and what breaks the recorder of this process."""
