"""The pages and the points behind them, asked of a real server."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from dashboard_server import ask, serving, token_of
from eventful_run import BACK_TO, HOSTILE, NUM_STEPS, SPIKE_STEP

from sonde.checkpoint.resume_report import EVENT as RESUME_REPORT
from sonde.checkpoint.resume_report import Finding, ResumeReport
from sonde.cli.main import run as sonde
from sonde.dashboard.serve import DashboardServer
from sonde.forensics.checks.check_report import CheckReport, RowPicture
from sonde.forensics.checks.check_rule import CheckResult
from sonde.forensics.verdict import Cause, Verdict, write_verdict
from sonde.records.journal import append_event
from sonde.records.layout import RunLayout
from sonde.records.values import encode
from sonde.report.html.markup import escape
from sonde.run import Run

EVENTFUL = 'run "><img onerror=x>'
RUN = f"/run/{quote(EVENTFUL)}"


def get(server: DashboardServer, path: str) -> str:
    answer = ask(server.port, path)
    assert answer.status == 200, answer.text[-500:]
    return answer.text


def points(server: DashboardServer, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(server, "/api/curves?" + urlencode(query, doseq=True)))
    return found


def compared(server: DashboardServer, **query: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(get(server, "/api/compare?" + urlencode(query, doseq=True)))
    return found


def steps(line: dict[str, Any]) -> list[int]:
    place = 0
    found = []
    for change in line["dx"]:
        place += change
        found.append(place)
    return found


def test_the_list_has_every_run_with_how_it_stands(server: DashboardServer) -> None:
    page = get(server, "/")
    for name in ("sweep/lr-0", "sweep/lr-2", "ranks", "empty", "damaged"):
        assert f'href="/run/{name}"' in page
    assert 'class="status bad">damaged' in page
    assert "8 runs" in page
    assert "of 400" in page  # progress: 200 of 400 steps


def test_the_list_is_searched_by_name_status_and_settings(server: DashboardServer) -> None:
    assert "3 runs" in get(server, "/?q=sweep")
    assert "1 run<" in get(server, "/?q=sweep+0.1")
    assert "1 run<" in get(server, "/?q=damaged")
    assert "No run matches." in get(server, "/?q=nosuchrun")


def test_the_list_is_sorted(server: DashboardServer) -> None:
    page = get(server, "/?q=sweep&sort=loss")
    assert (
        page.index("/run/sweep/lr-0")
        < page.index("/run/sweep/lr-1")
        < page.index("/run/sweep/lr-2")
    )
    assert 'aria-sort="ascending"' in page
    page = get(server, "/?q=sweep&sort=nonsense")
    # the last that was written
    assert page.index("/run/sweep/lr-2") < page.index("/run/sweep/lr-0")


def test_sparklines_come_with_the_number_of_events(server: DashboardServer) -> None:
    found = json.loads(
        get(server, "/api/sparks?" + urlencode({"run": [EVENTFUL, "empty", "no"]}, doseq=True))
    )
    assert found[EVENTFUL]["spark"].startswith("<svg")
    assert found[EVENTFUL]["events"] == "1"
    assert "<path" not in found["empty"]["spark"]
    assert "no" not in found


def test_a_run_has_its_figures_events_and_what_could_not_be_read(server: DashboardServer) -> None:
    page = get(server, RUN)
    assert f'href="{RUN}/step/{SPIKE_STEP}"' in page
    assert "1 damaged line in steps.rank0.jsonl" in page
    assert "Verdicts" in page


def test_the_points_of_a_run_hold_loss_validation_ghosts_and_events(
    server: DashboardServer,
) -> None:
    data = points(server, run=EVENTFUL)
    assert [panel["title"] for panel in data["panels"]] == [
        "loss",
        "gradient norm",
        "learning rate",
        "tokens per second",
    ]
    assert [line["kind"] for line in data["panels"][0]["lines"]] == ["ghost", "line", "dots"]
    assert data["panels"][0]["broken"] == [[350, "NaN"]]
    assert [(event["first"], event["kind"]) for event in data["events"]] == [
        (BACK_TO, "restart"),
        (SPIKE_STEP, "spike"),
    ]
    assert data["whole"] == [1, NUM_STEPS]


def test_a_stretch_has_the_points_between_and_one_beyond_each_end(server: DashboardServer) -> None:
    data = points(server, run="sweep/lr-0", **{"from": 50, "to": 60})
    assert steps(data["panels"][0]["lines"][0]) == list(range(49, 62))


def test_any_metric_may_be_asked_for_also_a_nested_one(server: DashboardServer) -> None:
    data = points(server, run="sweep/lr-1", metric=["eval.bleu", "nothing"])
    assert [panel["title"] for panel in data["panels"]] == ["eval.bleu"]
    assert data["panels"][0]["lines"][0]["y"][-1] == 20


def test_ranks_are_selectable_and_the_mean_is_over_all(server: DashboardServer) -> None:
    means = [
        points(server, run="ranks", rank=rank)["panels"][0]["lines"][0]["y"][0]
        for rank in ("", 0, 1)
    ]
    assert means == [2.5, 2.0, 3.0]
    assert '<option value="1">rank 1' in get(server, "/run/ranks")


def test_an_event_has_its_samples_verdict_tensors_and_commands(server: DashboardServer) -> None:
    page = get(server, f"{RUN}/step/{SPIKE_STEP}")
    for part in (
        "the worst 5 of 5 samples",
        "What happened at step 300",
        "What was tried",
        "Tensors at step 300",
    ):
        assert part in page
    assert 'class="h9"' in page
    assert "t.de:4" in page
    for verb in ("rollback", "spikes", "skip"):
        assert f"sonde {verb} " in page
    assert "so its steps cannot be replayed" in page  # and no command says otherwise
    assert "sonde replay" not in page
    assert "data-job" not in page
    assert page.index("What happened at step 300") < page.index("the worst 5 of 5 samples")
    assert page.index("the worst 5 of 5 samples") < page.index("Tensors at step 300")


def test_a_step_without_an_event_says_so(server: DashboardServer) -> None:
    assert "No event was recorded at step 7" in get(server, f"{RUN}/step/7")


def test_checkpoints_say_whether_they_are_verified_or_distrusted(server: DashboardServer) -> None:
    page = get(server, f"{RUN}/checkpoints")
    assert page.count("verified") == 2
    assert "distrusted: " in page
    assert "Samples left out" in page


def test_the_log_and_the_settings_have_pages(server: DashboardServer) -> None:
    assert "train.ips" in get(server, f"{RUN}/log")
    assert "rank 1" in get(server, "/run/ranks/log?rank=1")
    page = get(server, f"{RUN}/settings")
    assert "model.dim" in page
    assert "sha256:0a1b" in page


def test_the_worst_samples_come_from_the_ledger_with_their_text(server: DashboardServer) -> None:
    page = get(server, f"{RUN}/samples")
    assert "The 5 worst of 5 samples" in page
    assert "t.de:4" in page
    assert "sonde worst " in page
    assert HOSTILE[0] not in page
    assert "kept no ledger" in get(server, "/run/ranks/samples")


@pytest.mark.parametrize("name", ["empty", "damaged"])
@pytest.mark.parametrize("part", ["", "/samples", "/checkpoints", "/log", "/settings", "/step/1"])
def test_a_run_with_nothing_in_it_has_all_pages(
    server: DashboardServer, name: str, part: str
) -> None:
    assert name in get(server, f"/run/{name}{part}")


def test_compared_runs_share_an_axis_and_show_differences_first(server: DashboardServer) -> None:
    names = [f"sweep/lr-{number}" for number in range(3)]
    page = get(server, "/compare?" + urlencode({"run": names}, doseq=True))
    assert "1 of " in page
    assert (
        page.index("<code>lr</code>")
        < page.index("that are the same")
        < page.index("<code>dim</code>")
    )
    data = compared(server, run=names)
    lines = data["panels"][0]["lines"]
    assert [line["label"] for line in lines] == names
    assert [line["colour"] for line in lines] == [0, 1, 2]
    assert data["num_colours"] == 3
    assert data["whole"] == [1, 200]


def test_compared_runs_are_drawn_over_tokens_and_time(server: DashboardServer) -> None:
    data = compared(server, run=["sweep/lr-0", "sweep/lr-1"], x="tokens")
    assert (data["axis"], data["whole"]) == ("tokens", [100, 20_000])
    data = compared(server, run=["sweep/lr-0", EVENTFUL], x="seconds")
    assert data["whole"][0] == 0
    assert len(data["panels"][0]["lines"]) == 2


def test_a_smoothed_curve_has_the_raw_one_behind_it(server: DashboardServer) -> None:
    raw, smooth = compared(server, run=["sweep/lr-0"], smooth=10)["panels"][0]["lines"]
    assert (raw["kind"], smooth["kind"]) == ("raw", "line")
    assert (raw["colour"], smooth["colour"]) == (0, 0)
    assert max(smooth["y"]) < max(raw["y"])


def test_what_a_run_lacks_is_said(server: DashboardServer) -> None:
    data = compared(server, run=["sweep/lr-0", "empty", "ranks"], metric="eval.bleu")
    assert data["missing"] == ["empty has no eval.bleu", "ranks has no eval.bleu"]
    assert compared(server, run=["ranks"], x="tokens")["missing"] == [
        "ranks does not say its tokens"
    ]
    assert "Not found: nowhere" in get(server, "/compare?run=ranks&run=nowhere")


def test_hostile_text_is_text_on_every_page(server: DashboardServer) -> None:
    for part in ("", f"/step/{SPIKE_STEP}", "/checkpoints", "/log", "/settings"):
        page = get(server, RUN + part)
        for hostile in HOSTILE[:3]:
            assert hostile not in page
    assert escape(HOSTILE[0]) in get(server, f"{RUN}/settings")


def test_a_run_that_appears_later_is_found(server: DashboardServer, runs: Path) -> None:
    assert ask(server.port, "/run/nowhere").status == 404
    assert "That cannot be shown" in ask(server.port, "/run/nowhere").text


def test_all_values_of_metrics_are_a_table(server: DashboardServer) -> None:
    query = urlencode({"run": ["sweep/lr-0", "sweep/lr-1"], "metric": "eval.bleu"}, doseq=True)
    answer = ask(server.port, f"/csv?{query}")
    assert answer.headers["content-disposition"] == 'attachment; filename="sonde.csv"'
    lines = answer.text.splitlines()
    assert lines[0] == "run,metric,step,value"
    assert lines[1] == "sweep/lr-0,eval.bleu,1,0.1"
    assert lines[-1] == "sweep/lr-1,eval.bleu,200,20.0"
    assert len(lines) == 401
    assert ask(server.port, "/csv?run=nowhere").status == 404


def test_the_names_of_all_metrics_come_in_sections(server: DashboardServer) -> None:
    found = json.loads(get(server, "/api/metrics?run=sweep/lr-0"))
    assert found == [
        {"name": "eval", "metrics": ["eval.bleu"]},
        {"name": "", "metrics": ["tokens"]},
    ]


def test_forty_metrics_are_drawn_at_once_and_unknown_ones_are_said(server: DashboardServer) -> None:
    names = ["tokens", *(f"m{number}" for number in range(39))]
    data = points(server, run="sweep/lr-0", metric=names)
    assert [panel["id"] for panel in data["panels"]] == ["tokens"]
    assert len(data["missing"]) == 39
    assert data["missing"][0] == "m0 was not recorded in this run"


def test_runs_are_coloured_by_a_setting(server: DashboardServer) -> None:
    names = ["sweep/lr-0", "sweep/lr-1", "sweep/lr-2"]
    data = compared(server, run=names, colour="lr")
    assert [line["colour"] for line in data["panels"][0]["lines"]] == [2, 1, 0]
    assert list(data["legend"]) == ["lr = 0.010000000000000002", "lr = 0.1", "lr = 1.0"]
    data = compared(server, run=names, colour="dim")
    assert data["num_colours"] == 1


def test_several_metrics_are_compared_each_in_a_panel(server: DashboardServer) -> None:
    names = ["sweep/lr-0", "ranks"]
    data = compared(server, run=names, metric=["loss", "eval.bleu"])
    assert [panel["title"] for panel in data["panels"]] == ["loss", "eval.bleu"]
    assert [len(panel["lines"]) for panel in data["panels"]] == [2, 1]
    assert data["missing"] == ["ranks has no eval.bleu"]


def test_the_axis_that_a_run_does_not_record_is_said(server: DashboardServer) -> None:
    data = points(server, run="ranks", x="tokens")
    assert (data["panels"], data["missing"]) == ([], ["This run does not say its tokens."])
    data = points(server, run="sweep/lr-0", x="tokens")
    assert (data["axis"], data["whole"]) == ("tokens", [100, 20_000])


def test_the_header_says_how_a_run_stands(server: DashboardServer) -> None:
    page = get(server, RUN)
    assert "2 damaged lines" in page or "1 damaged line" in page
    assert "last write <time " in page
    assert 'class="status bad">finished' in page


def test_an_event_that_a_script_records_is_in_the_list_and_has_a_page(
    server: DashboardServer, runs: Path
) -> None:
    with Run(runs / "sweep" / "lr-2") as run:
        run.event("my_check", step=5, title="what happened")
    page = get(server, "/run/sweep/lr-2")
    assert '<span class="kind wrong">my check</span>' in page
    assert 'href="/run/sweep/lr-2/step/5"' in page
    assert "what happened" in get(server, "/run/sweep/lr-2/step/5")
    assert points(server, run="sweep/lr-2")["events"][0]["label"] == "my check: what happened"


def test_a_step_of_an_earlier_attempt_has_a_page_that_says_so(
    server: DashboardServer, runs: Path
) -> None:
    run = runs / "sweep" / "lr-1"
    cause = Cause(cause="garbled_text", title="of the first attempt", confidence=0.8)
    aside = run / "attempts" / "1"
    write_verdict(aside, Verdict(run_id="x", step=7, causes=(cause,), time=1.0))
    page = get(server, "/run/sweep/lr-1")
    assert "Earlier attempts" in page
    assert 'href="/run/sweep/lr-1/step/7?attempt=1"' in page
    page = get(server, "/run/sweep/lr-1/step/7?attempt=1")
    assert "of the first attempt" in page
    assert "This is attempt 1 of the run, which was started over later." in page
    assert "sonde diagnose" not in page
    assert "No event was recorded at step 7" in get(server, "/run/sweep/lr-1/step/7")
    assert ask(server.port, "/run/sweep/lr-1/step/7?attempt=2").status == 404


def test_a_superseded_verdict_says_so(server: DashboardServer, runs: Path) -> None:
    run = runs / "sweep" / "lr-0"
    cause = Cause(cause="garbled_text", title="found before", confidence=0.8)
    cause = replace(cause, advice=("Roll back: `sonde rollback RUN --step 150 --apply`.",))
    write_verdict(run, Verdict(run_id="x", step=150, causes=(cause,), time=1.0))
    append_event(run, "rollback", step=150, checkpoint=100, time=2.0)
    page = get(server, "/run/sweep/lr-0/step/150")
    assert "superseded: the run went back to step 100 later" in page
    assert "What it advised then" in page
    assert "Nothing: the run went back to before this step" in page
    assert "data-copy" not in page
    assert '<span class="note"> superseded</span>' in get(server, "/run/sweep/lr-0")


def test_a_cause_that_this_version_does_not_know_is_shown_by_its_title(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        run.logger.log(5, {"loss": 1.0})
    cause = Cause(cause="of_a_later_version", title="A new <b>kind</b>", confidence=0.8)
    write_verdict(tmp_path / "run", Verdict(run_id="x", step=5, causes=(cause,), time=1.0))
    with serving(tmp_path) as server:
        for path in ("/run/run", "/run/run/step/5"):
            assert "A new &lt;b&gt;kind&lt;/b&gt;" in get(server, path)
        assert "of a later version" in get(server, "/run/run/step/5")
        details = json.loads(get(server, "/api/sparks?run=run"))
        assert "A new <b>kind</b>" in json.dumps(details)


def test_a_step_without_samples_offers_no_command_about_them(tmp_path: Path) -> None:
    losses = [2.0 + step % 3 / 10 for step in range(300)]
    losses[250] = 9.0
    rows = "".join(f"{step},{loss}\n" for step, loss in enumerate(losses))
    (tmp_path / "log.csv").write_text(f"step,train/loss\n{rows}")
    run = tmp_path / "runs" / "imported"
    assert sonde(["import-log", str(tmp_path / "log.csv"), "--out", str(run)]) == 0
    with serving(tmp_path / "runs") as server:
        page = get(server, "/run/imported/step/250")
    assert "<code>sonde why " in page
    assert "sonde skip" not in page
    assert "sonde rollback" not in page


CHECKED = CheckReport(
    results=(
        CheckResult(
            name="causality",
            title="later tokens",
            status="wrong",
            text="Later tokens move earlier losses: <b>25 %</b>.",
            advice="Look at the mask.",
        ),
        CheckResult(name="modes", title="modes", status="fine", text="Dropout acts.", advice=""),
    ),
    rows=(RowPicture(inputs=("a", "b"), targets=("b", "")),),
    num_updates=8,
    seconds=1.5,
)


def test_a_check_is_a_page_and_without_one_the_page_has_its_command(tmp_path: Path) -> None:
    Run(tmp_path / "run").close()
    with serving(tmp_path) as server:
        assert "sonde check -- " in get(server, "/run/run/check")
        layout = RunLayout(tmp_path / "run")
        layout.check.write_bytes(encode(CHECKED.document()))
        page = get(server, "/run/run/check")
        layout.check.write_bytes(b'{"results": 3')
        damaged = get(server, "/run/run/check")
    assert "1 wrong" in page
    assert "Look at the mask." in page
    assert escape("<b>25 %</b>") in page
    assert "cannot be" in damaged


def test_an_audit_that_is_kept_in_a_run_is_a_page(tmp_path: Path) -> None:
    Run(tmp_path / "run").close()
    corpus = tmp_path / "corpus.txt"
    texts = [f"A man in a blue shirt stands on ladder number {place}." for place in range(200)]
    texts[150] = "#2%%X0Q&1#1X^50}&^&7%{35~Q82Q23 zq§ <i>"
    corpus.write_text("\n".join(texts))
    with serving(tmp_path) as server:
        assert "sonde audit DATA --run" in get(server, "/run/run/audit")
        assert sonde(["audit", str(corpus), "--run", str(tmp_path / "run")]) == 0
        page = get(server, "/run/run/audit")
    assert "200 texts" in page
    assert escape(texts[150]) in page


def test_the_window_of_an_event_ends_where_the_run_ends(server: DashboardServer) -> None:
    event = get(server, f"{RUN}/step/{NUM_STEPS - 20}")
    assert f'data-from="{NUM_STEPS - 120}"' in event
    assert f'data-to="{NUM_STEPS}"' in event


def test_a_restart_that_lost_something_offers_no_diagnosis(tmp_path: Path) -> None:
    with Run(tmp_path / "run") as run:
        run.logger.log(5, {"loss": 1.0})
    finding = Finding(what="moments", status="lost", text="EMPTY")
    report = ResumeReport(step=5, from_step=5, claim="number", findings=[finding])
    append_event(tmp_path / "run", RESUME_REPORT, **report.as_details())
    (tmp_path / "run" / "flight" / "states" / "step-000000000004").mkdir(parents=True)
    with serving(tmp_path, allow_jobs=True) as server:
        answer = ask(server.port, f"/?token={token_of(server.address)}")
        cookie = answer.headers["set-cookie"].partition(";")[0]
        page = ask(server.port, "/run/run/step/5", headers={"Cookie": cookie})
    assert "EMPTY" in page.text
    assert "sonde replay" in page.text
    assert "sonde diagnose" not in page.text
    assert 'data-job="diagnose"' not in page.text
    assert "samples of this step" not in page.text


def test_the_audit_of_a_run_of_sonde_train_names_its_data(tmp_path: Path) -> None:
    (tmp_path / "my data").mkdir()
    with Run(tmp_path / "runs" / "run", config={"data": str(tmp_path / "my data")}):
        pass
    with serving(tmp_path / "runs") as server:
        page = get(server, "/run/run/audit")
    assert escape(f"sonde audit '{tmp_path / 'my data'}' --run {tmp_path}/runs/run") in page
