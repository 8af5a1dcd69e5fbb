"""Logs of other programs, found by what is in them: every format gives back the losses and steps
that were written, and a planted spike is found.
"""

import bz2
import contextlib
import gzip
import json
import lzma
import random
import sqlite3
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from further_logs_of_others import FIRST, FORMATS
from logs_of_others import LINES, falling, json_line, log_of, nanogpt_line, tcap_line, trainer_state

from sonde.curves.account import read_accounts
from sonde.curves.curve_events import find_curve_events
from sonde.curves.judgement import judge
from sonde.curves.loss_curves import LossCurve, loss_curve
from sonde.curves.recognise import find_sources
from sonde.errors import SondeError

GOLDEN = Path(__file__).parents[2] / "golden" / "data" / "imports"
STEPS = range(1, 301)


def only_curve(path: Path, metric: str | None = None) -> LossCurve:
    (source,) = find_sources(path)
    curve = loss_curve(source.points, metric)
    assert curve is not None
    return curve


def event_steps(curve: LossCurve) -> list[int]:
    return [event.first_step for event in find_curve_events(curve.steps, curve.values)]


@pytest.mark.parametrize(("words", "line"), LINES.items())
def test_lines_of_every_program_give_their_steps_and_losses(
    words: str, line: Callable[[int, float], str], tmp_path: Path
) -> None:
    loss = falling({217: 9.25})
    path = tmp_path / "no-name-that-says-anything"
    path.write_text(log_of(line, loss, STEPS))
    (source,) = find_sources(path)
    assert source.format == words
    curve = loss_curve(source.points)
    assert curve is not None
    assert curve.steps.tolist() == list(STEPS)
    assert curve.values.tolist() == pytest.approx([loss(step) for step in STEPS], abs=1e-3)
    assert event_steps(curve) == [217]


ODD_LINES: dict[str, Callable[[int, float], str]] = {
    "a step with thousands": lambda step, loss: f"step {1000 + step:,} | loss {loss:.4f}",
    "the percent of a bar": lambda step, loss: (
        f"Steps:  {step // 4}%|█ | {step}/400 [00:12<01:02, lr=1e-5, step_loss={loss:.4f}]"
    ),
    "losses that are added": lambda step, loss: (
        f"iteration {step} | mtp_1 loss: 4.1 | lm loss: {loss:.6E} | load_balancing_loss: 1.0"
    ),
    "a reinforced actor": lambda step, loss: (
        f"step:{step} - actor/kl_loss:0.001 - actor/pg_loss:{loss:.4f} - actor/grad_norm:0.8"
    ),
    "steps of ms-swift": lambda step, loss: (
        f"{{'loss': {loss:.4f}, 'epoch': 0.1, 'global_step/max_steps': '{step}/9000'}}"
    ),
    "steps of LLaMA-Factory": lambda step, loss: json.dumps(
        {"current_steps": step, "total_steps": 9000, "loss": loss, "epoch": 0.1}
    ),
    "one metric at a time": lambda step, loss: json.dumps(
        {"step": step, "name": "train/loss", "value": loss}
    ),
    "a list of metrics": lambda step, loss: json.dumps(
        {"step": step, "metrics": [{"name": "loss", "value": loss}, {"name": "lr", "value": 1}]}
    ),
    "a value with its unit": lambda step, loss: (
        f"{step},{loss:.4f} nats,12 ms" if step > 1 else "step,loss,time\n1,8.4 nats,12 ms"
    ),
    "a table for people": lambda step, loss: (
        f"| {step} | {loss:.4f} |" if step > 1 else "| step | loss |\n|---|---|\n| 1 | 8.4 |"
    ),
}


@pytest.mark.parametrize("what", ODD_LINES)
def test_an_odd_log_gives_the_step_of_its_spike(what: str, tmp_path: Path) -> None:
    loss = falling({217: 9.25})
    (tmp_path / "log").write_text(log_of(ODD_LINES[what], loss, STEPS))
    curve = only_curve(tmp_path / "log")
    thousand = 1000 if "thousands" in what else 0
    assert event_steps(curve) == [thousand + 217]


