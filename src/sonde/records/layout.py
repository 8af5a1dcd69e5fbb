"""The map of a run directory: every file name in it is built here and nowhere else.

    RUN/
      run.json                      the manifest: what the run is          (manifest.py, docs/formats/manifest.md)
      lock.json                     who is writing, while it is            (lock.py,     docs/formats/lock.md)
      records/{kind}.rank{R}.jsonl  append-only records, a file per rank and kind   (docs/formats/records.md)
      index.sqlite                  rebuildable index over records/        (index.py,    docs/formats/index.md)
      checkpoints/                  training states, unless they are elsewhere      (checkpoint/, `checkpoint_place` of manifest.py)
      probe/                        tensor dumps                           (probe/)
      forensics/verdict-{N}.json    what was found out about step N        (forensics/,  docs/formats/verdict.md)
      attempts/{N}/                 what earlier attempts recorded, when a training was begun anew here
      flight/                       kept states and batches of a loop of one's own  (flight/, docs/formats/flight.md)
      ledger/rank{R}.*              the loss history of every sample       (spikes/ledger.py, docs/formats/ledger.md)
      skip-list.txt                 samples that are left out              (spikes/skipping.py, docs/data.md)

A kind is a plain word. Names that come from users never become paths here: `kind` is checked, `rank` is an int.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from sonde.errors import SettingError
from sonde.records import disk
from sonde.records.files import check_folder

LOG: Final = "log"
"""Kind of the structured logger's records: step and data."""
EVENTS: Final = "events"
"""Kind of what happened to the run itself: start, take-over, stop, gap."""
SPIKES: Final = "spikes"
"""Kind of loss spikes: one record an event."""
STEPS: Final = "steps"
"""Kind of what every update did: its loss, weight, gradient norm and learning rate, exactly."""

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_VERDICT = re.compile(r"verdict-(?P<step>[0-9]{1,18})\.json")
_LEDGER_FILE = re.compile(r"rank(?P<rank>\d{1,9})\.(?:rows|journal-\d{1,9})")
_RECORD_FILE = re.compile(r"(?P<kind>[a-z][a-z0-9_-]{0,63})\.rank(?P<rank>[0-9]{1,9})\.jsonl")


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class RecordFileName:
    """A record file found in a run directory."""

    path: Path
    kind: str
    rank: int


@final
@dataclass(frozen=True, slots=True)
class RunLayout:
    """The paths inside one run directory. Builds names; touches no file except in `record_files`, `ledger_ranks` and `verdicts`."""

    root: Path

    @property
    def manifest(self) -> Path:
        """The manifest."""
        return self.root / "run.json"

    @property
    def lock(self) -> Path:
        """The lock file."""
        return self.root / "lock.json"

    @property
    def index(self) -> Path:
        """The rebuildable index."""
        return self.root / "index.sqlite"

    @property
    def records(self) -> Path:
        """The folder of record files."""
        return self.root / "records"

    @property
    def checkpoints(self) -> Path:
        """The folder of checkpoints, for a run that keeps them in itself; `checkpoint_place` knows where they are."""
        return self.root / "checkpoints"

    @property
    def probe(self) -> Path:
        """The folder of tensor dumps."""
        return self.root / "probe"

    @property
    def skip_list(self) -> Path:
        """The samples that are left out."""
        return self.root / "skip-list.txt"

    @property
    def ledger(self) -> Path:
        """The folder of the loss history of every sample."""
        return self.root / "ledger"

    def ledger_base(self, rank: int) -> Path:
        """The samples of one rank, a row each."""
        return self.ledger / f"rank{rank:d}.rows"

    def ledger_journal(self, rank: int, generation: int) -> Path:
        """What came since the rows were written."""
        return self.ledger / f"rank{rank:d}.journal-{generation:d}"

    def ledger_ranks(self) -> list[int]:
        """The ranks that kept a ledger, in order."""
        try:
            names = [entry.name for entry in self.ledger.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return sorted({int(match["rank"]) for match in map(_LEDGER_FILE.fullmatch, names) if match})

    @property
    def forensics(self) -> Path:
        """The folder of what was found out about single steps."""
        return self.root / "forensics"

    @property
    def flight(self) -> Path:
        """The folder of kept batches."""
        return self.root / "flight"

    @property
    def attempts(self) -> Path:
        """The folder of what earlier attempts recorded, when a training was begun anew in the same directory."""
        return self.root / "attempts"

    @property
    def kept_states(self) -> Path:
        """The folder of kept states: checkpoints that a flight recorder makes and removes."""
        return self.flight / "states"

    def verdict(self, step: int) -> Path:
        """What a diagnosis of one step said."""
        if step < 0:
            raise SettingError(f"a step is 0 or more, not {step}")
        return self.forensics / f"verdict-{step}.json"

    def verdicts(self) -> list[tuple[int, Path]]:
        """The verdicts that exist, with their steps, in order of steps."""
        check_folder(self.forensics)
        found = [(_VERDICT.fullmatch(path.name), path) for path in self.forensics.glob("verdict-*.json")]
        return sorted((int(match["step"]), path) for match, path in found if match)

    def record_file(self, kind: str, rank: int) -> Path:
        """The file that rank `rank` appends its records of `kind` to."""
        if not _KIND.fullmatch(kind):
            raise SettingError(
                f"{kind!r} cannot be a kind of record",
                hint="a kind is a plain word: lower-case letters, digits, '-' and '_', at most 64 of them",
            )
        if rank < 0:
            raise SettingError(f"a rank is 0 or more, not {rank}")
        return self.records / f"{kind}.rank{rank}.jsonl"

    def record_files(self, kind: str | None = None) -> list[RecordFileName]:
        """The record files that exist, of one kind or of all, ordered by kind and rank."""
        check_folder(self.records)
        try:
            names = [entry.name for entry in self.records.iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        found = []
        for name in names:
            match = _RECORD_FILE.fullmatch(name)
            if match and kind in (None, match["kind"]):
                found.append(RecordFileName(path=self.records / name, kind=match["kind"], rank=int(match["rank"])))
        return sorted(found, key=lambda file: (file.kind, file.rank))


def move_attempt(layout: RunLayout, rank: int, number: int) -> tuple[Path, list[str]] | None:
    """Move what one rank recorded to `attempts/{number}`, where it does not mix with a training that begins anew in the same run directory.

    Returns where that is, and the kinds of records moved; None when there was nothing. The events of the run, its manifest and its
    checkpoints stay. Every rank moves its own record files; rank 0 moves the folders too.
    """
    files = [file for file in layout.record_files() if file.rank == rank and file.kind != EVENTS]
    if not any(file.path.stat().st_size for file in files):
        return None
    aside = RunLayout(layout.attempts / str(number))
    disk.make_directories(aside.records)
    for file in files:
        disk.replace(file.path, aside.record_file(file.kind, file.rank))
    for folder in (layout.flight, layout.forensics) if rank == 0 else ():
        if folder.is_dir():
            disk.replace(folder, aside.root / folder.name)
    return aside.root, [file.kind for file in files]
