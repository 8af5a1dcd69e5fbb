"""Parameters in plain containers are found and told."""

import logging
from typing import Any

import pytest
import torch
from tiny_training import Numbers, Regression
from torch import nn

from sonde.train.schedule import Schedule
from sonde.train.stopping import StopWhen
from sonde.train.trainer import Trainer
from sonde.train.unregistered import unregistered_parameters


class Model(nn.Module):
    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.first(x)[:, :1]
        return output


def test_a_linear_in_a_plain_list_is_found() -> None:
    model = Model(layers=[nn.Linear(4, 4), nn.Linear(4, 1, bias=False)])
    assert unregistered_parameters(model) == [
        "layers[0].weight",
        "layers[0].bias",
        "layers[1].weight",
    ]


@pytest.mark.parametrize(
    ("attributes", "found"),
    [
        ({"heads": {"a": nn.Linear(2, 1, bias=False)}}, ["heads['a'].weight"]),
        ({"pairs": ((nn.Linear(2, 1, bias=False),), 7)}, ["pairs[0][0].weight"]),
        ({"scales": [nn.Parameter(torch.ones(1))]}, ["scales[0]"]),
        ({"inner": Model(deep=[nn.Linear(1, 1, bias=False)])}, ["inner.deep[0].weight"]),
        (
            {"layers": [Model(deep=[nn.Linear(1, 1, bias=False)])]},
            ["layers[0].first.weight", "layers[0].first.bias", "layers[0].deep[0].weight"],
        ),
    ],
)
def test_every_plain_container_is_looked_into(attributes: dict[str, Any], found: list[str]) -> None:
    assert unregistered_parameters(Model(**attributes)) == found


def test_what_torch_sees_is_not_named() -> None:
    linear = nn.Linear(4, 4)
    model = Model(
        layers=nn.ModuleList([linear]),
        same=[linear],
        names=["a", 1, None],
        buffers_too=[torch.ones(3)],
        scales=nn.ParameterList([nn.Parameter(torch.ones(1))]),
    )
    assert unregistered_parameters(model) == []
    assert unregistered_parameters(nn.Transformer(8, 2, 1, 1, 8, batch_first=True)) == []


def test_a_frozen_teacher_hidden_on_purpose_is_not_named() -> None:
    teacher = nn.Linear(4, 4).requires_grad_(False)
    assert unregistered_parameters(Model(hidden=[teacher])) == []


def test_containers_that_hold_themselves_or_much_data_end() -> None:
    endless: list[Any] = [nn.Linear(1, 1, bias=False)]
    endless.append(endless)
    assert unregistered_parameters(Model(endless=endless)) == ["endless[0].weight"]
    assert unregistered_parameters(Model(data=list(range(1_000_000)))) == []


def test_the_trainer_tells_once_at_the_start(caplog: pytest.LogCaptureFixture) -> None:
    task = Regression()
    task.model = Model(layers=[nn.Linear(4, 4)])
    optimizer = torch.optim.SGD(task.model.parameters(), lr=0.1)
    trainer = Trainer(task, Numbers(), optimizer, schedule=Schedule(schedule="constant", lr=0.1))
    with caplog.at_level(logging.WARNING, logger="sonde"):
        trainer.train(stop=StopWhen(max_updates=3))
    told = [message for message in caplog.messages if "does not see" in message]
    assert len(told) == 1
    assert "2 parameters of the model: layers[0].weight, layers[0].bias." in told[0]
    assert "nn.ModuleList" in told[0]
