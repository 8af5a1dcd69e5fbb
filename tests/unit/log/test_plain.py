from collections import OrderedDict
from collections.abc import Iterator, Mapping

import numpy as np
import pytest
import torch

from sonde.log.device import MAX_ELEMENTS, Copy, Unpacked, arrived


class StubEvent:
    """The event of a device that is not there, or has failed."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def synchronize(self) -> None:
        if self.error is not None:
            raise self.error


class DeviceTensor(torch.Tensor):
    """A tensor that says it is on a device."""

    @property
    def is_cpu(self) -> bool:  # type: ignore[override]  # a plain attribute of torch's
        return False


class BadMapping(Mapping[str, object]):
    def __getitem__(self, key: str) -> object:
        raise RuntimeError("no")

    def __iter__(self) -> Iterator[str]:
        return iter("a")

    def __len__(self) -> int:
        return 1


@pytest.mark.parametrize(
    "value", [1, 1.5, "x", None, True, [1, 2], (1, 2), {"a": 1}, np.float32(1.5)]
)
def test_values_without_tensors_are_left_alone(value: object) -> None:
    assert Unpacked().value(value) is value


@pytest.mark.parametrize(
    ("tensor", "plain"),
    [
        (torch.tensor(1.5), 1.5),
        (torch.tensor(True), True),
        (torch.tensor([1, 2]), [1, 2]),
        (torch.nn.Parameter(torch.tensor([0.5])), [0.5]),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (torch.tensor([]), []),
    ],
)
def test_a_tensor_on_the_cpu_is_read_at_once(tensor: torch.Tensor, plain: object) -> None:
    unpacked = Unpacked()
    assert unpacked.data({"x": tensor, "nested": [1, {"y": (tensor,)}]}) == {
        "x": plain,
        "nested": [1, {"y": [plain]}],
    }
    assert unpacked.copies == []
    assert unpacked.num_tensors == 2


def test_a_large_or_empty_headed_tensor_is_described() -> None:
    assert (
        Unpacked().value(torch.zeros(MAX_ELEMENTS + 1))
        == "tensor of shape [100001], torch.float32, on cpu"
    )
    assert "meta" in str(Unpacked().value(torch.zeros(2, device="meta")))


def test_a_device_tensor_becomes_a_copy_that_is_resolved_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[object] = []

    def begin(tensor: object) -> Copy:
        begun.append(tensor)
        return Copy(torch.tensor(7.0), StubEvent())

    tensor = torch.ones(1).as_subclass(DeviceTensor)
    monkeypatch.setattr("sonde.log.device.begin_copy", begin)
    unpacked = Unpacked()
    data = unpacked.data({"loss": tensor, "deep": [tensor]})
    assert begun == [tensor, tensor]
    assert len(unpacked.copies) == 2
    assert arrived(data) == {"loss": 7.0, "deep": [7.0]}


def test_a_device_without_events_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(tensor: object) -> Copy:
        raise RuntimeError("no events here")

    monkeypatch.setattr("sonde.log.device.begin_copy", begin)
    assert Unpacked().value(torch.ones(2).as_subclass(DeviceTensor)) == [1.0, 1.0]


def test_a_device_that_has_failed_is_named_in_the_record() -> None:
    assert "RuntimeError: lost" in arrived({"x": Copy(None, StubEvent(RuntimeError("lost")))})["x"]


def test_anything_but_a_mapping_is_kept_as_value() -> None:
    assert Unpacked().data(3.0) == {"value": 3.0}
    assert Unpacked().data(OrderedDict(a=torch.tensor(1))) == {"a": 1}
    assert "RuntimeError" in Unpacked().data(BadMapping())["value"]


def test_a_tensor_that_cannot_be_read_does_not_raise() -> None:
    tensor = torch.tensor([0.0, 1.0]).to_sparse()
    assert "could not be read" in str(Unpacked().value(tensor))
