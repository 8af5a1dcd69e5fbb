"""One block of text encoded into one file: what a worker does, in whatever process or on whatever machine it is.

The file's name is a digest of the text and of every setting that changes the result. So a run that was killed and is
started again finds what is done, an edited corpus costs only its edited blocks, and two workers at the same block do no
harm. It appears whole or not at all (records/atomic.py).

    {"format":"sonde-part","num_lines":3,"num_tokens":17,"bad":{"bad UTF-8":0,"empty":1,"over-long":0}}\\n
    num_lines x i32   tokens of each line (0: left out)
    i32 …             the bad lines, from 0, kind after kind
    tokens            as they will lie in the `.bin`
"""

import functools
import hashlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, final

import numpy as np
from numpy.typing import NDArray

from sonde.data.text_blocks import BAD_KINDS, TextBlock, read_block, split_lines
from sonde.data.tokenizer import Tokenizer
from sonde.data.tokenizer_choice import load_tokenizer
from sonde.data.tokenizer_hf import single_thread
from sonde.errors import DamagedFile
from sonde.records.atomic import atomic_file
from sonde.records.files import open_regular
from sonde.records.values import decode, encode

_FORMAT: Final = "sonde-part"


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class PartSettings:
    """What every part of a run has in common."""

    directory: str
    """Where the parts go."""
    tokenizer: str
    """The tokenizer's file."""
    tokenizer_digest: str
    """SHA-256 of that file."""
    dtype: str
    """Type of a token."""
    keep_bad_lines: bool
    """Whether bad lines are encoded like the others."""
    max_line_bytes: int
    """A longer line is bad."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """A finished part."""

    path: str
    """Its file."""
    num_lines: int
    """Lines, bad ones included."""
    num_tokens: int
    """Tokens."""
    num_bad: dict[str, int]
    """Bad lines by kind."""
    num_file_bytes: int
    """Bytes of the text file it used up."""
    reused: bool
    """Whether it was there already."""


class PartContent(NamedTuple):
    """What a part holds."""

    sizes: NDArray[np.int32]
    """Tokens of each line."""
    bad: dict[str, NDArray[np.int32]]
    """Bad lines by kind."""
    tokens: NDArray[np.generic]
    """All tokens."""


def make_part(block: TextBlock, settings: PartSettings) -> Part:
    """Encode one block, unless its part is there already."""
    content = read_block(block)
    path = Path(settings.directory) / _name(content, settings)
    reused = path.exists()
    if not reused:
        _write_part(path, content, settings)
    header, _ = _read_header(path)
    return Part(
        path=str(path),
        num_lines=header["num_lines"],
        num_tokens=header["num_tokens"],
        num_bad=header["bad"],
        num_file_bytes=block.num_file_bytes,
        reused=reused,
    )


def read_part(path: str, dtype: np.dtype[np.generic]) -> PartContent:
    """The content of a part."""
    header, at = _read_header(Path(path))
    with open_regular(path) as file:
        content = file.read()
    sizes = np.frombuffer(content, "<i4", header["num_lines"], at)
    at += sizes.nbytes
    bad = {}
    for kind in BAD_KINDS:
        bad[kind] = np.frombuffer(content, "<i4", header["bad"][kind], at)
        at += bad[kind].nbytes
    return PartContent(sizes, bad, np.frombuffer(content, dtype, header["num_tokens"], at))


def read_sizes(path: str) -> NDArray[np.int32]:
    """Only the tokens of each line of a part."""
    header, at = _read_header(Path(path))
    return np.fromfile(path, "<i4", header["num_lines"], offset=at)


def _write_part(path: Path, content: bytes, settings: PartSettings) -> None:
    tokenizer = _tokenizer(settings.tokenizer, settings.tokenizer_digest)
    lines, bad = split_lines(content, settings.max_line_bytes)
    good = np.ones(len(lines), np.bool_)
    if not settings.keep_bad_lines:
        for numbers in bad.values():
            good[numbers] = False
    with single_thread():
        encoded = tokenizer.encode_batch(lines if good.all() else [lines[number] for number in np.flatnonzero(good)])
    sizes = np.zeros(len(lines), "<i4")
    sizes[good] = encoded.sizes
    header = {
        "format": _FORMAT,
        "num_lines": len(lines),
        "num_tokens": len(encoded.tokens),
        "bad": {kind: len(bad[kind]) for kind in BAD_KINDS},
    }
    with atomic_file(path) as file:
        file.write(encode(header))
        file.write(sizes.tobytes())
        file.writelines(bad[kind].astype("<i4").tobytes() for kind in BAD_KINDS)
        file.write(encoded.tokens.astype(settings.dtype).tobytes())


def _name(content: bytes, settings: PartSettings) -> str:
    digest = hashlib.sha256(
        encode(
            [
                _FORMAT,
                settings.tokenizer_digest,
                settings.dtype,
                settings.keep_bad_lines,
                settings.max_line_bytes,
            ]
        )
    )
    digest.update(content)
    return f"{digest.hexdigest()[:40]}.part"


def _read_header(path: Path) -> tuple[dict[str, Any], int]:
    with open_regular(path) as file:
        line = file.readline()
    header = decode(line)
    if not isinstance(header, dict) or header.get("format") != _FORMAT:
        raise DamagedFile(f"{path} is not a part", hint="remove it and run `sonde prepare` again")
    return header, len(line)


@functools.lru_cache(maxsize=2)
def _tokenizer(path: str, digest: str) -> Tokenizer:
    return load_tokenizer(Path(path), digest=digest)