@pytest.mark.parametrize("name", FORMATS)
def test_a_log_of_another_program_gives_the_step_of_its_spike(name: str, tmp_path: Path) -> None:
    loss = falling({217: 9.25})
    above = f"{FIRST[name]}\n" if name in FIRST else ""
    (tmp_path / "log").write_text(above + log_of(FORMATS[name], loss, STEPS))
    (source,) = find_sources(tmp_path / "log")
    curve = loss_curve(source.points)
    assert curve is not None
    assert curve.steps.tolist() == list(STEPS)
    assert [finding.first_step for finding in judge(curve)] == [217]


def test_micro_batches_of_a_step_are_one_point(tmp_path: Path) -> None:
    loss = falling({217: 9.25})
    lines = [f"iter {n} | step {n // 4}: loss train (curr): {loss(n):.3f}\n" for n in range(1, 401)]
    (tmp_path / "log").write_text("".join(lines))
    assert event_steps(only_curve(tmp_path / "log")) == [54]


def test_an_epoch_that_falls_is_a_restart_where_no_step_is_printed(tmp_path: Path) -> None:
    loss = falling()
    steps = [*range(1, 301), *range(201, 401)]
    lines = [f"{{'loss': {loss(step):.4f}, 'epoch': {step / 100:.2f}}}\n" for step in steps]
    (tmp_path / "log").write_text("".join(lines))
    curve = only_curve(tmp_path / "log")
    assert curve.steps.tolist() == list(range(1, 401))
    (found,) = judge(curve)
    assert (found.kind, found.first_step, found.last_step) == ("restart", 201, 300)


def test_text_in_16_bits_is_read_without_a_mark_and_with_the_line_ends_of_windows(
    tmp_path: Path,
) -> None:
    text = log_of(nanogpt_line, falling({217: 9.25}), STEPS).replace("\n", "\r\n")
    for encoding in ("utf-16-le", "utf-16-be", "utf-16"):
        (tmp_path / encoding).write_bytes(text.encode(encoding))
        assert event_steps(only_curve(tmp_path / encoding)) == [217]


def test_the_losses_of_a_history_are_found_below_a_list_of_epochs(tmp_path: Path) -> None:
    loss = falling({217: 9.25})
    history = {"epoch": list(STEPS), "history": {"loss": [loss(step) for step in STEPS]}}
    (tmp_path / "history.json").write_text(json.dumps(history))
    assert event_steps(only_curve(tmp_path / "history.json")) == [217]


