"""EvaluatorCallback: asks, gathers, logs, and leaves no trace in the training."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rank_group import run_ranks
from tiny_training import Regression, make_trainer, standing_log, weights

from sonde.callbacks.base import Callback
from sonde.compat.nemo.evaluator import EvaluatorCallback
from sonde.errors import SettingError
from sonde.run import Run
from sonde.train.stopping import StopWhen
from sonde.train.trainer import Trainer


class Writer:
    def __init__(self) -> None:
        self.scalars: list[tuple[str, float, int]] = []

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        self.scalars.append((tag, value, step))

    def close(self) -> None:
        self.scalars.append(("closed", 0.0, -1))


def eval_iter_callback(tensors: dict[str, list[torch.Tensor]], global_vars: dict[str, Any]) -> None:
    """As the manual's users write it."""
    if "eval_loss" not in global_vars:
        global_vars["eval_loss"] = []
    for name, value in tensors.items():
        if name.startswith("mean"):
            global_vars["eval_loss"].append(torch.mean(torch.stack(value)).item())


def eval_epochs_done_callback(global_vars: dict[str, Any]) -> dict[str, Any]:
    return {"Evaluation Loss": torch.max(torch.tensor(global_vars["eval_loss"]))}


def train(callback: Callback, updates: int = 5, **settings: Any) -> Regression:
    trainer, task = make_trainer(**settings)
    trainer.train(stop=StopWhen(max_updates=updates), callbacks=[callback])
    return task


def test_the_manuals_example_evaluates_at_the_start_every_n_steps_and_at_the_end() -> None:
    writer = Writer()
    train(
        EvaluatorCallback(
            ["mean"], eval_iter_callback, eval_epochs_done_callback, tb_writer=writer, eval_step=2
        ),
    )
    assert [(tag, step) for tag, _, step in writer.scalars[:-1]] == [
        ("Evaluation Loss", s) for s in (0, 2, 4, 5)
    ]
    assert writer.scalars[-1][0] == "closed"


def test_what_is_returned_may_hold_lists_and_dicts_and_all_of_it_goes_to_the_writers_function() -> (
    None
):
    """NeMo's pattern: keep everything, return it, and let the function choose."""
    written: list[tuple[dict[str, Any], int]] = []
    seen: list[dict[str, Any]] = []

    def it(values: dict[str, list[torch.Tensor]], g: dict[str, Any]) -> None:
        g.setdefault("preds", []).extend(values["mean"])
        g["by_name"] = {"loss": values["loss"]}
        g["last"] = values["loss"][0]
        g["text"] = "7"

    class Watcher(Callback):
        def on_evaluation_end(self, context: Any) -> None:
            seen.append(dict(context.metrics))

    def f(w: Any, result: dict[str, Any], step: int) -> None:
        written.append((result, step))

    w = Writer()
    trainer, _ = make_trainer()
    callbacks = [
        EvaluatorCallback(
            ["loss", "mean"], it, lambda g: g, tb_writer=w, tb_writer_func=f, eval_step=2
        )
    ]
    trainer.train(stop=StopWhen(max_updates=4), callbacks=[*callbacks, Watcher()])
    assert [step for _, step in written] == [0, 2, 4]
    assert [sorted(result) for result, _ in written] == [["by_name", "last", "preds", "text"]] * 3
    assert [sorted(metrics) for metrics in seen] == [["last", "loss", "weight"]] * 3
    assert w.scalars == [("closed", 0.0, -1)]


def test_without_a_writer_its_function_is_not_called_as_in_nemo() -> None:
    def fail(*_: object) -> None:
        raise AssertionError("called without a writer")

    train(EvaluatorCallback([], lambda *_: None, lambda _: {"x": 1.0}, None, fail, eval_step=5))


def test_without_a_function_the_numbers_are_written() -> None:
    writer = Writer()
    results = {
        "bleu": np.float32(2.5),
        "preds": [torch.ones(2), torch.ones(2)],
        "vector": torch.ones(3),
        "ok": True,
    }
    train(
        EvaluatorCallback(
            [],
            lambda *_: None,
            lambda _: results,
            tb_writer=writer,
            eval_step=5,
            eval_at_start=False,
        )
    )
    assert writer.scalars[:-1] == [("bleu", 2.5, 5), ("ok", 1.0, 5)]


