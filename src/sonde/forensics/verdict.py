"""The result of a diagnosis of one step: causes by confidence, with evidence and advice; as plain
data and as a file. Its words on a page are made in report/html/verdicts.py, those in a terminal in
cli/diagnose.py.

The verdict on a step that holds now is `forensics/verdict-{step}.json` in the run; every one that
was ever reached is a line of `forensics/verdicts.jsonl` (docs/formats/verdict.md). Reading and
writing them needs no torch, so reports can be made on a machine that never trained.
"""

import contextlib
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from sonde.data.skip_list import SkipList
from sonde.errors import DamagedFile, RunError
from sonde.records import disk
from sonde.records.append import RecordFile
from sonde.records.files import read_small, write_file
from sonde.records.journal import read_events
from sonde.records.layout import RunLayout
from sonde.records.reader import read_records
from sonde.records.seal import seal, unseal_document
from sonde.records.values import decode, encode

SURE: Final = 0.7
"""With at least this confidence in a cause, its advice is to act. Below it, samples are not
skipped, and the advice is what to look at.
"""
FORMAT: Final = "sonde-verdict"
VERSION: Final = 1

SAMPLE_TEXT: Final = "sample_text"
"""The run event that holds the text of a sample that stood out."""
NOTHING: Final = "nothing_wrong"
"""The step is like those around it."""
UNKNOWN: Final = "not_known"
"""Something is wrong, but the evidence points to no cause."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """A sample that a cause points to."""

    dataset: str
    """The name of the dataset."""
    sample: int
    """The number of the sample in the dataset."""
    document: int | None = None
    """The document within the sample, if samples are blocks of several documents."""
    rank: int = 0
    """The rank that had the sample."""
    loss: float | None = None
    """The mean loss per token in the step."""
    file: str = ""
    """The text file that the sample came from, if known."""
    line: int | None = None
    """The line in that file, from 1."""
    text: str = ""
    """The first few hundred characters of its text."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """One possible cause."""

    cause: str
    """The name of the cause: one of those in causes/."""
    title: str
    """The cause in a sentence."""
    confidence: float
    """The confidence, from 0 to 1."""
    evidence: tuple[str, ...] = ()
    """The evidence for the cause, one sentence each, with numbers."""
    advice: tuple[str, ...] = ()
    """What to do, one sentence each."""
    suspects: tuple[Suspect, ...] = ()
    """The samples that the cause points to, worst first."""
    module: str | None = None
    """The module or parameter that the cause points to."""
    rank: int | None = None
    """The rank that the cause points to."""
    setting: str | None = None
    """The setting that the cause points to."""
    bad_checkpoint: int | None = None
    """A checkpoint (in completed updates) whose state is already bad: roll back to before it."""
    blames: str = ""
    """What to change: `samples`, `tensor`, `setting`, `machine` or `nothing`; empty in older
    verdicts.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """One experiment of a diagnosis."""

    question: str
    """The question it answers, such as "data or state?"."""
    done: str
    """What was done, such as "the same batch at the weights after update 80"."""
    found: str
    """The result, in words with numbers."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The numbers of the result, by name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleStatistics:
    """One tensor of the step, compared with the same tensor in a calm step."""

    module: str
    """The name of the module, in order of execution; parameters have their own names."""
    kind: str
    """`activation`, `gradient` or `parameter`."""
    norm: float
    """The norm of the tensor."""
    max_abs: float
    """The largest magnitude of an element."""
    num_nonfinite: int
    """The number of NaN or infinite elements."""
    calm_norm: float | None = None
    """The norm in the calm step."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """Whether the replay reproduced the recorded step."""

    from_step: int
    """The checkpoint that the replay started from; 0 is the beginning."""
    recorded_loss: float | None
    """The loss that the run recorded; None if it did not."""
    replayed_loss: float
    """The loss of the replay."""
    reproduced: bool | None
    """Whether the losses are bit-identical; None if nothing was recorded."""
    differences: tuple[str, ...] = ()
    """What differs from the run: threads, versions, world size, data, settings."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """The result of a diagnosis of one step."""

    run_id: str
    """The id of the run."""
    step: int
    """The step; 1 is the first update."""
    causes: tuple[Cause, ...]
    """The causes by confidence; at least one, which may be `NOTHING` or `UNKNOWN`."""
    experiments: tuple[Experiment, ...] = ()
    """The experiments, in order."""
    modules: tuple[ModuleStatistics, ...] = ()
    """Tensors of the step, in order of execution."""
    replay: ReplayResult | None = None
    """The result of the replay; None if it was not possible."""
    event: Mapping[str, Any] | None = None
    """The recorded event (spikes/detectors.py) that the step belongs to, if any."""
    time: float = 0.0
    """When the diagnosis was made, in seconds since the epoch."""
    seconds: float = 0.0
    """How long the diagnosis took, in seconds."""
    place: str = ""
    """Where its evidence comes from: `scene` or `replay`; empty in older verdicts."""
    loss: float | None = None
    """The recorded loss of the step that it speaks of: after a rollback or restart, a step of the
    same number has another.
    """

    @property
    def names_a_cause(self) -> bool:
        """Whether it says more than "not known" or "nothing wrong"."""
        return self.causes[0].cause not in (NOTHING, UNKNOWN)


def write_verdict(run: str | Path, verdict: Verdict) -> Path:
    """Add a verdict to the history of its run, and return the path of the verdict on its step that
    holds now: this one, unless an earlier one is stronger.
    """
    layout = RunLayout(Path(run))
    path = layout.verdict(verdict.step)
    disk.make_directories(path.parent)
    document = {"format": FORMAT, "version": VERSION, **asdict(verdict)}
    with RecordFile(layout.verdict_history, gaps=False) as history:
        history.append(document)
    before = None
    with contextlib.suppress(RunError, DamagedFile):
        before = read_verdict(run, verdict.step)
    if before is None or not _stays(before, verdict):
        write_file(path, seal(encode(document)))
    return path


def _stays(before: Verdict, now: Verdict) -> bool:
    """Return whether an earlier verdict on a step holds, although there is a newer one.

    A weaker verdict does not replace a stronger one. A step that was made again after a rollback
    is another step: what is found there replaces the old verdict only if it is an event too.
    """
    if not before.names_a_cause:
        return False
    if not now.names_a_cause:
        return True
    if is_about_another(before, now):
        return now.event is None
    return before.causes[0].confidence > now.causes[0].confidence


def is_about_another(before: Verdict, now: Verdict) -> bool:
    """Return whether two verdicts on a step speak of different executions of it."""
    if before.loss is None or now.loss is None:
        return False
    both_nan = math.isnan(before.loss) and math.isnan(now.loss)
    return before.loss != now.loss and not both_nan


def read_verdict_history(run: str | Path, step: int | None = None) -> list[Verdict]:
    """Return every verdict of a run, or those on one step, newest first. Lines that cannot be read
    are left out.
    """
    path = RunLayout(Path(run)).verdict_history
    if not path.exists():
        return []
    found = []
    for record in read_records(path):
        with contextlib.suppress(msgspec.ValidationError, ValueError):
            verdict = msgspec.convert(record, Verdict)
            if verdict.causes and (step is None or verdict.step == step):
                found.append(verdict)
    return found[::-1]


def known_texts(run: Path) -> dict[tuple[str, int], str]:
    """Return the texts that the run holds of samples that stood out or that verdicts name, by
    dataset and number. Unreadable verdicts are skipped.
    """
    found: dict[tuple[str, int], str] = {}
    for record in read_events(run, SAMPLE_TEXT):
        number = record.get("sample")
        if isinstance(number, int):
            found[str(record.get("dataset")), number] = str(record.get("text"))
    for step, _ in RunLayout(run).verdicts():
        with contextlib.suppress(RunError, DamagedFile):
            for cause in read_verdict(run, step).causes:
                found |= {
                    (suspect.dataset, suspect.sample): suspect.text
                    for suspect in cause.suspects
                    if suspect.text
                }
    return found


def read_verdict(run: str | Path, step: int) -> Verdict:
    """Read the verdict about a step of a run."""
    path = RunLayout(Path(run)).verdict(step)
    try:
        document = decode(unseal_document(read_small(path)))
    except FileNotFoundError:
        raise RunError(
            f"step {step} of {run} has no verdict",
            hint=f"`sonde diagnose {run} --step {step}` makes one",
        ) from None
    except (OSError, ValueError) as error:
        raise DamagedFile(f"{path} cannot be read", cause=str(error)) from None
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise DamagedFile(
            f"{path} is not a verdict of sonde", cause=f'it does not say "format": "{FORMAT}"'
        )
    if not document.get("causes"):
        raise DamagedFile(f"{path} is damaged", cause="it names no cause")
    try:
        return msgspec.convert(document, Verdict)
    except (msgspec.ValidationError, ValueError) as error:
        # a lone surrogate in place of a number raises ValueError
        raise DamagedFile(f"{path} is damaged", cause=str(error)) from None


def blamed_samples(verdict: Verdict) -> SkipList:
    """Return the samples named by the verdict's causes that are sure enough to act on; empty if
    samples are not to blame, or on a guess.
    """
    numbers: dict[str, list[int]] = {}
    first = verdict.causes[0]
    if not blames_samples(first):
        return SkipList(numbers)
    for cause in verdict.causes:
        if blames_samples(cause) and cause.confidence >= SURE:
            for suspect in cause.suspects:
                numbers.setdefault(suspect.dataset, []).append(suspect.sample)
    return SkipList(numbers)


def blames_samples(cause: Cause) -> bool:
    """Return whether a cause says that samples are to blame."""
    # Older verdicts do not say what a cause blames: they blame samples if they name suspects.
    return cause.blames == "samples" or (not cause.blames and bool(cause.suspects))
