"""The layout of a run directory: every file name in it is built here and nowhere else.

    RUN/
      run.json                      the manifest: what the run is          (manifest.py,
                                    docs/formats/manifest.md)
      lock.json                     the owner while the run is live        (lock.py,
                                    docs/formats/lock.md)
      check.json                    what `sonde check` found               (forensics/checks,
                                    docs/formats/check.md)
      audit.json                    what `sonde audit --run` found         (cli/audit.py,
                                    docs/formats/audit.md)
      records/{kind}.rank{R}.jsonl  append-only records, a file per rank and kind
                                    (docs/formats/records.md)
      index.sqlite                  rebuildable index over records/        (index.py,
                                    docs/formats/index.md)
      checkpoints/                  training states, unless kept elsewhere          (checkpoint/,
                                    `checkpoint_place` of manifest.py)
      probe/                        tensor dumps                           (probe/)
      forensics/verdict-{N}.json    the diagnosis of step N                (forensics/,
                                    docs/formats/verdict.md)
      forensics/verdicts.jsonl      every diagnosis of any step, in order
      attempts/{N}/                 records of earlier attempts, when training was started over in
                                    the same directory
      flight/                       kept states and batches of your own loop        (recorder/,
                                    docs/formats/flight.md)
      ledger/rank{R}.*              the loss history of every sample       (spikes/ledger.py,
                                    docs/formats/ledger.md)
      skip-list.txt                 samples to leave out                   (spikes/spike_log.py,
                                    docs/data.md)

A kind is a plain word. User-given names never become paths here: `kind` is checked, and `rank` is
an int.
"""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from sonde.errors import SettingError
from sonde.records import disk
from sonde.records.files import check_folder

LOG: Final = "log"
"""Kind of the structured logger's records: step and data."""
EVENTS: Final = "events"
"""Kind of events of the run itself: start, takeover, stop, gap."""
SPIKES: Final = "spikes"
"""Kind of loss spikes: one record per event."""
STEPS: Final = "steps"
"""Kind of update records: exact loss, weight, gradient norm and learning rate of every update."""
DIGESTS: Final = "digests"
"""Kind of digests of training states, to which a resume is compared."""

_KIND = re.compile(r"[a-z][a-z0-9_-]{0,63}")
_VERDICT = re.compile(r"verdict-(?P<step>[0-9]{1,18})\.json")
_LEDGER_FILE = re.compile(r"rank(?P<rank>\d{1,9})\.(?:rows|journal-\d{1,9})")
_RECORD_FILE = re.compile(r"(?P<kind>[a-z][a-z0-9_-]{0,63})\.rank(?P<rank>[0-9]{1,9})\.jsonl")


class RecordFileName(NamedTuple):
    """A record file found in a run directory."""

    path: Path
    kind: str
    rank: int


