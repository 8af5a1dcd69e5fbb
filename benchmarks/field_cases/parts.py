"""The parts of the field stick: which files each has, and the hash that seals it."""

import hashlib
from pathlib import Path
from typing import Final

FOLDER: Final = Path(__file__).resolve().parent
HASHES: Final = FOLDER / "HASHES.txt"
RECORD: Final = FOLDER / "SEALED.md"

TUNE: Final = "tune"
FIRST: Final = ("judge", "resume_and_numbers", "check")
SECOND: Final = ("judge2", "resume_and_numbers2", "check2")
THIRD: Final = ("judge3", "resume_and_numbers3", "check3")
FOURTH: Final = ("judge4", "resume_and_numbers4", "check4")
FIFTH: Final = ("judge5", "resume_and_numbers5", "check5")
SEALED: Final = (*FIRST, *SECOND, *THIRD, *FOURTH, *FIFTH)
BUILDERS: Final = ("declaration.py", "hosts.py", "loops.py", "models.py", "script.py", "texts.py")
"""What the cases are built of: sealed with them, since they would be others without it."""
SECOND_BUILDERS: Final = ("second_data.py", "second_loops.py", "second_models.py")
"""What the second set is built of besides."""
THIRD_BUILDERS: Final = ("third_data.py", "third_loops.py", "third_models.py")
"""What the third set is built of besides."""
FOURTH_BUILDERS: Final = ("fourth_data.py", "fourth_loops.py", "fourth_models.py")
"""What the fourth set is built of besides."""
FIFTH_BUILDERS: Final = ("fifth_data.py", "fifth_loops.py", "fifth_models.py")
"""What the fifth set is built of besides."""


def files_of(part: str) -> list[Path]:
    """Return the files of cases of a part, in order."""
    name = part if part == TUNE else f"sealed_{part}"
    return sorted(FOLDER.glob(f"{name}_*.py"))


def seal_of(part: str) -> str:
    """Return the SHA-256 of a part's files and of what they are built of."""
    digest = hashlib.sha256()
    builders = [*BUILDERS]
    if part in SECOND:
        builders += SECOND_BUILDERS
    if part in THIRD:
        builders += THIRD_BUILDERS
    if part in FOURTH:
        builders += FOURTH_BUILDERS
    if part in FIFTH:
        builders += FIFTH_BUILDERS
    for path in [*files_of(part), *(FOLDER / name for name in builders)]:
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
    """Seal the parts as they are; a part that was run keeps the seal that it was run with."""
    record = RECORD.read_text()
    seals = read_seals()
    for part in SEALED:
        if not times_begun(record, part):
            seals[part] = seal_of(part)
    HASHES.write_text("".join(f"{seals[part]}  {part}\n" for part in SEALED))


def times_begun(record: str, part: str) -> int:
    """Return how often a sealed part was begun, by the text of SEALED.md."""
    return record.count(f"| {part} | begun |")