def test_lines_of_tcap_are_read_with_their_numbers_in_text(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(log_of(tcap_line, falling({217: 9.25}), STEPS))
    curve = only_curve(tmp_path / "log")
    assert curve.values[216] == 9.25
    assert event_steps(curve) == [217]


def test_a_trainer_state_is_known_by_its_content_and_its_evaluations_are_left_out(
    tmp_path: Path,
) -> None:
    steps = range(25, 10_001, 25)
    loss = falling({5_000: 25.0}, scale=2500)
    (tmp_path / "renamed.txt").write_text(trainer_state(loss, steps, norm_at={5_000: 30.0}))
    (source,) = find_sources(tmp_path / "renamed.txt")
    assert source.format == "Hugging Face's trainer_state.json"
    curve = loss_curve(source.points)
    assert curve is not None
    assert curve.name == "loss"  # not the summary `train_loss`, which has one value
    assert (len(curve), curve.spacing) == (400, 25)
    assert curve.norms[curve.index(5_000)] == 30.0
    assert event_steps(curve) == [5_000]


def test_a_compressed_log_is_opened(tmp_path: Path) -> None:
    text = log_of(json_line, falling({217: 9.25}), STEPS)
    (tmp_path / "log").write_bytes(gzip.compress(text.encode()))
    assert event_steps(only_curve(tmp_path / "log")) == [217]


def test_a_compressed_log_with_its_end_missing_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    packed = gzip.compress(log_of(json_line, falling(), STEPS).encode())
    (tmp_path / "log").write_bytes(packed[: len(packed) // 2])
    (source,) = find_sources(tmp_path / "log")
    assert 50 < len(list(source.points)) < 299
    assert source.damage == ["its compressed end is missing, or too long to be read"]


def test_a_damaged_compression_is_read_up_to_the_damage(tmp_path: Path) -> None:
    text = log_of(nanogpt_line, falling({217: 9.25}, scale=1e9), range(1, 20_001))
    content = gzip.compress(text.encode())
    half = len(content) // 2
    (tmp_path / "log.gz").write_bytes(content[:half] + b"\xff" * 64 + content[half + 64 :])
    (source,) = find_sources(tmp_path / "log.gz")
    curve = loss_curve(source.points)
    assert curve is not None
    assert 217 in event_steps(curve)
    assert "its compression is damaged" in source.damage[0]


@pytest.mark.parametrize("compress", [bz2.compress, lzma.compress])
def test_other_compressions_are_opened(compress: Callable[[bytes], bytes], tmp_path: Path) -> None:
    text = log_of(nanogpt_line, falling({217: 9.25}), STEPS)
    (tmp_path / "log").write_bytes(compress(text.encode()))
    assert event_steps(only_curve(tmp_path / "log")) == [217]


def test_a_file_that_is_all_damage_says_so(tmp_path: Path) -> None:
    (tmp_path / "log.gz").write_bytes(b"\x1f\x8b" + b"\xff" * 500)
    with pytest.raises(SondeError) as caught:
        read_accounts([tmp_path / "log.gz"])
    assert "its compression is damaged" in str(caught.value.cause)


def test_zeros_that_a_crash_left_in_a_log_are_passed_over(tmp_path: Path) -> None:
    text = log_of(nanogpt_line, falling({217: 9.25}), STEPS).encode()
    (tmp_path / "log").write_bytes(text[:5000] + bytes(4096) + text[5000:])
    assert event_steps(only_curve(tmp_path / "log")) == [217]


def test_a_state_whose_end_is_missing_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    whole = trainer_state(falling({217: 9.25}), STEPS)
    (tmp_path / "trainer_state.json").write_text(whole[: len(whole) * 9 // 10])
    (source,) = find_sources(tmp_path / "trainer_state.json")
    curve = loss_curve(source.points)
    assert curve is not None
    assert event_steps(curve) == [217]
    assert source.damage == ["its end is missing"]


def test_files_of_tensorboard_and_wandb_are_known_by_their_first_bytes(tmp_path: Path) -> None:
    for name, words in (
        ("events.out.tfevents", "TensorBoard event files"),
        ("run.wandb", "a wandb file"),
    ):
        path = tmp_path / "renamed.bin"
        path.write_bytes((GOLDEN / name).read_bytes())
        (source,) = find_sources(path)
        assert source.format == words
        assert any("train.loss" in point.values for point in source.points)


def test_lightnings_table_has_gaps_and_empty_cells(tmp_path: Path) -> None:
    rows = ["epoch,step,train_loss_epoch,train_loss_step,val_loss"]
    loss = falling({10_849: 9.25}, scale=5000)
    for place in range(300):
        step = 50 * place + 49
        rows.append(f"{place // 100},{step},,{loss(step)},")
        if place % 100 == 99:
            rows += [f"{place // 100},{step},,,3.5", f"{place // 100},{step},3.1,,"]
    (tmp_path / "table").write_text("\n".join(rows))
    (source,) = find_sources(tmp_path / "table")
    assert source.format == "Lightning's metrics.csv"
    curve = loss_curve(source.points)
    assert curve is not None
    assert (curve.name, curve.spacing, len(curve)) == ("train_loss_step", 50, 300)
    assert event_steps(curve) == [10_849]


def test_a_comma_may_be_the_decimal_point(tmp_path: Path) -> None:
    (tmp_path / "table").write_text("step;loss\n1;2,5\n2;3,25\n")
    assert only_curve(tmp_path / "table").values.tolist() == [2.5, 3.25]


def test_the_largest_numbers_and_steps_overflow_nothing(tmp_path: Path) -> None:
    rows = "".join(
        f"{step},{value}\n" for step, value in enumerate(("1e308", "-1e308", "inf") * 40)
    )
    (tmp_path / "a.csv").write_text(f"step,loss\n{rows}")
    (tmp_path / "b.csv").write_text(f"step,loss\n{rows}7,nan\n")
    (tmp_path / "steps.jsonl").write_text(
        "".join(f'{{"step": {10**power}, "loss": 1.0}}\n' for power in range(60))
    )
    accounts = read_accounts([tmp_path])
    assert len(accounts.runs) == 3
    assert accounts.runs[0].findings[0].kind == "nonfinite"


def test_a_column_called_run_holds_several_runs(tmp_path: Path) -> None:
    rows = [f"{run},{step},{step / 7}" for run in ("a/b", "c") for step in range(5)]
    (tmp_path / "t.csv").write_text("\n".join(["run,step,loss", *rows]))
    assert [source.name for source in find_sources(tmp_path / "t.csv")] == ["a/b", "c"]


def test_a_chart_downloaded_from_wandb_has_a_run_in_every_column(tmp_path: Path) -> None:
    head = '"Step","apple-1 - train/loss","apple-1 - train/loss__MIN","pear-2 - train/loss"'
    (tmp_path / "chart.csv").write_text(f'{head}\n"0","8.5","8.5","7"\n"1","8","8",""\n')
    apple, pear = find_sources(tmp_path / "chart.csv")
    assert (apple.name, [tuple(point) for point in apple.points]) == (
        "apple-1",
        [(0, None, {"train.loss": 8.5}), (1, None, {"train.loss": 8.0})],
    )
    assert (pear.name, [point.values for point in pear.points]) == ("pear-2", [{"train.loss": 7.0}])


def test_a_download_of_one_metric_is_named_by_its_file(tmp_path: Path) -> None:
    path = tmp_path / "run-7-tag-train_loss.csv"
    path.write_text("Wall time,Step,Value\n1700000000.5,10,3.5\n1700000001.5,20,3.25\n")
    curve = only_curve(path)
    assert (curve.name, curve.steps.tolist(), curve.values.tolist()) == (
        "train_loss",
        [10, 20],
        [3.5, 3.25],
    )
    assert curve.times.tolist() == [1700000000.5, 1700000001.5]


def test_a_metric_of_mlflow_is_time_value_and_step(tmp_path: Path) -> None:
    path = tmp_path / "train_loss"
    path.write_text("1700000000000 3.5 1\n1700000001000 3.25 2\n")
    curve = only_curve(path)
    assert (curve.steps.tolist(), curve.values.tolist()) == ([1, 2], [3.5, 3.25])


def mlflow_database(path: Path, values: dict[str, list[tuple[int, float, bool]]]) -> None:
    """A database with MLflow's tables; every run has a loss."""
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.execute("CREATE TABLE runs (run_uuid TEXT, name TEXT, start_time BIGINT)")
        database.execute(
            "CREATE TABLE metrics (key TEXT, value FLOAT, timestamp BIGINT, run_uuid TEXT,"
            " step BIGINT, is_nan BOOLEAN)"
        )
        for number, (name, rows) in enumerate(values.items()):
            database.execute("INSERT INTO runs VALUES (?, ?, ?)", (f"id{number}", name, number))
            for step, value, is_nan in rows:
                row = ("train_loss", value, 1_700_000_000_000 + step, f"id{number}", step, is_nan)
                database.execute("INSERT INTO metrics VALUES (?, ?, ?, ?, ?, ?)", row)
        database.commit()


def test_the_runs_of_an_mlflow_database_have_their_names_and_events(tmp_path: Path) -> None:
    loss = falling({217: 9.25})
    spiked = [(step, loss(step), False) for step in STEPS]
    broken = [(step, 0.0 if step == 300 else falling()(step), step == 300) for step in STEPS]
    endless = [(step, sys.float_info.max if step == 5 else 3.0, False) for step in STEPS]
    mlflow_database(tmp_path / "db", {"first": spiked, "second": broken, "third": endless})
    sources = find_sources(tmp_path / "db")
    assert [source.name for source in sources] == ["first", "second", "third"]
    curves = [loss_curve(source.points) for source in sources]
    first = [judge(curve)[0] for curve in curves if curve is not None]
    found = [(finding.kind, finding.first_step) for finding in first]
    assert found == [("spike", 217), ("nonfinite", 300), ("nonfinite", 5)]


def test_a_database_of_something_else_is_told(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "db")) as database:
        database.execute("CREATE TABLE x (y TEXT)")
        database.commit()
    with pytest.raises(SondeError) as caught:
        read_accounts([tmp_path / "db"])
    assert "no database of MLflow" in str(caught.value.cause)


def test_columns_of_numbers_may_have_the_step_in_either_place(tmp_path: Path) -> None:
    for name, text in (
        ("loss.txt", "3.5 0\n3.25 100\n3 200\n"),
        ("l2", "0 3.5\n100 3.25\n200 3\n"),
    ):
        (tmp_path / name).write_text(text)
        curve = only_curve(tmp_path / name)
        assert (curve.steps.tolist(), curve.values.tolist()) == ([0, 100, 200], [3.5, 3.25, 3.0])


def test_a_progress_bars_own_loss_gives_way_to_the_real_one(tmp_path: Path) -> None:
    bars = [
        f"Epoch 0:   3%|▎   | {step}/20101 [2:12:19<76:15:08, 14.05s/it, loss=nan, v_num=,"
        f" val_loss_step=11.30, reduced_train_loss={9 / step}, global_step={step}.0, "
        for step in range(1, 60)
    ]
    (tmp_path / "log").write_text("\r".join(bars))
    curve = only_curve(tmp_path / "log")
    assert (curve.name, len(curve), curve.values[8]) == ("reduced_train_loss", 59, 1.0)


def test_a_table_without_a_loss_is_not_taken_for_one(tmp_path: Path) -> None:
    (tmp_path / "results.csv").write_text("policy\n4607\n3812\n9999\n")
    (tmp_path / "scores.csv").write_text("name,policy\na,4607\nb,3812\nc,9999\n")
    for source in find_sources(tmp_path):
        assert loss_curve(source.points) is None


def test_a_history_of_keras_is_a_table_of_columns(tmp_path: Path) -> None:
    document = {"loss": [2.0, 1.5, 1.25], "val_loss": [2.5, 2.25, 2.0], "epoch": [0, 1, 2]}
    (tmp_path / "history").write_text(json.dumps(document))
    curve = only_curve(tmp_path / "history")
    assert (curve.steps.tolist(), curve.values.tolist()) == ([0, 1, 2], [2.0, 1.5, 1.25])


def test_a_counter_that_begins_again_with_every_epoch_goes_on(tmp_path: Path) -> None:
    lines = [
        f"Train Epoch: {epoch} [{batch}/600 ({batch / 6:.0f}%)]\tLoss: {3 - epoch - batch / 1000}"
        for epoch in (1, 2)
        for batch in range(0, 600, 100)
    ]
    (tmp_path / "log").write_text("\n".join(lines))
    curve = only_curve(tmp_path / "log")
    assert curve.steps.tolist() == list(range(0, 1200, 100))
    assert curve.restarts == ()


def test_a_folder_gives_every_log_in_it_and_none_of_its_other_files(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "a.log").write_text(log_of(nanogpt_line, falling(), STEPS))
    (tmp_path / "b.jsonl").write_text(log_of(json_line, falling(), STEPS))
    (tmp_path / "model.bin").write_bytes(bytes(range(256)) * 100)
    (tmp_path / "train.py").write_text("print('loss: 3.5, step: 1')\n")
    assert [source.path.name for source in find_sources(tmp_path)] == ["b.jsonl", "a.log"]


def test_torn_and_garbled_logs_never_raise_anything_but_our_own_errors(tmp_path: Path) -> None:
    dice = random.Random(1)
    texts = [log_of(line, falling(), range(1, 40)) for line in LINES.values()]
    texts.append(trainer_state(falling(), range(1, 40)))
    texts.append("step,loss\n" + "".join(f"{step},{9 / step}\n" for step in range(1, 40)))
    path = tmp_path / "log"
    for text in texts:
        for _ in range(12):
            content = bytearray(text.encode()[: dice.randrange(len(text))])
            for _ in range(20):
                if content:
                    content[dice.randrange(len(content))] = dice.randrange(256)
            path.write_bytes(content)
            try:
                sources = find_sources(path)
            except SondeError:
                continue
            for source in sources:
                curve = loss_curve(source.points)
                if curve is not None:
                    event_steps(curve)
