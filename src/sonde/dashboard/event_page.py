"""One event: the samples behind it with their text, what a diagnosis found, the tensors, and the commands to go on with."""

import shlex
from typing import Final

from sonde.dashboard.frame import commands, crumbs, document, run_address
from sonde.dashboard.open_runs import OpenRun
from sonde.errors import SettingError, SondeError
from sonde.forensics.verdict import Verdict, read_verdict
from sonde.records.layout import RunLayout
from sonde.report import wording
from sonde.report.event_facts import MAX_SAMPLES, event_facts
from sonde.report.html.events import event_list, event_samples
from sonde.report.html.markup import Child, Markup, tag
from sonde.report.html.tensors import tensors
from sonde.report.html.verdict import verdicts
from sonde.spikes.decoding import SampleDecoder
from sonde.spikes.spike_log import RecordedSpike

_MANY: Final = 64


def event_page(name: str, run: OpenRun, step: int, *, show_many: bool, allow_jobs: bool) -> str:
    """The page; a step that nothing is known of is said to be one."""
    log = run.spikes()
    try:
        spike: RecordedSpike | None = log.at(step)
    except SettingError:
        spike = None
    verdict, problem = _verdict(run, step, spike)
    body: list[Child] = [tag("p", problem, class_="note")] if problem else []
    if spike is not None:
        facts, told = event_facts(spike, SampleDecoder(log.datasets), _MANY if show_many else MAX_SAMPLES)
        body += [event_list([facts]), _in_short(verdict)]
        more = min(facts.num_samples, _MANY) - len(facts.samples)
        further = tag("a", f"{more} more samples", href=run_address(name, "step", str(step), samples="many"))
        body += [tag("section", event_samples(facts), further if more > 0 else None, id="samples")] * bool(
            facts.samples
        )
        body += [tag("p", told or "The samples of this step were not recorded.", class_="note")] * (not facts.samples)
    elif verdict is None:
        body += [tag("p", f"No event was recorded at step {step:,}, and there is no verdict about it.", class_="none")]
    body += [verdicts((verdict,))] if verdict is not None else []
    body += [tensors((verdict,)) if verdict is not None else None]
    steps = [one.event.first_step for one in log.spikes]
    head = tag(
        "header",
        crumbs((name, run_address(name)), here=f"step {step:,}"),
        tag("h1", f"Step {step:,}"),
        _neighbours(name, steps, spike.event.first_step if spike is not None else step),
    )
    return document(f"step {step} of {name}", head, body, _next(run, step, verdict, name, allow_jobs), live=name)


def _verdict(run: OpenRun, step: int, spike: RecordedSpike | None) -> tuple[Verdict | None, str]:
    """The verdict about the step, or about another of the same event."""
    known = [number for number, _ in RunLayout(run.path).verdicts()]
    event = [] if spike is None else range(spike.event.first_step, spike.event.last_step + 1)
    wanted = step if step in known else next((number for number in known if number in event), None)
    if wanted is None:
        return None, ""
    try:
        return read_verdict(run.path, wanted), ""
    except SondeError as error:
        return None, error.message


def _in_short(verdict: Verdict | None) -> Markup | None:
    if verdict is None or not verdict.causes:
        return None
    first = verdict.causes[0]
    link = tag("a", first.title, href=f"#verdict-{verdict.step}")
    return tag("p", "Verdict: ", link, f" ({wording.percent(first.confidence)})", class_="short")


def _neighbours(name: str, steps: list[int], step: int) -> Markup:
    before = max((one for one in steps if one < step), default=None)
    after = min((one for one in steps if one > step), default=None)
    links = [
        tag("a", f"{text} event, step {one:,}", href=run_address(name, "step", str(one)), rel=rel)
        for text, rel, one in (("previous", "prev", before), ("next", "next", after))
        if one is not None
    ]
    around = run_address(name, **{"from": str(max(step - 100, 0)), "to": str(step + 100)})
    return tag("p", tag("a", "see it in the curves", href=around), links, class_="links")


def _next(run: OpenRun, step: int, verdict: Verdict | None, name: str, allow_jobs: bool) -> Markup:
    place = shlex.quote(str(run.path))
    lines = [
        ("make the step again, bit for bit", f"sonde replay {place} --step {step}"),
        ("find the cause" if verdict is None else "find the cause again", f"sonde diagnose {place} --step {step}"),
        ("plan the way back", f"sonde rollback {place} --step {step}"),
        ("leave its worst sample out", f"sonde skip {place} --step {step} --worst 1"),
    ]
    jobs = [
        tag("button", text, type="button", data_job=kind, data_run=name, data_step=step)
        for text, kind in (("Diagnose", "diagnose"), ("Replay", "replay"))
    ]
    return tag(
        "section",
        tag("h2", "What to do next"),
        commands(lines),
        tag("div", jobs, tag("pre", "", class_="log", id="job-output", hidden=True, tabindex="0"), class_="jobs")
        if allow_jobs
        else None,
    )
