"""Printed lines as people have posted them: every name and number that counts is found, and what
looks like one is not.
"""

import pytest

from sonde.curves.points import points_of
from sonde.curves.text_lines import numbers_in_line, rows_of_text

LINES = {
    # char-rnn
    "982/9500 (epoch 5.168), train_loss = 1.59, grad/param norm = 2.9e-02, time/batch = 0.1697s": {
        "batch": 982.0,
        "epoch": 5.168,
        "train_loss": 1.59,
        "norm": 0.029,
    },
    # nanotron
    "16:31:56 [INFO|DP=0]: iteration: 327281 / 378950 | consumed_tokens: 85.8G | lm_loss: 2.38 |": {
        "iteration": 327281.0,
        "lm_loss": 2.38,
    },
    # MLX
    "Iter 25: Train loss 1.593, Learning Rate 7.000e-05, It/sec 0.999, Peak mem 8.104 GB": {
        "iter": 25.0,
        "train loss": 1.593,
        "learning rate": 7e-5,
    },
    # torchvision's detection references
    "[02:40:09.09] Epoch: [3]  [120/460]  eta: 0:03:07  lr: 0.0001  loss: 0.6975 (0.6919)": {
        "epoch": 3.0,
        "batch": 120.0,
        "lr": 0.0001,
        "loss": 0.6975,
    },
    # a course's image captioning
    "Epoch [1/3], Step [100/12942], Loss: 9.2190, Perplexity: 10086.6150": {
        "epoch": 1.0,
        "step": 100.0,
        "loss": 9.219,
    },
    # TensorFlow's Estimator
    "INFO:tensorflow:loss = 0.0169, step = 5400 (147.086 sec)": {"loss": 0.0169, "step": 5400.0},
    "INFO:tensorflow:Loss for final step: 0.0025181356.": {"loss": 0.0025181356},
    # Caffe
    "I0101 12:00:00.0 123 solver.cpp:228] Iteration 100, loss = 1.23": {
        "iteration": 100.0,
        "loss": 1.23,
    },
    # a sentence
    "grpo_loss is 0.013 and kl is 0.115": {"grpo_loss": 0.013},
    # a tensor
    "Step 12, Loss = tensor(2.3, device='cuda:0')": {"step": 12.0, "loss": 2.3},
}


@pytest.mark.parametrize(("line", "wanted"), LINES.items())
def test_the_numbers_of_a_line_have_their_names(line: str, wanted: dict[str, float]) -> None:
    found = numbers_in_line(line)
    assert {name: found.get(name) for name in wanted} == wanted


def test_a_time_per_iteration_and_a_count_of_iterations_are_no_step() -> None:
    line = "elapsed time per iteration (ms): 1234.5 | number of skipped iterations:   0 |"
    assert not {"iteration", "iterations"} & numbers_in_line(line).keys()


def test_an_evaluation_between_training_steps_is_kept_apart() -> None:
    lines = [
        "Epoch: [0][10/250]\tLoss 3.5 (3.6)",
        "Test: [0/242]\tTime 1.2 (1.2)\tLoss 9.5 (9.5)",
        "Epoch: [0][20/250]\tLoss 3.4 (3.5)",
    ]
    assert [row.get("loss") for row in rows_of_text(lines)] == [3.5, None, 3.4]
    assert [row.get("val loss") for row in rows_of_text(lines)] == [None, 9.5, None]


def test_a_step_on_a_line_of_its_own_belongs_to_the_loss_below() -> None:
    lines = ["[step=7/100]", "    train/CrossEntropyLoss=2.5", "[step=8/100]", "    loss=2.25"]
    rows = list(rows_of_text(lines))
    assert [point.step for point in points_of(rows)] == [7, 8]


def test_an_epoch_on_a_line_of_its_own_holds_for_the_steps_below() -> None:
    lines = ["Epoch 1/2", "iter: 1 loss: 3", "iter: 2 loss: 2", "Epoch 2/2"]
    lines += ["iter: 1 loss: 1.5", "iter: 2 loss: 1.25"]
    assert [point.step for point in points_of(list(rows_of_text(lines)))] == [1, 2, 3, 4]


def test_the_steps_of_an_argument_in_logged_text_are_not_the_steps_of_the_training() -> None:
    lines = []
    for number in range(40):
        lines += ["Step 1: add. ", "Step 2: carry.", f"Step {3 + number % 2}: loss of generality"]
        lines.append(f"grpo_loss is 0.{number + 10}")
    steps = [point.step for point in points_of(list(rows_of_text(lines)))]
    assert steps == sorted(steps)
    assert len(steps) == 40
