"""Everything that can be read out of a run and its data, as plain text; and whether a reader told
of damage on the way.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from sonde.checkpoint.folder import CheckpointFolder
from sonde.data.directory import DataDirectory
from sonde.data.skip_list import read_skip_list
from sonde.data.token_file import TokenFile
from sonde.errors import SondeError
from sonde.forensics.verdict import read_verdict
from sonde.log.reading import read
from sonde.log.series import read_series
from sonde.probe.dump import read_dump
from sonde.recorder.batch_file import KeptBatches
from sonde.records.index import RunIndex
from sonde.records.journal import read_steps
from sonde.records.layout import RunLayout
from sonde.records.lock import read_owner
from sonde.records.manifest import read_manifest
from sonde.records.reader import read_records
from sonde.report.run_curves import Updates
from sonde.spikes.ledger_log import read_ledger
from sonde.spikes.spike_log import read_spikes

Answer = tuple[str, int]
"""What was read, and how many lines were told to be damaged; -1 when the whole was refused."""


def answers(place: Path) -> dict[str, Answer]:
    """What every reader says of the run and the data in `place`. Only errors of sonde and of the
    system are caught.
    """
    root = place / "run"
    questions: dict[str, Callable[[], Answer]] = {
        "manifest": lambda: (repr(read_manifest(root)), 0),
        "lock": lambda: _lock(root),
        "log": lambda: _log(root),
        "series": lambda: (
            repr(read_series(root, "train.loss").values.tolist()),
            _num_bad_in_log(root),
        ),
        "steps": lambda: _steps(root),
        "updates": lambda: _updates(root),
        "spikes": lambda: _spikes(root),
        "events": lambda: _records(root / "records" / "events.rank0.jsonl"),
        "index": lambda: _index(root),
        "verdict": lambda: (repr(read_verdict(root, 300)), 0),
        "skip list": lambda: _skip_list(root),
        "checkpoint": lambda: _checkpoint(root),
        "data": lambda: _data(place / "data"),
        "ledger": lambda: _ledger(root),
        "kept batches": lambda: _kept_batches(root),
        "probe": lambda: (repr(read_dump(place / "dump" / "step0" / "rank")), 0),
    }
    return {name: _asked(question) for name, question in questions.items()}


def silent(before: dict[str, Answer], after: dict[str, Answer]) -> list[str]:
    """The readers that say something else than before, and told nobody."""
    return [
        name
        for name, (text, num_bad) in after.items()
        if num_bad >= 0 and text != before[name][0] and num_bad <= before[name][1]
    ]


def _asked(question: Callable[[], Answer]) -> Answer:
    try:
        return question()
    except (SondeError, OSError) as error:
        return f"refused: {error}", -1


def _lock(root: Path) -> Answer:
    owner = read_owner(RunLayout(root).lock)
    return repr(owner), -1 if owner is not None and "damaged" in owner.host else 0


def _log(root: Path) -> Answer:
    log = read(root)
    return repr(
        [(record.type, record.step, record.data, record.timestamp, record.rank) for record in log]
    ), log.num_bad


def _num_bad_in_log(root: Path) -> int:
    return read(root).num_bad


def _steps(root: Path) -> Answer:
    steps = read_steps(root)
    return repr(steps.by_number), steps.num_bad


def _updates(root: Path) -> Answer:
    path = root / "records" / "steps.rank0.jsonl"
    updates = Updates(path)
    updates.refresh()
    told = read_records(path)
    list(told)
    return repr(
        (updates.steps.tolist(), updates.columns["loss"].tolist())
    ), updates.num_bad + told.num_bad


def _spikes(root: Path) -> Answer:
    log = read_spikes(root)
    return repr((log.spikes, log.datasets)), log.num_bad


def _records(path: Path) -> Answer:
    reading = read_records(path)
    return repr(list(reading)), reading.num_bad + bool(reading.torn_bytes)


def _index(root: Path) -> Answer:
    with RunIndex(RunLayout(root)) as index:
        index.refresh()
        series = {name: index.series(name) for name in index.metrics()}
        found = {
            name: (metric.steps.tolist(), metric.values.tolist()) for name, metric in series.items()
        }
        kinds = ("log", "steps", "spikes", "events")
        at_steps = [[index.records_at_step(kind, step) for step in range(40)] for kind in kinds]
        return repr((found, at_steps)), sum(index.num_bad(kind) for kind in kinds)


def _skip_list(root: Path) -> Answer:
    found = read_skip_list(RunLayout(root).skip_list)
    return repr({name: found.samples(name).tolist() for name in found.entries}), 0


def _checkpoint(root: Path) -> Answer:
    folder = CheckpointFolder(RunLayout(root).checkpoints)
    step, rejected = folder.newest()
    return repr((step, folder.document(step) if step is not None else None)), len(rejected)


def _ledger(root: Path) -> Answer:
    found = read_ledger(root)
    columns = [column.tolist() for column in found.rows[1:]]
    return repr(
        (columns, [found.keys.name_of(key) for key in found.rows.keys.tolist()])
    ), found.num_bad


def _kept_batches(root: Path) -> Answer:
    kept = KeptBatches(RunLayout(root).kept, 0)
    updates = [kept.load(step) for step in kept.steps()]
    said = [
        (
            update.step,
            update.rates,
            [[leaf.tolist() for leaf in micro.tensors] for micro in update.micro],
        )
        for update in updates
    ]
    return repr(said), len(kept.problems)


def _data(directory: Path) -> Answer:
    opened = DataDirectory(directory)
    tokenizer = opened.tokenizer()
    said = []
    for language in opened.languages("train"):
        tokens: TokenFile = opened.tokens("train", language)
        said += [
            (tokenizer.decode(np.asarray(tokens[number])), tokens.origin(number))
            for number in range(len(tokens))
        ]
        said.append((repr(tokens.sidecar), ("", 0)))
    return repr(said), 0
