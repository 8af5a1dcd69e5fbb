"""`sonde demo`: trace a spike to its cause on a small real training run, step by step."""

import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Final

from rich.text import Text

from sonde.checkpoint.resume_report import MOMENTS, read_reports
from sonde.cli.check import check_script, show_report
from sonde.cli.terminal import SafeConsole, coloured, needs, print_indented, print_sample
from sonde.demo.scenario import Narrator, claim, language_model, open_log, translation
from sonde.forensics.checks.check_report import CheckReport
from sonde.report import wording
from sonde.spikes.decoding import DecodedSample

_WIDTH: Final = 80
_INDENT: Final = 3
_SHOWN_CHARACTERS: Final = 300
_CONTEXT_TOKENS: Final = 16


_BUGS: Final = {"causality", "padding_in_loss", "optimizer_members"}
"""The checks that name the bugs of demo/three_bugs.py."""


def demo(
    *,
    out: Path = Path("sonde-demo"),
    translate: bool = False,
    heal: bool = False,
    check: bool = False,
    seed: int = 1,
) -> int:
    """See sonde at work on a real run with one bad document.

    The loss spike is detected, explained and skipped. Then a check finds three bugs in a script,
    and a resume lacks its optimizer. Exits 1 if the diagnosis does not name the planted document,
    or something else is not found.

    Parameters
    ----------
    out
        Folder for the corpus, run, verdict.json and report. A folder of an earlier demo is
            overwritten; any other existing folder is refused.
    translate
        Train a translation model instead of a language model.
    heal
        Show self-healing instead: a weight is corrupted in memory and the run repairs itself. Exits
            1 if it does not.
    check
        Show `sonde check` instead: a script with three bugs that no loss curve shows. Exits 1 if it
            does not name all of them.
    seed
        Random seed for the choice of the bad document, the data order and the initial weights.
    """
    needs("sonde demo", "torch", "tokenizers")
    if check:
        return _show_check(out)
    started = time.monotonic()
    claim(out)
    from sonde.demo.story import play, play_healing

    narrator = _ScreenNarrator()
    make_scenario = partial(translation if translate else language_model, out / "data", seed=seed)
    if heal:
        return 0 if play_healing(make_scenario, out, narrator) else 1
    step, is_right = play(make_scenario, out, narrator)
    has_found = _play_check(out, narrator) and _play_resume(out, narrator)
    if step is not None:
        narrator.last_words(out, step, time.monotonic() - started)
    return 0 if is_right and has_found else 1


def _three_bugs(out: Path) -> list[str]:
    """Return the command of the script with three bugs, which writes nothing in a check."""
    return [sys.executable, "-m", "sonde.demo.three_bugs", str(out / "run-checked")]


def _show_check(out: Path) -> int:
    report = check_script(_three_bugs(out))[0]
    show_report(report)
    return 0 if _names_all_bugs(report) else 1


def _names_all_bugs(report: CheckReport) -> bool:
    return {result.name for result in report.wrong} == _BUGS


def _play_check(out: Path, narrator: Narrator) -> bool:
    """Check another script before it runs. Returns whether its bugs were found."""
    narrator.act("Before a run: sonde check")
    with open_log(out) as log:
        report = check_script(_three_bugs(out), log)[0]
    narrator.tell(
        f"{len(report.results)} experiments in {report.seconds:.1f} s with another script, whose"
        f" loss falls as it should, found {len(report.wrong)} mistakes:"
    )
    for result in report.wrong:
        narrator.tell(f"· {result.title}: {result.text}")
    return _names_all_bugs(report)


def _play_resume(out: Path, narrator: Narrator) -> bool:
    """Train and resume a script that forgets its optimizer. Returns whether that was noticed."""
    narrator.act("After a restart: what was not restored")
    command = [sys.executable, "-m", "sonde.demo.lost_optimizer", str(out)]
    for words in (command, [*command, "--resume"]):
        subprocess.run(words, check=True, capture_output=True)
    (report,) = read_reports(out / "run-resumed")
    narrator.tell(
        f"A third script was stopped after {report.from_step} steps and started again. Before its"
        " next step sonde said:"
    )
    for finding in report.lost:
        narrator.tell(f"· {finding.what}: {finding.text}")
    return MOMENTS in {finding.what for finding in report.lost}


class _ScreenNarrator:
    """Narrates the demo in 80 columns."""

    def __init__(self) -> None:
        self._console = SafeConsole()
        self._console.width = min(self._console.width, _WIDTH)
        self._num_acts = 0

    def act(self, title: str) -> None:
        """Print a numbered heading."""
        self._num_acts += 1
        self._console.print(Text(f"{self._num_acts}  {title}", style="bold cyan"))

    def tell(self, text: str) -> None:
        """Print a paragraph."""
        print_indented(self._console, Text(text), _INDENT)

    def show(self, sample: DecodedSample, *, calm_loss: float | None) -> None:
        """Print a few lines from where the text becomes odd, tokens coloured by loss; for a pair,
        the source first.
        """
        if sample.source_text:
            print_sample(
                self._console, Text(wording.visible(sample.source_text), style="dim"), 2 * _INDENT
            )
        print_sample(self._console, odd_part(sample, calm_loss), 2 * _INDENT)

    def last_words(self, folder: Path, step: int, seconds: float) -> None:
        """Print the commands for a closer look."""
        self._console.print(
            Text(f"\n{wording.duration(seconds)} in all. To look further:", style="bold")
        )
        run = folder / "run"
        report = folder / "report.html"
        for command in (
            f"sonde spikes {run} --step {step}",
            f"sonde diagnose {run} --step {step}",
            f"sonde show {folder / 'run-resumed'}",
            f"sonde report {run} -o {report}",
            f"sonde plot {run} loss lr",
        ):
            self._console.print(Text(f"   {command}"), soft_wrap=True)
        self._console.print(Text(f"Open {report} in a browser.", style="bold"), soft_wrap=True)


def odd_part(sample: DecodedSample, calm_loss: float | None) -> Text:
    """Return the text of a sample from shortly before it becomes odd, coloured by loss: where most
    of the next few tokens have twice the loss of calm steps. It is as it is without losses.
    """
    losses = sample.ranked.token_losses
    if not losses or len(losses) != len(sample.token_texts) or calm_loss is None:
        return Text(wording.visible(sample.text[:_SHOWN_CHARACTERS]))
    # `not <`: a loss that is not a number is as odd as can be
    is_odd = [not loss < 2 * calm_loss for loss in losses]
    begin = 0
    for place in range(len(is_odd)):
        if sum(is_odd[place : place + _CONTEXT_TOKENS]) > _CONTEXT_TOKENS // 2:
            begin = place
            break
    first = max(0, begin - _CONTEXT_TOKENS)
    shown = coloured(map(wording.visible, sample.token_texts[first:]), losses[first:], calm_loss)
    cut = "…" if len(shown) > _SHOWN_CHARACTERS else ""
    return Text("…" if first else "").append_text(shown[:_SHOWN_CHARACTERS]).append(cut)
