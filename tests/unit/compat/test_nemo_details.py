"""NeMo's callbacks in detail, tried literally."""

import inspect
from typing import Any

import pytest
from tiny_training import make_trainer

from sonde.compat.nemo import CheckpointCallback, EvaluatorCallback, WandbCallback
from sonde.errors import SettingError
from sonde.train.stopping import StopWhen


class Writer:
    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.append((tag, value, step))


def train(evaluator: EvaluatorCallback, updates: int = 4) -> None:
    trainer, _ = make_trainer()
    trainer.train(stop=StopWhen(max_updates=updates), callbacks=[evaluator])


@pytest.mark.parametrize("settings", [{"eval_step": None}, {"eval_step": 0}, {"eval_step": -1}])
def test_an_evaluator_that_never_evaluates_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(SettingError):
        EvaluatorCallback(["loss"], lambda *_: None, lambda _: None, **settings)


def test_what_is_kept_begins_empty_with_every_evaluation() -> None:
    sizes: list[int] = []

    def on_batch(_: Any, kept: dict[str, Any]) -> None:
        kept.setdefault("batches", []).append(1)

    train(EvaluatorCallback(["loss"], on_batch, lambda kept: sizes.append(len(kept["batches"]))))
    assert len(sizes) > 1
    assert len(set(sizes)) == 1


def test_a_batch_holds_nothing_but_lists_of_tensors() -> None:
    seen: list[str] = []

    def on_batch(values: dict[str, Any], _: Any) -> None:
        seen.extend(name for name, value in values.items() if isinstance(value, list))

    train(EvaluatorCallback(["loss"], on_batch, lambda _: None))
    assert set(seen) == {"loss"}


def test_a_value_is_a_list_with_a_tensor_for_every_rank() -> None:
    lengths: list[int] = []

    def on_batch(values: dict[str, Any], _: Any) -> None:
        lengths.append(len(values["loss"]))

    train(EvaluatorCallback(["loss"], on_batch, lambda _: None))
    assert set(lengths) == {1}


def test_none_from_the_second_function_writes_nothing() -> None:
    writer = Writer()
    train(EvaluatorCallback(["loss"], lambda *_: None, lambda _: None, tb_writer=writer))
    assert writer.scalars == []


def test_without_eval_at_start_the_first_evaluation_is_after_eval_step_updates() -> None:
    writer = Writer()
    done = {"x": 1.0}
    train(
        EvaluatorCallback(
            ["loss"],
            lambda *_: None,
            lambda _: done,
            tb_writer=writer,
            eval_step=2,
            eval_at_start=False,
        )
    )
    assert [step for _, _, step in writer.scalars] == [2, 4]


@pytest.mark.parametrize(
    ("callback", "defaults"),
    [
        (
            CheckpointCallback,
            {"load_from_folder": None, "step_freq": -1, "epoch_freq": -1, "checkpoints_to_keep": 4},
        ),
        (EvaluatorCallback, {"eval_step": 1, "eval_epoch": None, "eval_at_start": True}),
        (WandbCallback, {"wandb_name": None, "wandb_project": None, "args": None}),
    ],
)
def test_the_defaults_are_nemos(callback: Any, defaults: dict[str, Any]) -> None:
    parameters = inspect.signature(callback).parameters
    assert {name: parameters[name].default for name in defaults} == defaults


def test_the_losses_are_sent_every_25_steps() -> None:
    assert inspect.signature(WandbCallback).parameters["update_freq"].default == 25