class _Place:
    """A path inside a run directory, as an attribute of its layout."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, layout: "RunLayout", _: object) -> Path:
        return layout.root / self._name


@dataclass(frozen=True, slots=True)
class RunLayout:
    """The paths inside one run directory. Only `record_files`, `ledger_ranks` and `verdicts` access
    the disk.

    ```python
    from pathlib import Path

    from sonde.records import RunLayout

    layout = RunLayout(Path("runs/mine"))
    print(layout.manifest, layout.skip_list, layout.record_file("log", 0))
    ```
    """

    root: Path

    manifest = _Place("run.json")
    """Path of the manifest."""
    check = _Place("check.json")
    """Path of the result of `sonde check`."""
    audit = _Place("audit.json")
    """Path of the result of `sonde audit`, if it was told to keep it here."""
    lock = _Place("lock.json")
    """Path of the lock file."""
    index = _Place("index.sqlite")
    """Path of the rebuildable index."""
    records = _Place("records")
    """The folder of record files."""
    checkpoints = _Place("checkpoints")
    """The folder of checkpoints, if they are kept in the run; `checkpoint_place` returns the actual
    place.
    """
    probe = _Place("probe")
    """The folder of tensor dumps."""
    skip_list = _Place("skip-list.txt")
    """The file that lists the samples to leave out."""
    ledger = _Place("ledger")
    """The folder with the loss history of every sample."""
    forensics = _Place("forensics")
    """The folder of findings about single steps."""
    kept = _Place("flight")
    """The folder of kept states and batches."""
    attempts = _Place("attempts")
    """The folder of earlier attempts' records, when training was started over in the same
    directory.
    """
    kept_states = _Place("flight/states")
    """The folder of kept states: checkpoints that a recorder creates and removes."""

    def ledger_base(self, rank: int) -> Path:
        """Return the file with one row per sample of a rank."""
        return self.ledger / f"rank{rank:d}.rows"

    def ledger_journal(self, rank: int, generation: int) -> Path:
        """Return the file with what was added since the rows were written."""
        return self.ledger / f"rank{rank:d}.journal-{generation:d}"

    def ledger_ranks(self) -> list[int]:
        """Return the ranks that kept a ledger, in order."""
        return sorted({int(match["rank"]) for match in _matches(self.ledger, _LEDGER_FILE)})

    def verdict(self, step: int) -> Path:
        """Return the file with the verdict on one step."""
        if step < 0:  # a loop of one's own may number its first step 0
            raise SettingError(f"a step is 0 or more, not {step}")
        return self.forensics / f"verdict-{step}.json"

    @property
    def verdict_history(self) -> Path:
        """The file with every verdict that was ever reached."""
        return self.forensics / "verdicts.jsonl"

    def verdicts(self) -> list[tuple[int, Path]]:
        """Return the existing verdicts with their steps, ordered by step."""
        check_folder(self.forensics)
        found = [
            (_VERDICT.fullmatch(path.name), path) for path in self.forensics.glob("verdict-*.json")
        ]
        return sorted((int(match["step"]), path) for match, path in found if match)

    def record_file(self, kind: str, rank: int) -> Path:
        """Return the file to which rank `rank` appends its records of `kind`."""
        if not _KIND.fullmatch(kind):
            raise SettingError(
                f"{kind!r} cannot be a kind of record",
                hint=(
                    "a kind is a plain word: lower-case letters, digits, '-' and '_', at most 64 of"
                    " them"
                ),
            )
        if rank < 0:
            raise SettingError(f"a rank is 0 or more, not {rank}")
        return self.records / f"{kind}.rank{rank}.jsonl"

    def record_files(self, kind: str | None = None) -> list[RecordFileName]:
        """Return the existing record files, of one kind or of all, ordered by kind and rank."""
        check_folder(self.records)
        found = [
            RecordFileName(
                path=self.records / match[0], kind=match["kind"], rank=int(match["rank"])
            )
            for match in _matches(self.records, _RECORD_FILE)
            if kind in (None, match["kind"])
        ]
        return sorted(found, key=lambda file: (file.kind, file.rank))


def _matches(folder: Path, pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Return the names in a folder that match; none if there is no folder."""
    try:
        names = [entry.name for entry in folder.iterdir()]
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [match for match in map(pattern.fullmatch, names) if match]


def move_attempt(layout: RunLayout, rank: int, number: int) -> tuple[Path, list[str]] | None:
    """Move what one rank recorded to `attempts/{number}`, so that it does not mix with training
    that starts over.

    Return the new place and the kinds of records moved; None if there was nothing. The run's
    events, manifest and checkpoints stay. Every rank moves its own record files; rank 0 also moves
    the folders.
    """
    files = [file for file in layout.record_files() if file.rank == rank and file.kind != EVENTS]
    if not any(file.path.stat().st_size for file in files):
        return None
    aside = RunLayout(layout.attempts / str(number))
    disk.make_directories(aside.records)
    for file in files:
        disk.replace(file.path, aside.record_file(file.kind, file.rank))
    for folder in (layout.kept, layout.forensics) if rank == 0 else ():
        if folder.is_dir():
            disk.replace(folder, aside.root / folder.name)
    return aside.root, [file.kind for file in files]
