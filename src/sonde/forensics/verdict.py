"""What a diagnosis says about one step: causes in order of confidence, with the evidence and what to do; as text and as a file.

The file is `forensics/verdict-{step}.json` of the run (docs/formats/verdict.md). Reading and writing it needs no torch, so a report can be
made on a machine that never trained.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final, final

import msgspec

from sonde.errors import DamagedFile, RunError
from sonde.records import disk
from sonde.records.atomic import write_file
from sonde.records.files import read_small
from sonde.records.layout import RunLayout
from sonde.records.seal import seal, unseal_document
from sonde.records.values import decode, encode

FORMAT: Final = "sonde-verdict"
VERSION: Final = 1

NOTHING: Final = "nothing_wrong"
"""The step is like those around it."""
UNKNOWN: Final = "not_known"
"""Something is wrong, and the evidence names no cause."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Suspect:
    """A sample that a cause points at."""

    dataset: str
    """Name of its dataset."""
    sample: int
    """Its number there."""
    document: int | None = None
    """The document in it, where samples are blocks of several."""
    rank: int = 0
    """The rank that had it."""
    loss: float | None = None
    """Its mean loss per token in the step."""
    file: str = ""
    """The text file it came from, where known."""
    line: int | None = None
    """The line there, from 1."""
    text: str = ""
    """Its first few hundred characters."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Cause:
    """One possible cause."""

    cause: str
    """Which: a file of causes/."""
    title: str
    """In a sentence."""
    confidence: float
    """From 0 to 1."""
    evidence: tuple[str, ...] = ()
    """What speaks for it, a sentence each, with the numbers."""
    advice: tuple[str, ...] = ()
    """What to do, a sentence each."""
    suspects: tuple[Suspect, ...] = ()
    """The samples it points at, worst first."""
    module: str | None = None
    """The module or parameter it points at."""
    rank: int | None = None
    """The rank it points at."""
    setting: str | None = None
    """The setting it points at."""
    bad_checkpoint: int | None = None
    """The checkpoint, by its updates, whose state is bad already: the way back begins before it."""
    blames: str = ""
    """What is to be changed: `samples`, `tensor`, `setting`, `machine` or `nothing`; empty in verdicts of before it was told."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Experiment:
    """One thing that was tried."""

    question: str
    """What it was to tell: "data or state?"."""
    done: str
    """What was done: "the same batch at the weights after update 80"."""
    found: str
    """What came out, in words with numbers."""
    numbers: Mapping[str, float] = field(default_factory=dict)
    """The numbers by name."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ModuleStatistics:
    """One tensor of the step, against the same tensor in a calm one."""

    module: str
    """Name of the module, in the order of execution; parameters have their own names."""
    kind: str
    """`activation`, `gradient` or `parameter`."""
    norm: float
    """Its norm."""
    max_abs: float
    """Its greatest magnitude."""
    num_nonfinite: int
    """How many elements are NaN or infinite."""
    calm_norm: float | None = None
    """The norm in the calm step."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class ReplayResult:
    """Did the step happen again as it was recorded?"""

    from_step: int
    """The checkpoint that it began from; 0 is the beginning."""
    recorded_loss: float | None
    """What the run wrote down; None when it did not."""
    replayed_loss: float
    """What came out now."""
    reproduced: bool | None
    """Bit for bit? None when nothing was recorded."""
    differences: tuple[str, ...] = ()
    """What is not as it was: threads, versions, world size, data, settings."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """What was found out about one step."""

    run_id: str
    """The run."""
    step: int
    """The step: 1 is the first update."""
    causes: tuple[Cause, ...]
    """In order of confidence; at least one, which may be `NOTHING` or `UNKNOWN`."""
    experiments: tuple[Experiment, ...] = ()
    """What was tried, in order."""
    modules: tuple[ModuleStatistics, ...] = ()
    """Tensors around the step, in order of execution."""
    replay: ReplayResult | None = None
    """How the replay went; None when it was not possible."""
    event: Mapping[str, Any] | None = None
    """The recorded event (spikes/detectors.py) that the step belongs to, if it does."""
    time: float = 0.0
    """When, in seconds since the epoch."""
    seconds: float = 0.0
    """How long it took."""


def write_verdict(run: str | Path, verdict: Verdict) -> Path:
    """Put a verdict into its run, in place of an older one about the same step; returns where it is."""
    path = RunLayout(Path(run)).verdict(verdict.step)
    disk.make_directories(path.parent)
    write_file(path, seal(encode({"format": FORMAT, "version": VERSION, **asdict(verdict)})))
    return path


def texts_in_verdicts(run: Path) -> dict[tuple[str, int], str]:
    """The texts of the samples that verdicts name, by dataset and number. A verdict that cannot be read has none."""
    found: dict[tuple[str, int], str] = {}
    for step, _ in RunLayout(run).verdicts():
        with contextlib.suppress(RunError, DamagedFile):
            for cause in read_verdict(run, step).causes:
                found |= {(one.dataset, one.sample): one.text for one in cause.suspects if one.text}
    return found


def read_verdict(run: str | Path, step: int) -> Verdict:
    """The verdict about a step of a run."""
    path = RunLayout(Path(run)).verdict(step)
    try:
        document = decode(unseal_document(read_small(path)))
    except FileNotFoundError:
        raise RunError(
            f"step {step} of {run} has no verdict", hint=f"`sonde diagnose {run} --step {step}` makes one"
        ) from None
    except (OSError, ValueError) as error:
        raise DamagedFile(f"{path} cannot be read", cause=str(error)) from None
    if not isinstance(document, Mapping) or document.get("format") != FORMAT:
        raise DamagedFile(f"{path} is not a verdict of sonde", cause=f'it does not say "format": "{FORMAT}"')
    if not document.get("causes"):
        raise DamagedFile(f"{path} is damaged", cause="it names no cause")
    try:
        return msgspec.convert(document, Verdict)
    except (msgspec.ValidationError, ValueError) as error:  # a lone surrogate where a number should be is a ValueError
        raise DamagedFile(f"{path} is damaged", cause=str(error)) from None
