"""`sonde check` on real scripts: what is planted is named, its right twin is not called wrong, and
nothing is written but the answer.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sonde.forensics.checks import CHECKS
from sonde.records.manifest import read_manifest

SCRIPTS = Path(__file__).parents[1] / "check_scripts"
LANGUAGE_MODEL = str(SCRIPTS / "language_model.py")
HOSTS = str(SCRIPTS / "hosts.py")
OWN_TRAINER = str(SCRIPTS / "own_trainer.py")
ACCUMULATION = str(SCRIPTS / "accumulation.py")
PLANTED = {
    "unshifted": "label_shift",
    "shifted_twice": "label_shift",
    "shifted_by_five": "label_shift",
    "shifted_back": "label_shift",
    "labels_of_other_rows": "label_shift",
    "sees_future": "causality",
    "sees_one_ahead": "causality",
    "batch_first": "rows_apart",
    "packed_leak": "documents_apart",
    "ignores_positions": "documents_apart",
    "pads_count": "padding_in_loss",
    "all_masked": "counted_positions",
    "double_softmax": "loss_inputs",
    "bad_init": "start_loss",
    "no_zero_grad": "left_over_gradients",
    "eval_mode": "train_mode",
    "dropout_in_eval": "dropout",
    "detached": "gradient_reach",
    "not_in_optimizer": "optimizer_members",
    "other_model": "optimizer_members",
    "plain_list": "unregistered",
    "untied": "tied_weights",
    "rate_zero": "learning_rate",
    "ascends": "one_batch",
    "undivided": "accumulation",
    "divided_twice": "accumulation",
    "same_batch": "repeated_rows",
    "rows_twice": "repeated_rows",
    "sorted_by_length": "row_order",
    "bfloat16_weights": "lost_updates",
}
"""For each bug of the language model, the check that names it."""


def check(*words: str) -> "subprocess.CompletedProcess[str]":
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        "PYTHONWARNINGS": "ignore",
    }
    return subprocess.run(
        [sys.executable, "-m", "sonde", "check", *words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )


def answer(*script: str) -> tuple[int, Any]:
    done = check("--json", "--", sys.executable, *script)
    assert done.stdout, done.stderr[-3000:]
    return done.returncode, json.loads(done.stdout)


def wrong(document: Any) -> set[str]:
    return {result["name"] for result in document["results"] if result["status"] == "wrong"}


@pytest.mark.slow
@pytest.mark.parametrize(("bug", "name"), PLANTED.items())
def test_a_planted_bug_is_named_and_nothing_else(tmp_path: Path, bug: str, name: str) -> None:
    code, document = answer(LANGUAGE_MODEL, str(tmp_path / "run"), "--bug", bug)

    assert code == 1
    assert wrong(document) == {name}


@pytest.mark.slow
def test_the_right_twin_is_not_called_wrong_and_nothing_is_written(tmp_path: Path) -> None:
    run = tmp_path / "run"
    code, document = answer(LANGUAGE_MODEL, str(run))

    assert code == 0
    assert wrong(document) == set()
    assert [result["name"] for result in document["results"]] == [check.name for check in CHECKS]
    assert not run.exists()


@pytest.mark.slow
def test_the_result_is_kept_in_a_run_that_exists_and_nothing_else_changes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    script = [sys.executable, LANGUAGE_MODEL, str(run)]
    subprocess.run(script, check=True, capture_output=True)
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}

    done = check("--", *script)

    after = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    kept = after.pop(run / "check.json")
    assert done.returncode == 0
    assert after == before
    assert json.loads(kept)["format"] == "sonde-check"
    assert read_manifest(run).num_starts == 1


@pytest.mark.slow
def test_a_script_with_few_steps_is_checked_with_those(tmp_path: Path) -> None:
    code, document = answer(LANGUAGE_MODEL, str(tmp_path / "run"), "--steps", "3")

    assert code == 0
    assert document["num_updates"] == 3


@pytest.mark.slow
@pytest.mark.parametrize("host", ["huggingface", "lightning"])
@pytest.mark.parametrize(
    ("bug", "names"),
    [("none", set()), ("shifted_twice", {"label_shift"}), ("sees_future", {"causality"})],
)
def test_hosts_are_checked_too(tmp_path: Path, host: str, bug: str, names: set[str]) -> None:
    pytest.importorskip("transformers" if host == "huggingface" else "lightning")
    code, document = answer(HOSTS, str(tmp_path / "run"), "--host", host, "--bug", bug)

    assert code == int(bool(names))
    assert wrong(document) == names
    states = {result["name"]: result["status"] for result in document["results"]}
    assert states["accumulation"] == "fine"
    assert not list(tmp_path.rglob("checkpoint-*"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "update_freq", "names"), [("none", 2, set()), ("unshifted", 1, {"label_shift"})]
)
def test_our_own_trainer_is_checked_without_a_line_added(
    tmp_path: Path, bug: str, update_freq: int, names: set[str]
) -> None:
    run = tmp_path / "run"
    script = [OWN_TRAINER, str(run), "--bug", bug, "--update-freq", str(update_freq)]
    code, document = answer(*script)

    assert code == int(bool(names))
    assert wrong(document) == names
    fine = {result["name"] for result in document["results"] if result["status"] == "fine"}
    assert {"dropout", "determinism", "one_batch"} <= fine
    assert ("accumulation" in fine) == (update_freq > 1)
    assert not list(tmp_path.rglob("checkpoint*/*"))
    assert not run.exists()


ACCUMULATION_BUGS = ("none", "undivided", "divided_twice", "cleared", "mean_of_means")
QUICK_BUGS = ("none", "mean_of_means")
"""What is tried in every loop by `make test`; `make faults` tries all of them."""
LOOPS = (
    ("last", "torch"),
    ("without_last", "torch"),
    ("inside", "torch"),
    ("lightning", "lightning"),
    ("by_hand", "lightning"),
    ("huggingface", "transformers"),
    ("accelerate", "accelerate"),
)


def loops_with_bugs() -> list[Any]:
    """Return every loop with every bug, the quick ones without a mark."""
    found = []
    for way, package in LOOPS:
        for bug in ACCUMULATION_BUGS:
            is_quick = way == "last" or bug in QUICK_BUGS
            marks = () if is_quick else pytest.mark.long_fault
            found.append(pytest.param(way, package, bug, marks=marks))
    return found


@pytest.mark.slow
@pytest.mark.parametrize(("way", "package", "bug"), loops_with_bugs())
def test_wrong_weights_of_micro_batches_are_named_in_every_loop(
    tmp_path: Path, way: str, package: str, bug: str
) -> None:
    pytest.importorskip(package)
    _, document = answer(ACCUMULATION, str(tmp_path / "run"), "--way", way, "--bug", bug)

    states = {result["name"]: result["status"] for result in document["results"]}
    assert states["accumulation"] == ("fine" if bug == "none" else "wrong")
    assert wrong(document) <= {"accumulation"}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["last", "without_last", "inside"])
def test_gradients_that_a_script_divides_itself_are_fine(tmp_path: Path, way: str) -> None:
    run = str(tmp_path / "run")
    _, document = answer(ACCUMULATION, run, "--way", way, "--bug", "gradients_divided")

    assert wrong(document) == set()


@pytest.mark.slow
def test_a_loop_that_hides_its_step_function_ends_with_the_answer(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sonde, torch\n"
        "model = torch.nn.Linear(8, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        f"recorder = sonde.Recorder({str(tmp_path / 'run')!r}, model, optimizer)\n"
        "for step in range(12):\n"
        "    loss = recorder.loss(model(torch.randn(6, 8)).square().mean())\n"
        "    optimizer.zero_grad()\n"
        "    loss.backward()\n"
        "    optimizer.step()\n"
        "print('came to the end')\n"
    )
    command = [sys.executable, str(script)]
    recorded = subprocess.run(command, check=True, capture_output=True, text=True)

    checked = check("--", *command)
    replay = [sys.executable, "-m", "sonde", "replay"]
    replayed = subprocess.run(
        [*replay, str(tmp_path / "run"), "--step", "5", "--", *command],
        check=False,
        capture_output=True,
        text=True,
    )

    assert "came to the end" in recorded.stdout
    for done in (checked, replayed):
        assert done.returncode == 1
        assert "recorder.step(" in done.stderr
        assert "came to the end" not in done.stderr + done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("bug", "names"),
    [("none", set()), ("same_rows", {"rank_rows"}), ("sorted", {"label_order"})],
)
def test_ranks_are_checked_together(tmp_path: Path, bug: str, names: set[str]) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    script = [str(SCRIPTS / "two_ranks.py"), str(tmp_path / "run"), "--bug", bug]
    code, document = answer(*launcher, *script)

    assert code == int(bool(names))
    assert wrong(document) == names


@pytest.mark.slow
def test_a_script_without_a_recorder_is_told_what_to_add(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("print('trained')")

    done = check("--", sys.executable, str(script))

    assert done.returncode == 1
    assert "sonde.Recorder(" in done.stderr
    assert "recorder.step(" in done.stderr


@pytest.mark.slow
def test_a_step_that_fails_names_the_token_without_an_embedding(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(
        "import sonde, torch\n"
        "model = torch.nn.Embedding(8, 4)\n"
        "optimizer = torch.optim.SGD(model.parameters(), lr=0.1)\n"
        "recorder = sonde.Recorder('run', model, optimizer)\n"
        "recorder.step(lambda batch: model(batch).sum().backward(), torch.tensor([[1, 9]]))\n"
    )

    done = check("--", sys.executable, str(script))

    assert done.returncode == 1
    assert "token 9" in done.stderr


@pytest.mark.slow
def test_the_demo_names_three_bugs_and_writes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "sonde", "demo", "--check", "--out", str(tmp_path / "demo")],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )

    assert done.returncode == 0, done.stdout
    assert not (tmp_path / "demo").exists()


def test_the_page_lists_every_check() -> None:
    page = (Path(__file__).parents[2] / "docs" / "check.md").read_text()

    assert [check.name for check in CHECKS if f"| `{check.name}` |" not in page] == []


def test_a_check_without_a_command_is_refused() -> None:
    assert check().returncode == 1