def test_bug_the_evaluation_at_the_start_came_after_the_first_update() -> None:
    seen: list[list[float]] = []
    before = weights(Regression())
    task = Regression()

    def keep(_: dict[str, Any], kept: dict[str, Any]) -> None:
        kept["weights"] = weights(task)

    trainer, _ = make_trainer(task=task)
    callback = EvaluatorCallback(
        ["loss"], keep, lambda kept: seen.append(kept["weights"]), eval_step=100
    )
    trainer.train(stop=StopWhen(max_updates=2), callbacks=[callback])
    assert len(seen) == 2
    assert seen[0] == before
    assert seen[1] == weights(task)


def test_without_eval_at_start_the_first_is_after_eval_step_updates() -> None:
    steps: list[int] = []
    writer = Writer()
    train(
        EvaluatorCallback(
            "mean",
            eval_iter_callback,
            eval_epochs_done_callback,
            writer,
            lambda _writer, _returned, step: steps.append(step),
            eval_step=3,
            eval_at_start=False,
        )
    )
    assert steps == [3, 5]
    assert [tag for tag, _, _ in writer.scalars] == ["closed"]


def test_bug_eval_epoch_did_nothing_and_raised_without_eval_step() -> None:
    writer = Writer()
    callback = EvaluatorCallback(
        ["mean"],
        eval_iter_callback,
        eval_epochs_done_callback,
        writer,
        None,
        None,
        1,
        eval_at_start=False,
    )
    train(callback, updates=14)
    assert [step for tag, _, step in writer.scalars if tag != "closed"] == [6, 12, 14]


def test_bug_the_last_evaluation_was_repeated() -> None:
    writer = Writer()
    train(
        EvaluatorCallback(
            ["mean"], eval_iter_callback, eval_epochs_done_callback, writer, eval_step=5
        )
    )
    assert [step for tag, _, step in writer.scalars if tag != "closed"] == [0, 5]


@pytest.mark.parametrize("frequencies", [{"eval_step": None}, {"eval_step": 0}, {"eval_epoch": -1}])
def test_frequencies_that_never_come_are_refused(frequencies: dict[str, Any]) -> None:
    with pytest.raises(SettingError, match="eval_"):
        EvaluatorCallback(["loss"], eval_iter_callback, eval_epochs_done_callback, **frequencies)


def test_none_is_not_logged() -> None:
    writer = Writer()
    train(EvaluatorCallback(["mean"], lambda _values, _kept: None, lambda _: None, writer))
    assert [tag for tag, _, _ in writer.scalars] == ["closed"]


def test_bug_evaluation_perturbed_training(tmp_path: Path) -> None:
    def draw(_: Any, kept: dict[str, Any]) -> None:
        # the global generator is what is tested
        kept["drawn"] = (random.random(), np.random.rand(), torch.rand(1).item())  # noqa: NPY002

    def draw_again(kept: dict[str, Any]) -> dict[str, float]:
        draw(None, kept)
        return {"drawn": kept["drawn"][0]}

    results = []
    for name, callbacks in {
        "with": [EvaluatorCallback(["loss"], draw, draw_again)],
        "without": [],
    }.items():
        random.seed(3)
        np.random.seed(3)  # noqa: NPY002  the global generator is what is tested
        with Run(tmp_path / name) as run:
            trainer, task = make_trainer(run, save_every_updates=2)
            trainer.train(stop=StopWhen(max_updates=9), callbacks=callbacks)
        log = [entry for entry in standing_log(tmp_path / name) if "train.loss" in entry[2]]
        # the global generator is what is tested
        results.append((weights(task), log, random.random(), np.random.rand()))  # noqa: NPY002
    assert results[0] == results[1]


def evaluator_on(batches: list[torch.Tensor], name: str, **arguments: Any) -> EvaluatorCallback:
    """An evaluator with data of its own, which returns the number of rows it was told about."""

    def count(values: dict[str, list[torch.Tensor]], kept: dict[str, Any]) -> None:
        kept["rows"] = kept.get("rows", 0) + sum(len(value) for value in values["losses"])

    return EvaluatorCallback(
        ["losses"],
        count,
        lambda kept: {name: kept["rows"]},
        eval_data=lambda: batches,
        **arguments,
    )


