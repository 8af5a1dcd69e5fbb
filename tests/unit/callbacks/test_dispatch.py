"""Calling callbacks: order, quarantine, cost."""

import logging
import time
from dataclasses import fields
from typing import ClassVar

import pytest

from sonde.callbacks.base import Callback, Dispatcher, Order
from sonde.callbacks.context import Context, ContextValues
from sonde.errors import SettingError


class Noting(Callback):
    """Notes when it is called."""

    def __init__(self, name: str, notes: list[str]) -> None:
        self.name = name
        self.notes = notes

    def on_step_end(self, context: Context) -> None:
        self.notes.append(self.name)


class Evaluating(Noting):
    order: ClassVar[Order] = Order.EVALUATE


class Saving(Noting):
    order: ClassVar[Order] = Order.SAVE


class Failing(Callback):
    def on_step_end(self, context: Context) -> None:
        raise ValueError("planted")


class Guarding(Failing):
    critical: ClassVar[bool] = True


def dispatcher(*callbacks: Callback) -> tuple[Dispatcher, list[tuple[str, str, str]]]:
    quarantined: list[tuple[str, str, str]] = []

    def event(name: str, *, callback: str, moment: str, error: str) -> None:
        assert name == "quarantine"
        quarantined.append((callback, moment, error))

    return Dispatcher(callbacks, event), quarantined


def test_callbacks_are_called_evaluate_save_log_and_in_the_order_given_among_equals() -> None:
    notes: list[str] = []
    calls, _ = dispatcher(
        Noting("log1", notes),
        Saving("save", notes),
        Noting("log2", notes),
        Evaluating("eval", notes),
    )
    calls.call("on_step_end", Context())
    assert notes == ["eval", "save", "log1", "log2"]


def test_a_method_that_would_never_be_called_is_refused() -> None:
    with pytest.raises(
        SettingError, match=r"Late.on_step_ends is not a hook of a training run\n.*'on_step_end'"
    ):
        type("Late", (Callback,), {"on_step_ends": print})
    with pytest.raises(SettingError, match="the hooks are on_setup, on_run_start"):
        type("Other", (Callback,), {"on_loss_panel": print})


def test_a_callback_may_hold_a_value_that_is_named_like_a_hook() -> None:
    assert type("Placed", (Callback,), {"on_gpu": True})().on_gpu is True


def test_one_order_can_be_called_alone() -> None:
    notes: list[str] = []
    calls, _ = dispatcher(Noting("log", notes), Saving("save", notes))
    calls.call("on_step_end", Context(), order=Order.SAVE)
    assert notes == ["save"]


def test_a_watcher_that_raises_is_reported_once_and_quarantined(
    caplog: pytest.LogCaptureFixture,
) -> None:
    notes: list[str] = []
    calls, quarantined = dispatcher(Failing(), Noting("after", notes))
    with caplog.at_level(logging.WARNING, "sonde"):
        for _ in range(3):
            calls.call("on_step_end", Context())
    assert notes == ["after"] * 3
    assert quarantined == [("Failing", "on_step_end", "ValueError: planted")]
    assert len(caplog.records) == 1


def test_a_guard_that_raises_ends_the_run() -> None:
    calls, _ = dispatcher(Guarding())
    with pytest.raises(ValueError, match="planted"):
        calls.call("on_step_end", Context())


def test_the_context_cannot_be_written_and_keeps_the_first_reason() -> None:
    context = Context(ContextValues(rank=1, world_size=2))
    with pytest.raises(AttributeError):
        context.step = 5  # type: ignore[misc]  # refused, which is what is tested
    context.ask_to_stop("first")
    context.ask_to_stop("second")
    assert context.requests == {"stop": "first"}


@pytest.mark.parametrize("name", [field.name for field in fields(ContextValues)])
def test_a_context_shows_every_value_of_the_trainer_and_lets_none_be_written(name: str) -> None:
    values = ContextValues()
    context = Context(values)
    marker = object()
    setattr(values, name, marker)
    assert getattr(context, name) is marker
    with pytest.raises(AttributeError):
        setattr(context, name, None)


def test_dispatch_to_five_callbacks_costs_less_than_15_microseconds_a_step() -> None:
    notes: list[str] = []
    calls, _ = dispatcher(*(Noting("", notes) for _ in range(5)))
    context = Context()
    moments = ("on_step_start", "on_backward_end", "on_step_end")
    best = float("inf")
    for _ in range(5):
        started = time.process_time()
        for _ in range(2000):
            for moment in moments:
                calls.call(moment, context)
        best = min(best, (time.process_time() - started) / 2000)
    assert best < 15e-6
