"""Does a diagnosis name what was planted? Some 35 kinds of bad samples in 1 row of a batch to three
quarters, faults of state and settings, and clean steps.

    python benchmarks/diagnosis.py --half tune --folder /tmp/d          what the rules were tuned
        on, about 25 minutes of one core
    python benchmarks/diagnosis.py --half report --folder /tmp/d        corpora and seeds that
        nobody looked at meanwhile
    python benchmarks/diagnosis.py --half tune --folder /tmp/d --fit    print the confidences of
        causes/cause_rule.py from the outcomes there
    python benchmarks/diagnosis.py --half report --folder /tmp/d --passes 8        over all
        trainings eight times: what is cut short is balanced
    python benchmarks/diagnosis.py --half report --folder /tmp/d --trainings 2 --only clean      a
        part; --tables prints all that is there

A training for each corpus and size of batch (planted_corpora.py) goes on over bad batches
(planted_batches.py); every one of them is diagnosed as a step by itself. What a verdict may call
each kind stands in planted_kinds.py. Clean steps are random ones and natural hard ones: the highest
loss, the longest, the shortest, the rarest tokens, of which "hard sample" is a right answer too.
The outcomes go to FOLDER/outcomes-HALF.jsonl.
"""

import argparse
import contextlib
import json
import logging
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import Any, Final

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks.diagnosis_tables import print_fit, print_tables
from benchmarks.planted_batches import SHARES, kinds_for, plant_batches
from benchmarks.planted_corpora import CORPORA, TRAININGS
from benchmarks.planted_faults import STATE_KINDS, plant, tasks_of
from benchmarks.planted_kinds import ALL, PAIRS
from benchmarks.planted_tasks import BaseRun, train_on

from sonde.forensics import readings
from sonde.forensics.causes import rules
from sonde.forensics.diagnose import conclude, open_evidence
from sonde.forensics.evidence import Evidence
from sonde.forensics.samples_seen import SeenSample
from sonde.forensics.verdict import NOTHING, Verdict
from sonde.records.journal import read_steps
from sonde.spikes.spike_log import read_spikes
from sonde.texts import pairs
from sonde.texts.profile import CorpusProfile, profile_of
from sonde.texts.signs import Sign
from sonde.train.settings import settings_of_run