def test_several_evaluators_have_data_sets_and_times_of_their_own() -> None:
    dev = Writer()
    test = Writer()
    seen: list[tuple[int, dict[str, Any]]] = []

    class Watcher(Callback):
        def on_evaluation_end(self, context: Any) -> None:
            seen.append((context.step, dict(context.metrics)))

    trainer, _ = make_trainer()
    trainer.valid_data = lambda: [torch.zeros(1, 4)]
    dev_evaluator = evaluator_on([torch.zeros(2, 4)] * 3, "dev_rows", tb_writer=dev, eval_step=2)
    test_evaluator = evaluator_on(
        [torch.zeros(5, 4)], "test_rows", tb_writer=test, eval_step=3, eval_at_start=False
    )
    trainer.train(
        stop=StopWhen(max_updates=5), callbacks=[dev_evaluator, test_evaluator, Watcher()]
    )
    assert dev.scalars[:-1] == [("dev_rows", 6, step) for step in (0, 2, 4, 5)]
    assert test.scalars[:-1] == [("test_rows", 5, step) for step in (3, 5)]
    # the trainer's own data are evaluated when somebody asks for it: here at the end
    ((step, metrics),) = seen
    assert step == 5
    assert metrics["weight"] == 1
    assert (metrics["dev_rows"], metrics["test_rows"]) == (6, 5)


def test_the_first_evaluators_data_are_the_main_ones_of_a_trainer_that_has_none() -> None:
    trainer, _ = make_trainer()
    trainer.valid_data = None
    first = evaluator_on([torch.zeros(2, 4)], "first", eval_step=2, eval_at_start=False)
    second = evaluator_on([torch.zeros(7, 4)], "second", eval_step=1)
    reason = trainer.train(
        stop=StopWhen(max_updates=9, patience=2, metric="second"), callbacks=[first, second]
    )
    assert reason.startswith("patience: 2 evaluations")


def test_eval_data_serves_a_trainer_that_has_none() -> None:
    batches = [torch.zeros(2, 4)]
    callback = EvaluatorCallback(
        ["mean"],
        eval_iter_callback,
        eval_epochs_done_callback,
        writer := Writer(),
        eval_data=lambda: batches,
    )
    trainer, _ = make_trainer()
    trainer.valid_data = None
    trainer.train(stop=StopWhen(max_updates=1), callbacks=[callback])
    assert [step for tag, _, step in writer.scalars if tag != "closed"] == [0, 1]


def test_a_value_that_the_task_does_not_give_ends_in_a_message() -> None:
    with pytest.raises(SettingError, match="no value called nothing"):
        train(EvaluatorCallback(["nothing"], eval_iter_callback, eval_epochs_done_callback))


@pytest.mark.slow
def test_data_sets_of_ones_own_are_evaluated_on_every_rank() -> None:
    def work(rank: int) -> list[Any]:
        writer = Writer()
        batches = [torch.zeros(2 + rank, 4)] * (1 + 2 * rank)
        trainer, _ = make_trainer(rank=rank, world_size=2)
        evaluator = evaluator_on(batches, "rows", tb_writer=writer, eval_step=1)
        trainer.train(stop=StopWhen(max_updates=2), callbacks=[evaluator])
        return writer.scalars

    of_rank_0, of_rank_1 = run_ranks(2, work)
    rows = 2 + 3 * 3
    assert of_rank_0[:-1] == [["rows", rows, step] for step in (0, 1, 2)]
    assert of_rank_1 == []


@pytest.mark.slow
def test_values_are_gathered_from_ranks_with_unequal_shapes_and_numbers_of_batches() -> None:
    def work(rank: int) -> list[Any]:
        seen: list[Any] = []
        callback = EvaluatorCallback(
            ["losses"],
            lambda values, _: seen.append([list(loss.shape) for loss in values["losses"]]),
            lambda _: {"num": len(seen)},
            eval_step=100,
        )
        trainer, _ = make_trainer(rank=rank, world_size=2)
        set_data(trainer, rank)
        trainer.train(stop=StopWhen(max_updates=1), callbacks=[callback])
        return seen

    of_rank_0, of_rank_1 = run_ranks(2, work)
    one_evaluation = [[[2], [3]], [[2], [3]], [[3]]]
    assert of_rank_0 == one_evaluation * 2
    assert of_rank_1 == []


def set_data(trainer: Trainer, rank: int) -> None:
    """Rank 0 has two batches of two rows, rank 1 three of three."""
    trainer.valid_data = lambda: [torch.ones(2 + rank, 4)] * (2 + rank)
