"""What an alert from outside says of a sample: only what the run knows about one."""

from pathlib import Path

from logs_of_others import falling

from sonde.curves.watching import Watch
from sonde.forensics.verdict import Cause, Verdict, write_verdict
from sonde.run import Run


def recorded_run(directory: Path) -> Path:
    loss = falling({250: 9.0})
    with Run(directory) as run:
        recorder = run.spikes()
        for step in range(1, 401):
            run.logger.log(step=step, data={"loss": loss(step)})
            rows = [("train", step), ("train", step + 1000)]
            recorder.observe(step, loss(step), sample_ids=rows, sample_losses=[1.0, loss(step) * 2])
    return directory


def test_an_alert_has_the_worst_row_of_an_event(tmp_path: Path) -> None:
    (alert,) = Watch([recorded_run(tmp_path / "run")], past=True).look()
    assert alert.row == "Its worst row is train 1250: loss 18, 95% of the step."


def test_a_cause_that_speaks_of_growing_rows_is_no_row(tmp_path: Path) -> None:
    run = recorded_run(tmp_path / "run")
    causes = (
        Cause(cause="learning_rate", title="The learning rate is too high.", confidence=0.6),
        Cause(cause="optimizer_state", title="The state grows row by row.", confidence=0.3),
    )
    write_verdict(run, Verdict(run_id="", step=250, causes=causes))
    (alert,) = Watch([run], past=True).look()
    assert alert.cause == "The learning rate is too high (60%)."
    assert alert.row == ""