_NUM_UPDATES: Final = 320
_IN_ONE_RUN: Final = 13
"""Bad batches in a continuation."""
_FIRST_CLEAN: Final = 120
"""Earlier steps have too few before them to tell what is normal."""
_SEEDS: Final = {"tune": 1, "report": 8}
"""Of the trainings; another for every report."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--half", choices=list(TRAININGS), default="tune")
    parser.add_argument(
        "--folder", type=Path, help="work here, and use the trainings that are there already"
    )
    parser.add_argument(
        "--per-kind", type=int, default=1, help="bad batches of each kind in each training"
    )
    parser.add_argument(
        "--part",
        type=int,
        default=1,
        help="only every so many-th kind in each training, others in the next",
    )
    parser.add_argument(
        "--passes",
        type=int,
        default=1,
        help="go over all trainings so often, each time with other kinds and steps",
    )
    parser.add_argument("--clean", type=int, default=60, help="clean steps of each training")
    parser.add_argument(
        "--state",
        type=int,
        default=1,
        help="faults of each kind of state or setting in each training",
    )
    parser.add_argument("--kinds", nargs="*", help="only these kinds")
    parser.add_argument("--trainings", nargs="*", type=int, help="only these, by number")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--seed", type=int, default=0, help="another draw of faults and of clean steps"
    )
    parser.add_argument("--train", action="store_true", help="only make the trainings")
    parser.add_argument(
        "--only", choices=list(_PARTS), help="only bad batches, or faults of state, or clean steps"
    )
    parser.add_argument(
        "--tables", action="store_true", help="only print the tables of the outcomes there"
    )
    parser.add_argument(
        "--fit", action="store_true", help="only print calibration tables from the outcomes"
    )
    options = parser.parse_args()
    options.folder = options.folder or Path(tempfile.mkdtemp())
    which = "".join(
        f"-{number}"
        for number in [*(options.trainings or ()), *([options.only] if options.only else [])]
    )
    outcomes = options.folder / f"outcomes-{options.half}{which}.jsonl"
    if not (options.fit or options.tables):
        logging.getLogger("sonde").setLevel(logging.ERROR)
        options.folder.mkdir(parents=True, exist_ok=True)
        started = time.monotonic()
        numbers = options.trainings or range(len(TRAININGS[options.half]))
        outcomes.write_text("")
        with multiprocessing.get_context("fork").Pool(options.workers) as pool:
            tasks = [
                (options, which, number, outcomes)
                for which in range(options.passes)
                for number in numbers
            ]
            for _ in pool.imap_unordered(_work, tasks):
                pass
        print(f"{(time.monotonic() - started) / 60:.0f} minutes", file=sys.stderr)
    files = [outcomes] if which else sorted(options.folder.glob(f"outcomes-{options.half}*.jsonl"))
    known = [json.loads(line) for path in files for line in path.read_text().splitlines()]
    (print_fit if options.fit else print_tables)(known)


@lru_cache(maxsize=8)
def _profile(texts: tuple[str, ...]) -> CorpusProfile:
    return profile_of(texts)


def _work(task: tuple[argparse.Namespace, int, int, Path]) -> None:
    """The verdicts of one pass about one training; each goes to the file at once."""
    torch.set_num_threads(1)
    # The corpus is the same for many verdicts, which by themselves take a third of their time to
    # get to know it.
    for module in (readings, pairs):
        # mypy knows that it is imported there
        setattr(module, "profile_of", lambda texts: _profile(tuple(texts)))  # noqa: B010
    options, which, number, outcomes = task
    options = argparse.Namespace(**vars(options), which=which)
    corpus, batch = TRAININGS[options.half][number]
    base = _base(corpus, batch, options.folder / f"{options.half}-{number}", _SEEDS[options.half])
    made: Iterable[dict[str, Any]] = [] if which else [{"what": "missing"}]
    if options.train:
        return
    if base is not None:
        asked = [_PARTS[options.only]] if options.only else _PARTS.values()
        made = chain.from_iterable(make(base, options, number) for make in asked)
    for outcome in made:
        values = {"corpus": corpus, "batch": batch, **outcome}
        with outcomes.open("a") as file:
            file.write(json.dumps(values) + "\n")
        if options.half == "tune":
            print(_line(values), file=sys.stderr, flush=True)


def _base(corpus: str, batch: int, folder: Path, seed: int) -> BaseRun | None:
    """The training, made now unless it is there; None when the machine does not have the corpus."""
    if (folder / "done").exists():
        saved = settings_of_run(folder / "run")
        return BaseRun(
            task=corpus,
            directory=folder / "run",
            data=folder / "data",
            settings=saved,
            last=_NUM_UPDATES,
        )
    try:
        texts = CORPORA[corpus]()
    except OSError as error:
        print(f"{corpus} is left out: {error}", file=sys.stderr, flush=True)
        return None
    with contextlib.redirect_stdout(sys.stderr):
        base = train_on(texts, corpus, folder, num_updates=_NUM_UPDATES, batch=batch, seed=seed)
    (folder / "done").touch()
    return base


def _bad_batches(
    base: BaseRun, options: argparse.Namespace, number: int
) -> Iterator[dict[str, Any]]:
    kinds = [kind for kind in kinds_for(base) if not options.kinds or kind in options.kinds]
    generator = random.Random(f"{options.half}-{number}-{options.seed}")
    wanted = []
    for turn in range(options.per_kind):
        generator.shuffle(kinds)
        shares = [SHARES[(place + turn + number) % len(SHARES)] for place in range(len(kinds))]
        wanted += [
            pair
            for pair in zip(kinds, shares, strict=True)
            if _is_due(pair[0], turn, options, number)
        ]
    folder = options.folder / f"planted-{options.half}-{number}-{options.which}"
    for start in range(0, len(wanted), _IN_ONE_RUN):
        planted = plant_batches(
            base, folder, wanted[start : start + _IN_ONE_RUN], start + options.seed
        )
        for plan in planted:
            if plan.samples:
                named = {
                    "what": "batch",
                    "kind": plan.kind,
                    "share": plan.share,
                    "accepted": sorted(plan.accepted),
                }
                yield {**named, **_judged(folder / "run", plan.step, plan.samples)}


def _is_due(kind: str, turn: int, options: argparse.Namespace, number: int) -> bool:
    place = [*STATE_KINDS, *ALL, *PAIRS, "duplicated"].index(kind)
    return bool(
        (place + turn + number + options.seed + options.which) % (options.part * options.passes)
        == 0
    )


def _state_faults(
    base: BaseRun, options: argparse.Namespace, number: int
) -> Iterator[dict[str, Any]]:
    is_pair = "text.de" in {path.name for path in base.data.parent.iterdir()}
    for kind in STATE_KINDS:
        if options.kinds and kind not in options.kinds:
            continue
        for turn in range(options.state):
            if is_pair not in tasks_of(kind) or not _is_due(kind, turn, options, number):
                continue
            folder = options.folder / f"planted-{options.half}-{number}-{options.which}"
            seed = 5 * turn + number + 10 * options.seed
            planted = plant(kind, base, folder, seed)
            named = {
                "what": "state",
                "kind": kind,
                "how": planted.how,
                "accepted": sorted(planted.accepted),
            }
            # As one would: the step that the recorder told of, or else the first one that the fault
            # acts on.
            sentences = [spike.event.first_step for spike in read_spikes(folder / "run").spikes]
            step = next(
                (
                    sentence
                    for sentence in sentences
                    if planted.step <= sentence <= planted.step + 12
                ),
                planted.step,
            )
            yield {**named, **_judged(folder / "run", step, frozenset())}


def _clean(base: BaseRun, options: argparse.Namespace, number: int) -> Iterator[dict[str, Any]]:
    """Random steps of a training that nothing was planted in, and a few of the hardest by
    nature.
    """
    steps = {
        step: record
        for step, record in read_steps(base.directory).by_number.items()
        if step > _FIRST_CLEAN
    }
    by_size = sorted(steps, key=lambda step: steps[step].weight)
    by_loss = sorted(steps, key=lambda step: steps[step].loss)
    num_hard = max(options.clean // 12, 1) if options.clean else 0
    hard = (
        {*by_size[:num_hard], *by_size[-num_hard:], *by_loss[-2 * num_hard :], *by_loss[:num_hard]}
        if num_hard
        else set()
    )
    others = random.Random(f"clean-{options.half}-{number}-{options.seed}").sample(
        sorted(set(steps) - hard), max(options.clean - len(hard), 0)
    )
    for step in [*sorted(hard), *others][options.which :: options.passes]:
        is_hard = step in hard
        accepted = [NOTHING, "hard_sample", "batch_size"] if is_hard else [NOTHING]
        yield {
            "what": "hard" if is_hard else "clean",
            "accepted": accepted,
            **_judged(base.directory, step, frozenset()),
        }


_PARTS: Final = {"bad": _bad_batches, "state": _state_faults, "clean": _clean}


def _judged(run: Path, step: int, samples: frozenset[int]) -> dict[str, Any]:
    """The verdict about a step, and what stood out in it."""
    started = time.process_time()
    evidence = open_evidence(run, step)
    verdict = conclude(evidence)
    return {
        "step": step,
        "seconds": round(time.process_time() - started, 2),
        "causes": [(cause.cause, cause.confidence) for cause in verdict.causes[:4]],
        "score": _score(evidence, verdict.causes[0].cause),
        "evidence": list(verdict.causes[0].evidence),
        "is_located": _is_located(verdict, samples),
        **_stood_out(evidence, samples),
    }


def _score(evidence: Evidence, cause: str) -> float:
    """What the first cause was given before calibration; the evidence remembers everything that it
    asks for.
    """
    finding = rules()[cause].judge(evidence)
    return 0.0 if finding is None else round(finding.score, 3)


def _stood_out(evidence: Evidence, samples: frozenset[int]) -> dict[str, Any]:
    if not evidence.is_replayed:
        return {"step_z": evidence.case.loss_z, "sample_z": 0.0, "sample_bits_z": 0.0, "rows": []}
    seen = evidence.samples
    own = [sample for sample in seen if sample.row.name[1] in samples]
    rows = [
        [
            int(sample in own),
            round(sample.z, 2),
            round(sample.tail, 2),
            round(sample.rarity, 2),
            round(sample.bits_z, 2),
            [
                (sign.kind, round(sign.strength, 2), _expected(evidence, sample, sign))
                for sign in sample.signs[:2]
            ],
        ]
        for sample in seen
        if sample in own or sample.signs or sample.z > 3
    ]
    return {
        "step_z": evidence.case.loss_z,
        "batch_z": round(evidence.batch_z, 2),
        "sample_z": max((sample.z for sample in own), default=0.0),
        "sample_bits_z": max((sample.bits_z for sample in own), default=0.0),
        "is_state_bad": evidence.is_state_bad,
        "rows": rows,
    }


def _expected(evidence: Evidence, seen: SeenSample, sign: Sign) -> list[float]:
    """How many samples of such a batch have a sign of its kind, nearly as strong, anyway; and how
    many have any.
    """
    shares = [
        evidence.usual_signs.share(seen.row, 0.8 * sign.strength, kind)
        for kind in (sign.kind, None)
    ]
    return [round(len(evidence.samples) * share, 4) for share in shares]


def _is_located(verdict: Verdict, samples: Sequence[int] | frozenset[int]) -> float | None:
    """Of the samples that the first cause names, the part that was planted."""
    named = [suspect.sample for suspect in verdict.causes[0].suspects]
    return sum(sample in samples for sample in named) / len(named) if samples and named else None


def _line(one: dict[str, Any]) -> str:
    first, confidence = one["causes"][0]
    mark = "ok   " if first in one["accepted"] else "WRONG"
    told = one.get("kind", one["what"])
    return (
        f"{mark} {one['corpus']} {one['batch']} {told} {one.get('share', '')} {one.get('how', '')}:"
        f" {first} {confidence} (z {one['sample_z']:.1f}, step {one['step_z']:.1f})"
        f" {one['causes'][1:3]}"
    )


if __name__ == "__main__":
    main()
