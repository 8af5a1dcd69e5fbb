"""`sonde why`: what it prints for somebody with a curve and a question, and what programs get."""

import json
import math
import random
import re
from pathlib import Path

import pytest
from logs_of_others import falling, json_line, log_of, megatron_line, nanogpt_line, trainer_state

from sonde.cli.main import run as sonde
from sonde.forensics.verdict import Cause, Suspect, Verdict, write_verdict
from sonde.records.values import decode
from sonde.run import Run

PROJECT = Path(__file__).parents[3]
STEPS = range(1, 401)
PAGE = Path(__file__).parents[3] / "docs" / "formats" / "why.md"


def told(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert sonde(["why", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def document(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict[str, object]:
    found = decode(told(capsys, *arguments, "--json").encode())
    assert isinstance(found, dict)
    return found


def spiked(path: Path, *, seed: int = 1) -> Path:
    path.write_text(log_of(nanogpt_line, falling({250: 9.0}, seed=seed), STEPS))
    return path


def shifted(path: Path, shift: float) -> None:
    """A run over the same data as `spiked`, whose weights are worse by a shift."""
    loss = falling({250: 9.0 - shift})
    path.write_text(log_of(nanogpt_line, lambda step: loss(step) + shift, STEPS))


def test_a_log_is_told_with_its_curve_its_event_and_the_next_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = spiked(tmp_path / "train.log")
    text = told(capsys, path)
    assert "nanoGPT's log · 400 points of loss, one every step" in text
    assert "⡇" in text or "⢸" in text  # the curve
    assert "step 250  spike\n  The loss is 9 where 3.0" in text
    assert "probably: The batch: it lasts one point." in text
    assert "which rows were in the batch, and their texts: only a recorder knows them" in text
    assert f"sonde import-log {path} --out runs/train" in text


def test_every_line_fits_eighty_columns_except_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    spiked(Path("train.log"))
    Path("trainer_state.json").write_text(trainer_state(falling({200: 25.0}), range(10, 4001, 10)))
    bad = [megatron_line(step, 3.0 + max(step - 300, 0) * 0.01) for step in range(1, 500)]
    Path("megatron.log").write_text("\n".join(bad))
    for name in ("train.log", "trainer_state.json", "megatron.log"):
        for line in told(capsys, name).splitlines():
            assert len(line) <= 80 or line.startswith("    "), line


def test_a_calm_log_is_called_calm_and_asks_for_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text(log_of(json_line, falling(), STEPS))
    text = told(capsys, tmp_path / "log")
    assert "nothing stands out: no spike, no jump, no divergence" in text
    assert "Next" not in text


def test_check_exits_with_one_if_something_went_wrong(tmp_path: Path) -> None:
    (tmp_path / "calm").write_text(log_of(json_line, falling(), STEPS))
    assert sonde(["why", str(tmp_path / "calm"), "--check"]) == 0
    assert sonde(["why", str(spiked(tmp_path / "bad")), "--check"]) == 1
    assert sonde(["why", str(tmp_path / "bad")]) == 0


def test_two_runs_that_jump_at_the_same_step_blame_the_data(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, shift in (("a", 0.0), ("b", 0.2)):
        shifted(tmp_path / name, shift)
    text = told(capsys, tmp_path / "a", tmp_path / "b")
    assert text.count("The data: 2 of 2 runs jump at this step under other weights.") == 2


def test_many_runs_are_a_table_with_what_recurs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(6):
        shifted(tmp_path / f"run-{number}.log", number / 10)
    text = told(capsys, tmp_path)
    assert "6 runs saw the same data in the same order." in text
    assert "step 250: in 6 of 6 runs: the data's" in text


def test_the_document_says_what_its_page_promises(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = document(capsys, spiked(tmp_path / "train.log"))
    page = PAGE.read_text(encoding="utf-8")
    fields = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert (found["format"], found["version"]) == ("sonde-why", 1)
    runs = found["runs"]
    assert isinstance(runs, list)
    (run,) = runs
    (finding,) = run["findings"]
    (guess,) = finding["probably"]
    names = {*found, *run, *finding, *guess, *run["next"][0]}
    assert names <= fields, names - fields
    assert (run["metric"], run["num_points"], run["num_events"]) == ("loss", 400, 1)
    assert (finding["kind"], finding["first_step"], finding["value"]) == ("spike", 250, 9.0)
    (example,) = re.findall(r"^```json\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert set(json.loads(example)["runs"][0]) == set(run)


def test_another_number_can_be_asked_about(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{step},{90.0 if step == 300 else 7 + step % 3}" for step in STEPS]
    (tmp_path / "t.csv").write_text("\n".join(["step,reward", *rows]))
    assert "step 300  spike" in told(capsys, tmp_path / "t.csv", "--metric", "reward")
    (tmp_path / "two.csv").write_text("step,reward,kl\n1,2,3\n2,3,4\n")
    assert sonde(["why", str(tmp_path / "two.csv")]) == 1
    assert "two.csv has reward, kl" in capsys.readouterr().err
    assert sonde(["why", str(tmp_path / "two.csv"), "--metric", "rewrd"]) == 1
    assert "did you mean 'reward'?" in capsys.readouterr().err


@pytest.mark.parametrize("content", [b"", b"hello\nworld\n", bytes(range(256)), b"{", b"[[]]"])
def test_a_file_without_a_loss_gets_an_error_and_no_traceback(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(content)
    assert sonde(["why", str(tmp_path / "file")]) == 1
    assert "error: there is no loss in" in capsys.readouterr().err


def recorded_run(directory: Path) -> Path:
    loss = falling({250: 9.0})
    with Run(directory) as run:
        recorder = run.spikes()
        for step in STEPS:
            run.logger.log(step=step, data={"loss": loss(step)})
            rows = [("train", step), ("train", step + 1000)]
            recorder.observe(step, loss(step), sample_ids=rows, sample_losses=[1.0, loss(step) * 2])
    return directory


def test_a_run_of_sonde_tells_its_worst_row_and_how_to_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded_run(tmp_path / "run")
    text = told(capsys, run)
    assert "a run of sonde · 400 points of loss" in text
    assert "Its worst row is train 1250: loss 18, 95% of the step." in text
    assert f"sonde spikes {run} --step 250" in text
    assert "cannot tell" not in text


def test_a_run_that_only_logged_is_told_to_record(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loss = falling({250: 9.0})
    with Run(tmp_path / "run") as run:
        for step in STEPS:
            run.logger.log(step=step, data={"loss": loss(step)})
    text = told(capsys, tmp_path / "run")
    assert "step 250  spike" in text
    assert "sonde.Recorder(run, model, optimizer)" in text
    assert "sonde spikes" not in text


def test_an_imported_run_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    spiked(tmp_path / "train.log")
    assert sonde(["import-log", str(tmp_path / "train.log"), "--out", str(tmp_path / "run")]) == 0
    capsys.readouterr()
    text = told(capsys, tmp_path / "run")
    assert "a run imported into sonde · 400 points of loss" in text
    assert "step 250  spike" in text
    assert "sonde.Recorder(run, model, optimizer)" in text


def test_a_run_with_a_verdict_tells_the_verdict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded_run(tmp_path / "run")
    suspect = Suspect(dataset="train", sample=1250, text="#2§%%X0Q&1")
    cause = Cause(
        cause="garbled_text",
        title="The batch holds garbled text",
        confidence=0.93,
        suspects=(suspect,),
    )
    write_verdict(run, Verdict(run_id="x", step=250, causes=(cause,)))
    text = told(capsys, run)
    assert "verdict: The batch holds garbled text (93%). train 1250: '#2§%%X0Q&1'." in text
    assert f"sonde rollback {run} --step 250" in text


def test_an_event_that_was_made_again_asks_for_nothing_more(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = recorded_run(tmp_path / "run")
    loss = falling()
    with Run(run) as again:
        for step in range(200, 401):
            again.logger.log(step=step, data={"loss": loss(step)})
    text = told(capsys, run)
    assert "step 250  spike (undone: the run went back)" in text
    assert "rollback" not in text


def test_single_rows_that_stand_out_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dice = random.Random(1)
    with Run(tmp_path / "run") as run:
        recorder = run.spikes()
        for step in range(1, 121):
            run.logger.log(step=step, data={"loss": 3.0})
            losses = [3.0 + dice.gauss(0, 0.1) for _ in range(32)]
            losses[5] = 9.0 if step == 100 else losses[5]
            recorder.observe(
                step,
                sum(losses) / 32,
                sample_ids=[("train", 32 * step + row) for row in range(32)],
                sample_losses=losses,
                token_counts=[20] * 32,
            )
    text = told(capsys, tmp_path / "run")
    assert "One sample stands out, though the mean need not show it. The worst, train 3205" in text
    assert "Nothing stands out" not in text


def test_a_log_of_losses_that_are_no_numbers_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "log").write_text(log_of(nanogpt_line, lambda _: math.nan, range(1, 60)))
    text = told(capsys, tmp_path / "log")
    assert "None of its 59 losses is a number." in text
    assert "step 1  not finite" in text


def test_the_largest_numbers_there_are_can_be_drawn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{step},{'1e308' if step % 2 else '-1e308'}\n" for step in range(1, 400)]
    (tmp_path / "log.csv").write_text("step,loss\n" + "".join(rows))
    assert sonde(["why", str(tmp_path / "log.csv")]) == 0
    assert "1e+308" in capsys.readouterr().out


def test_every_cause_of_a_guess_is_told_to_agents_and_on_the_page_of_the_format() -> None:
    sources = (PROJECT / "src" / "sonde" / "curves").glob("*.py")
    causes = set(re.findall(r'cause ?= ?"(\w+)"', "".join(path.read_text() for path in sources)))
    assert {"quiet", "none", "batch"} <= causes
    for page in ("src/sonde/SKILL.md", "docs/formats/why.md"):
        text = (PROJECT / page).read_text()
        assert [cause for cause in causes if f"`{cause}`" not in text] == []


def test_a_part_of_a_loss_with_an_event_of_its_own_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    box = falling()
    cls = falling({217: 9.25}, seed=2)
    rows = [f"{step},{box(step)},{cls(step)},{box(step)}\n" for step in STEPS]
    path = tmp_path / "results.csv"
    path.write_text("epoch,train/box_loss,train/cls_loss,val/box_loss\n" + "".join(rows))
    text = told(capsys, path)
    assert "Look at train.cls_loss too: it has an event of its own at step 217." in text
    assert f"sonde why {path} --metric train.cls_loss" in text
    assert sonde(["why", str(path), "--metric", "train.cls_loss", "--check"]) == 1
