"""The parts of the field stick: which files each has, and the hash that seals it."""

import hashlib
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
HASHES: Final = FOLDER / "HASHES.txt"
RECORD: Final = FOLDER / "SEALED.md"

TUNE: Final = "tune"
SEALED: Final = ("judge", "resume_and_numbers", "check")
BUILDERS: Final = ("declaration.py", "hosts.py", "loops.py", "models.py", "script.py", "texts.py")
"""What the cases are built of: sealed with them, since they would be others without it."""


def files_of(part: str) -> list[Path]:
    """Return the files of cases of a part, in order."""
    name = part if part == TUNE else f"sealed_{part}"
    return sorted(FOLDER.glob(f"{name}_*.py"))


def seal_of(part: str) -> str:
    """Return the SHA-256 of a part's files and of what they are built of."""
    digest = hashlib.sha256()
    for path in [*files_of(part), *(FOLDER / name for name in BUILDERS)]:
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def read_seals() -> dict[str, str]:
    """Return the committed hash of each sealed part."""
    seals: dict[str, str] = {}
    for line in HASHES.read_text().splitlines():
        value, part = line.split()
        seals[part] = value
    return seals


def write_seals() -> None:
    """Seal the parts as they are."""
    lines = [f"{seal_of(part)}  {part}\n" for part in SEALED]
    HASHES.write_text("".join(lines))


def times_begun(record: str, part: str) -> int:
    """Return how often a sealed part was begun, by the text of SEALED.md."""
    return record.count(f"| {part} | begun |")
