"""The measuring stick from the field: failures that people really had, and controls that only look
like failures, in loops of one's own, Hugging Face's Trainer and Lightning.

    python benchmarks/field.py --part tune                     every case to tune on
    python benchmarks/field.py --part tune --case NAME         one of them
    python benchmarks/field.py --sealed judge4                 a sealed part; recorded, run once
    python benchmarks/field.py --recount tune.json             count anew what --json kept
    python benchmarks/field.py --seal                          write HASHES.txt anew

Each case is trained in fresh processes as a user would, with `sonde check` before, if there is such
a verb, and `sonde spikes` and `sonde diagnose` after. docs/field.md says what is counted;
field_cases/reading.py counts. About 15 seconds a case on one core.
"""

import argparse
import importlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.field_cases.declaration import CLASSES, CONTROL, Case
from benchmarks.field_cases.parts import (
    RECORD,
    SEALED,
    TUNE,
    files_of,
    read_seals,
    seal_of,
    times_begun,
    write_seals,
)
from benchmarks.field_cases.reading import Gotten, Outcome, count

from sonde.records.journal import RECORDER_NOTICE, read_events
from sonde.records.layout import RunLayout

PROJECT: Final = Path(__file__).resolve().parents[1]
_SONDE: Final = (sys.executable, "-m", "sonde")
_TIMEOUT: Final = 180.0


class Planned(NamedTuple):
    """A case and the file that trains it."""

    case: Case
    file: Path


class Measured(NamedTuple):
    """A case, what a user gets from it, and how it counts."""

    case: Case
    gotten: Gotten
    outcome: Outcome


def main() -> None:
    """Run a part, and print its tables."""
    arguments = _read_arguments()
    if arguments.seal:
        write_seals()
        return
    if arguments.recount:
        print_tables(recount(json.loads(arguments.recount.read_text())))
        return
    part = arguments.sealed or arguments.part
    if arguments.sealed:
        _begin_sealed(part, again=arguments.again)
    planned = cases_of(part)
    if arguments.case:
        planned = [found for found in planned if found.case.name in arguments.case]
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="field-"))
    measured = measure_all(planned, folder, arguments.jobs)
    print_tables(measured)
    if arguments.json:
        arguments.json.write_text(json.dumps([_document(found) for found in measured], indent=1))
    if arguments.sealed:
        _end_sealed(part, measured)


def cases_of(part: str) -> list[Planned]:
    """Return the cases of a part."""
    planned: list[Planned] = []
    for file in files_of(part):
        module = importlib.import_module(f"benchmarks.field_cases.{file.stem}")
        planned += [Planned(case, file) for case in module.CASES]
    return planned


def measure_all(planned: Sequence[Planned], folder: Path, jobs: int) -> list[Measured]:
    """Measure every case, `jobs` at a time."""
    has_check = _has_verb("check")

    def measure(found: Planned) -> Measured:
        gotten = get_all(found, folder, has_check=has_check)
        outcome = count(found.case, gotten)
        print(_line(found.case, gotten, outcome), flush=True)
        return Measured(found.case, gotten, outcome)

    with ThreadPoolExecutor(jobs) as pool:
        return list(pool.map(measure, planned))


def recount(documents: Sequence[dict[str, Any]]) -> list[Measured]:
    """Count once more what was gotten, as `--json` kept it."""
    cases: dict[str, Case] = {}
    for part in (TUNE, *SEALED):
        for planned in cases_of(part):
            cases[planned.case.name] = planned.case
    measured: list[Measured] = []
    for document in documents:
        gotten = Gotten(**{name: document[name] for name in Gotten._fields if name in document})
        case = cases[document["case"]]
        measured.append(Measured(case, gotten, count(case, gotten)))
    return measured


def get_all(found: Planned, folder: Path, *, has_check: bool) -> Gotten:
    """Train a case as a user does, and ask what a user asks."""
    case = found.case
    began = time.monotonic()
    run = folder / case.name / case.name
    shutil.rmtree(run.parent, ignore_errors=True)
    run.parent.mkdir(parents=True)
    check = None
    if has_check:
        trial = run.parent / "check" / case.name
        words = ("check", "--json", "--", *_training(found, trial))
        check = _document_of(_run((*_SONDE, *words), part=1))
    printed: list[str] = []
    crashed = ""
    for part in range(1, case.num_parts + 1):
        done = _run(_training(found, run), part=part)
        printed.append(done.stdout + done.stderr)
        if done.returncode:
            crashed = done.stderr[-600:]
    events = _document_of(_run((*_SONDE, "spikes", str(run), "--json"), part=1))
    first_verdicts = tuple(_first_verdicts(run))
    words = ("diagnose", str(run), "--json", "--", *_training(found, run))
    asked = _run((*_SONDE, *words), part=case.num_parts)
    verdict = _document_of(asked)
    return Gotten(
        printed="\n".join(printed),
        events=tuple(events or ()),
        first_verdicts=first_verdicts,
        verdict=verdict,
        refusal="" if verdict else _first_line(asked.stderr),
        check=check,
        notices=tuple(_notices(run)),
        crashed=crashed,
        seconds=time.monotonic() - began,
    )


def _notices(run: Path) -> Iterator[str]:
    """Yield the names of the checks that the recorder told of."""
    if RunLayout(run).manifest.exists():
        for record in read_events(run, RECORDER_NOTICE):
            kind, _, name = str(record.get("what")).partition(" ")
            if kind == "check":
                yield name


def print_tables(measured: Sequence[Measured]) -> None:
    """Print the figures by class, the alarms of the controls, and the words that mislead."""
    print()
    for line in table(measured):
        print(line)
    print()
    for found in measured:
        for words in (*found.outcome.misled, *found.outcome.alarms):
            print(f"{found.case.name}: {words}")


