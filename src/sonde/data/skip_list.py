"""Samples to leave out, by dataset and sample number, in a text file that people can edit.

    # after the spike at step 1734
    train 20117          repeated sentence
    train 20120-20131    the whole document
    wiki  7

A line names a dataset and a sample or a range of samples (both ends included). The rest of the
line, and anything after a #, is a remark. Order does not matter, and duplicates do no harm.

Entries that sonde writes end in `# crc` and the CRC-32 of the text before it, because a flipped bit
on the disk would leave out another sample. Remove the mark when you edit such a line; lines without
one are not checked.
"""

import re
from binascii import crc32
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from sonde.errors import DamagedFile, SettingError
from sonde.records.files import read_small, write_file

_ENTRY: Final = re.compile(
    r"(?P<dataset>\S+)\s+(?P<first>\d{1,19})(?:-(?P<last>\d{1,19}))?(?:\s.*)?"
)
_MAX_RANGE: Final = 10_000_000
_MAX_SAMPLE: Final = 2**63 - 1
CONTENT: Final = "content"
"""The dataset name of samples without a number: their number is a digest of their content."""
_SEAL: Final = "# crc "


def sample_name(dataset: str, sample: object) -> str:
    """Return how a sample is called everywhere: its dataset and number, or `#` and 16 digits of its
    content.
    """
    if dataset == CONTENT and isinstance(sample, int):
        return f"#{sample:016x}"
    return f"{dataset} {sample}".strip()


def read_skip_list(path: str | Path) -> "SkipList":
    """Read a skip list from a file. Raises DamagedFile with the line that cannot be parsed.

    ```python
    from pathlib import Path

    from sonde.data import read_skip_list

    Path("skip.txt").write_text("train 7  repeated\\ntrain 20-22\\n")
    skip = read_skip_list("skip.txt")
    assert skip.samples("train").tolist() == [7, 20, 21, 22]
    ```
    """
    try:
        text = read_small(Path(path), follow=True).decode()
    except FileNotFoundError:
        raise SettingError(f"there is no skip list {path}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DamagedFile(f"{path} cannot be read", cause=str(error)) from None
    found: dict[str, set[int]] = {}
    for number, line in enumerate(text.split("\n"), 1):
        sealed, seal, crc = line.rstrip("\r").rpartition(_SEAL)
        if seal and crc != _crc(sealed):
            raise DamagedFile(
                f"{path}:{number} is not as it was written",
                cause=f"it says {line.strip()[:80]!r}, and its checksum does not match",
                hint=f"if you edited the line, take '{_SEAL}…' off its end",
            )
        entry = line.partition("#")[0].strip()
        if not entry:
            continue
        match = _ENTRY.fullmatch(entry)
        first = int(match["first"]) if match else 0
        last = int(match["last"] or first) if match else -1
        if not match or not first <= last < min(first + _MAX_RANGE, _MAX_SAMPLE):
            raise DamagedFile(
                f"{path}:{number} is not an entry of a skip list",
                cause=f"it says {line.strip()[:80]!r}",
                hint="'DATASET SAMPLE' or 'DATASET FIRST-LAST', then any remark",
            )
        found.setdefault(match["dataset"], set()).update(range(first, last + 1))
    return SkipList(found)


def write_skip_list(
    path: str | Path, skip_list: "SkipList", remark: str = "", *, before: str = ""
) -> None:
    """Write a skip list, with consecutive samples as ranges, after the text `before`.

    Remarks in the replaced file are lost; `append_entries` keeps them.

    ```python
    from sonde.data import SkipList, read_skip_list, write_skip_list

    write_skip_list("skip.txt", SkipList({"train": [7, 20]}), "bad rows")
    assert read_skip_list("skip.txt").samples("train").tolist() == [7, 20]
    ```
    """
    lines = [f"# {line}" for line in remark.splitlines()]
    for dataset in sorted(skip_list.entries):
        lines += _entries(dataset, skip_list.samples(dataset))
    write_file(Path(path), (before + "".join(f"{line}\n" for line in lines)).encode())


def append_entries(path: Path, skip_list: "SkipList", remark: str = "") -> None:
    """Add entries to a skip list file and keep every line it has. Creates the file if necessary."""
    before = read_small(path, follow=True).decode() if path.exists() else ""
    ending = "\n" if before and not before.endswith("\n") else ""
    write_skip_list(path, skip_list, remark, before=before + ending)


def _entries(dataset: str, samples: NDArray[np.int64]) -> list[str]:
    """Return a line for each run of neighbouring samples, with its checksum."""
    if not len(samples):
        return []
    breaks = np.flatnonzero(np.diff(samples) > 1) + 1
    entries = []
    for run in np.split(samples, breaks):
        numbers = f"{run[0]}-{run[-1]}" if len(run) > 1 else f"{run[0]}"
        entry = f"{dataset} {numbers}  "
        entries.append(entry + _SEAL + _crc(entry))
    return entries


def _crc(entry: str) -> str:
    return f"{crc32(entry.encode()):08x}"


@dataclass(frozen=True, slots=True)
class SkipList:
    """The samples to leave out of each dataset.

    ```python
    from sonde.data import SkipList

    skip = SkipList({"train": [20117, 20120]})
    assert len(skip) == 2
    ```
    """

    entries: Mapping[str, Iterable[int]] = field(default_factory=dict)
    """Sample numbers by dataset name."""

    def __post_init__(self) -> None:
        checked = {}
        for dataset, samples in self.entries.items():
            if not dataset or re.search(r"[\s#]", dataset):
                raise SettingError(
                    f"{dataset!r} cannot stand in a skip list: a dataset name has no space and no #"
                )
            checked[dataset] = np.unique(np.fromiter(samples, np.int64))
            if len(checked[dataset]) and checked[dataset][0] < 0:
                raise SettingError(f"sample numbers are 0 or more, not {checked[dataset][0]}")
        object.__setattr__(self, "entries", checked)

    def samples(self, dataset: str) -> NDArray[np.int64]:
        """Return the samples of one dataset to leave out, ascending."""
        return np.asarray(self.entries.get(dataset, ()), np.int64)

    def __len__(self) -> int:
        return sum(len(self.samples(dataset)) for dataset in self.entries)

    def __contains__(self, place: tuple[str, int]) -> bool:
        return place[1] in self.samples(place[0])

    def __or__(self, other: "SkipList") -> "SkipList":
        names = {*self.entries, *other.entries}
        return SkipList(
            {name: [*self.samples(name).tolist(), *other.samples(name).tolist()] for name in names}
        )
