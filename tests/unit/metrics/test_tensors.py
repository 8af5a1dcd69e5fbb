import gc
import math
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sonde import metrics
from sonde.errors import SettingError
from sonde.metrics import meter
from sonde.metrics.meters import MOST_WAITING

STREAMS: list[type[metrics.Meter]] = [
    metrics.Average,
    metrics.Sum,
    metrics.Maximum,
    metrics.Minimum,
    metrics.Quantile,
]


class _NoReads(TorchDispatchMode):
    """Fails on every operation that gives a number, or a size that depends on one, to Python: what
    waits for a device.
    """

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = str(func)
        assert "_local_scalar_dense" not in name, "a tensor was read"
        assert not any(
            word in name for word in ("nonzero", "unique", "masked_select", "aten.equal")
        ), name
        return func(*args, **(kwargs or {}))


@pytest.fixture(autouse=True)
def _this_machine_is_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tensors of the CPU are treated like those of a GPU: left where they are until somebody
    reads.
    """
    monkeypatch.setattr(meter, "READ_AT_ONCE", frozenset())


@contextmanager
def no_reads() -> Iterator[None]:
    def refuse(*_: Any) -> Any:
        raise AssertionError("a tensor was read")

    # torch leaves it untyped
    with pytest.MonkeyPatch.context() as patch, _NoReads():  # type: ignore[no-untyped-call]
        for method in ("item", "tolist", "numpy", "__bool__", "__float__", "__int__"):
            patch.setattr(torch.Tensor, method, refuse)
        yield


def test_the_guard_of_these_tests_notices_a_read() -> None:
    with pytest.raises(AssertionError, match="was read"), no_reads():
        torch.ones(()).item()


@pytest.mark.parametrize("make", STREAMS)
def test_logging_tensors_reads_none_until_the_value_is_asked_for(
    make: Callable[[], metrics.Meter],
) -> None:
    with metrics.aggregate("train"), no_reads():
        for step in range(600):
            metrics.log_custom(make, "x", torch.full((), float(step)))
    assert metrics.get_smoothed_value("train", "x") == pytest.approx(
        {"average": 299.5, "sum": 179700, "maximum": 599, "minimum": 0, "quantile": 299}[
            make().kind
        ],
        rel=1 / 128,
    )


def test_scalars_speeds_and_tensor_weights_are_not_read_either() -> None:
    with metrics.aggregate("train") as agg, no_reads():
        for step in range(300):
            loss = torch.full((1,), float(step), requires_grad=True)
            metrics.log_scalar("loss", loss, weight=torch.tensor(2))
            metrics.log_scalar("number", 4.0, weight=torch.tensor(2.0))
            metrics.log_scalar("mixed", loss, weight=torch.tensor(3) if step % 2 else 3)
            metrics.log_speed("tokens/s", torch.tensor(7))
    assert agg.get_smoothed_value("loss") == agg.get_smoothed_value("mixed") == 149.5
    meter = agg["number"]
    assert isinstance(meter, metrics.Average)
    assert (meter.value, meter.count) == (4.0, 600.0)


class _Witness:
    """A hook that lives as long as the graph it is part of."""

    def __call__(self, gradient: torch.Tensor) -> torch.Tensor:
        return gradient


@pytest.mark.slow
def test_no_graph_is_kept_alive() -> None:
    for dtype in (torch.float32, torch.float64):
        witness = _Witness()
        alive = weakref.ref(witness)
        hidden = torch.ones(3, requires_grad=True, dtype=dtype) * 2
        hidden.register_hook(witness)
        metrics.log_scalar("loss", hidden.sum())
        assert alive() is not None
        del hidden, witness
        gc.collect()
        assert alive() is None
    assert metrics.get_smoothed_value("default", "loss") == 6.0


def test_an_element_of_a_big_tensor_does_not_keep_it_alive() -> None:
    meter = metrics.Average()
    meter.update(torch.ones(1000, dtype=torch.float64)[3])
    ((waiting, _),) = meter._waiting
    assert isinstance(waiting, torch.Tensor)
    assert waiting.untyped_storage().nbytes() == 8


def test_a_tensor_of_the_cpu_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    meter = metrics.Average()
    meter.update(torch.ones(1, requires_grad=True), torch.tensor(2))
    assert (meter._waiting, meter._sum, meter._count) == ([], 2.0, 2.0)


def test_only_so_many_tensors_wait() -> None:
    parameter = torch.ones((), requires_grad=True)
    with metrics.aggregate("train") as agg:
        for step in range(MOST_WAITING + 5):
            metrics.log_scalar("loss", parameter * float(step), weight=3)
    meter = agg["loss"]
    assert isinstance(meter, metrics.Average)
    assert len(meter._waiting) == 5
    assert meter.value == (MOST_WAITING + 4) / 2


def test_a_later_change_in_place_does_not_change_what_was_logged() -> None:
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.int64):
        metrics.reset()
        value = torch.ones((), dtype=dtype)
        metrics.log_scalar("x", value)
        value.zero_()
        assert metrics.get_smoothed_values("default") == {"x": 1.0}


def test_numbers_and_tensors_mix_and_the_latest_stays_the_latest() -> None:
    with metrics.aggregate() as agg:
        for value in (1.0, torch.tensor(2.0), 3.0, torch.tensor(4.0), torch.tensor(5.0)):
            metrics.log_scalar("x", value)
            metrics.log_scalar("lr", value, weight=0)
        meter = agg["x"]
        assert isinstance(meter, metrics.Average)
        assert (agg.get_smoothed_value("lr"), meter.val, meter.value) == (5.0, 5.0, 3.0)
        metrics.log_scalar("lr", torch.tensor(6.0), weight=0)
        metrics.log_scalar("lr", 7.0, weight=0)
        assert agg.get_smoothed_value("lr") == 7.0


def test_a_reset_of_an_inner_level_keeps_waiting_tensors_for_the_outer_one() -> None:
    with metrics.aggregate("outer"), metrics.aggregate("inner"):
        metrics.log_scalar("x", torch.tensor(2.0))
        metrics.reset_meters("inner")
        metrics.log_scalar("x", torch.tensor(4.0))
    assert metrics.get_smoothed_value("outer", "x") == 3.0
    assert metrics.get_smoothed_value("inner", "x") == 4.0


def test_nan_on_the_device_is_counted_and_left_out() -> None:
    meter = metrics.Average()
    for value in (1.0, math.nan, 3.0, math.inf):
        meter.update(torch.tensor(value), 2)
    assert (meter.value, meter.nonfinite, meter.count) == (2.0, 2, 4.0)


@pytest.mark.parametrize(
    "value",
    [
        5e-324,
        -5e-324,
        2.2250738585072014e-308,
        1.7976931348623157e308,
        -0.1,
        0.0,
        2.0**53 + 2,
        -(2.0**-60),
    ],
)
def test_every_float_keeps_its_bits_on_the_device(value: float) -> None:
    meter = metrics.Sum()
    meter.update(torch.tensor(value, dtype=torch.float64))
    assert meter.value == value


def test_tensors_logged_in_inference_mode_can_be_read_outside() -> None:
    with torch.inference_mode():
        for _ in range(300):
            metrics.log_scalar("x", torch.ones(()))
    metrics.log_scalar("x", torch.full((), 302.0))
    assert metrics.get_smoothed_values("default") == {"x": 2.0}


@pytest.mark.parametrize(
    "bad", [torch.ones(2), torch.ones(0), torch.ones((), dtype=torch.complex64)]
)
def test_a_tensor_that_is_not_one_real_number_is_refused(bad: torch.Tensor) -> None:
    with pytest.raises(SettingError, match="one real number"):
        metrics.log_scalar("x", bad)