def table(measured: Iterable[Measured]) -> Iterator[str]:
    """Yield the lines of the table."""
    by_class: dict[str, list[Measured]] = {}
    for found in measured:
        by_class.setdefault(found.case.class_, []).append(found)
    yield "| class | cases | noticed | named | misleading | silent | crashed |"
    yield "| --- | --- | --- | --- | --- | --- | --- |"
    failures: list[Measured] = []
    for class_ in CLASSES:
        if class_ in by_class:
            failures += by_class[class_]
            yield _row(class_, by_class[class_])
    if failures:
        yield _row("**all**", failures)
    controls = by_class.get(CONTROL, [])
    alarmed = sum(bool(found.outcome.alarms) for found in controls)
    misled = sum(bool(found.outcome.misled) for found in controls)
    yield ""
    yield f"controls: {len(controls)}, alarms {alarmed}, blamed when asked {misled}"


def _row(name: str, found: Sequence[Measured]) -> str:
    noticed = sum(each.outcome.noticed for each in found)
    named = sum(each.outcome.named for each in found)
    misled = sum(bool(each.outcome.misled) for each in found)
    silent = sum(each.outcome.silent for each in found)
    crashed = sum(bool(each.gotten.crashed) for each in found)
    return f"| {name} | {len(found)} | {noticed} | {named} | {misled} | {silent} | {crashed} |"


def _line(case: Case, gotten: Gotten, outcome: Outcome) -> str:
    words: list[str] = []
    if outcome.noticed:
        words.append("noticed")
    if outcome.named:
        words.append("named")
    if outcome.misled:
        words.append("MISLEADING")
    if outcome.alarms:
        words.append("ALARM")
    if gotten.crashed:
        words.append("CRASHED")
    if not case.is_control and outcome.silent:
        words.append("silent")
    return f"{case.class_:<12} {case.name:<48} {' '.join(words):<28} {outcome.said}"


def _document(found: Measured) -> dict[str, Any]:
    outcome = found.outcome
    return {
        "case": found.case.name,
        "class": found.case.class_,
        "host": found.case.host,
        **outcome._asdict(),
        "silent": outcome.silent,
        **found.gotten._asdict(),
    }


def _training(found: Planned, run: Path) -> tuple[str, ...]:
    return (sys.executable, str(found.file), found.case.name, str(run))


def _run(command: Sequence[str], *, part: int) -> "subprocess.CompletedProcess[str]":
    paths = [str(PROJECT), str(PROJECT / "src"), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "OMP_NUM_THREADS": "1",
        "FIELD_PART": str(part),
    }
    try:
        return subprocess.run(
            command,
            cwd=PROJECT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 124, "", f"took over {_TIMEOUT:.0f} s")


def _has_verb(verb: str) -> bool:
    return _run((*_SONDE, verb, "--help"), part=1).returncode == 0


def _document_of(done: "subprocess.CompletedProcess[str]") -> Any:
    """The JSON document on standard output, or None."""
    for line in reversed(done.stdout.splitlines()):
        if line.startswith(("{", "[")):
            try:
                return json.loads(line)
            except ValueError:
                return None
    return None


def _first_verdicts(run: Path) -> Iterator[Any]:
    """The verdicts in the run, in the order of their steps."""
    found = [json.loads(path.read_text()) for path in (run / "forensics").glob("verdict-*.json")]
    yield from sorted(found, key=lambda verdict: int(verdict["step"]))


def _first_line(text: str) -> str:
    for line in text.splitlines():
        if line.startswith("error: "):
            return line.removeprefix("error: ")
    return text.strip()[-200:]


def _begin_sealed(part: str, *, again: bool) -> None:
    """Refuse a part that was changed or run before; otherwise record that it is run."""
    if seal_of(part) != read_seals()[part]:
        sys.exit(f"the files of {part} are not those that were sealed")
    if times_begun(RECORD.read_text(), part) and not again:
        sys.exit(f"{part} was run before, see {RECORD}; a sealed part is run once")
    _record(part, "begun")


def _end_sealed(part: str, measured: Sequence[Measured]) -> None:
    failures = [found for found in measured if not found.case.is_control]
    controls = [found for found in measured if found.case.is_control]
    figures = (
        f"{len(failures)} failures: noticed {sum(found.outcome.noticed for found in failures)},"
        f" named {sum(found.outcome.named for found in failures)},"
        f" misleading {sum(bool(found.outcome.misled) for found in failures)},"
        f" silent {sum(found.outcome.silent for found in failures)};"
        f" {len(controls)} controls:"
        f" alarms {sum(bool(found.outcome.alarms) for found in controls)}"
    )
    _record(part, figures)


def _record(part: str, words: str) -> None:
    now = datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")
    with RECORD.open("a", encoding="utf-8") as file:
        file.write(f"| {now} | {part} | {words} | {seal_of(part)[:16]} |\n")


def _read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=(TUNE,), default=TUNE)
    parser.add_argument("--sealed", choices=SEALED, help="run a sealed part; this is recorded")
    parser.add_argument("--again", action="store_true", help="run a sealed part once more")
    parser.add_argument("--case", action="append", help="only this case; repeat it for several")
    parser.add_argument("--json", type=Path, help="write all that was gotten to this file")
    parser.add_argument("--recount", type=Path, help="count anew what --json wrote")
    parser.add_argument("--folder", type=Path, help="keep the runs here")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--seal", action="store_true", help="write HASHES.txt anew")
    return parser.parse_args()


if __name__ == "__main__":
    main()
