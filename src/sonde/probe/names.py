"""Turn user-given names into safe keys of debug.json and safe file names.

    key   {name}{_grad}.{count}.debug[.pass{k}]                 any name; JSON needs no escaping beyond its own
    file  {name}{_grad}.{count}[.pass{k}].debug[.{index}]*.{pt|npy}

A file name keeps letters, digits and `_-.`. Every other character, a leading dot and a dot inside an index is written
as %XX, so no name can escape its folder and no two names share a file. A name too long for the file system is cut and
ends in a digest of the whole name.
"""

import hashlib
import re
from typing import Final

MAX_FILE_BYTES: Final = 200
"""Longest file name in bytes. File systems allow 255; the rest is left for temporary names."""

_MARK: Final = "debug"


def value_key(base: str, count: int) -> str:
    """Return the key of a saved value, or of its first gradient if `base` belongs to the gradient."""
    return f"{base}.{count}.debug"


def pass_key(key: str, num_earlier: int) -> str:
    """Return the key of a gradient from a later backward pass."""
    return f"{key}.pass{num_earlier}" if num_earlier else key


def recompute_key(base: str, count: int) -> str:
    """Return the key of a value that activation checkpointing saved again."""
    return f"{base}.{count}.debug.recompute"


def file_name(key: str, indexes: tuple[str, ...], suffix: str) -> str:
    """Return the file name of one tensor; `key` is its record's key and `indexes` its path inside the saved value."""
    base, _, rest = key.rpartition(".debug")
    stem = ".".join([safe_name(base) + rest, _MARK, *(_safe_index(index) for index in indexes)])
    if len(stem.encode()) > MAX_FILE_BYTES:
        digest = hashlib.sha256(stem.encode()).hexdigest()[:16]
        stem = stem.encode()[: MAX_FILE_BYTES - 17].decode(errors="ignore") + "~" + digest
    return f"{stem}.{suffix}"


def safe_name(name: str) -> str:
    """Return `name` in a form that is safe inside a file name. Different names stay different."""
    quoted = re.sub(r"[^\w.-]", _quote, name)
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    # The mark between name and indexes must occur only once, or two names could collide.
    return quoted.replace(f".{_MARK}", f"%2E{_MARK}")


def _safe_index(index: str) -> str:
    quoted = safe_name(index).replace(".", "%2E")
    return "%64ebug" if quoted == _MARK else quoted or "%"


def _quote(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogatepass"))


class Bases:
    """The base names used within a step. `y_grad` may be a value of that name or the gradient of `y`, but not both."""

    def __init__(self) -> None:
        self._owners: dict[str, tuple[str, bool]] = {}
        self._bases: dict[tuple[str, bool], str] = {}

    def of(self, name: str, *, is_grad: bool = False) -> str:
        """Return the base for `name`, the same each time; `~` is appended if another owner already took the base."""
        owner = (name, is_grad)
        base = self._bases.get(owner)
        if base is None:
            base = f"{name}_grad" if is_grad else name
            while base in self._owners:
                base += "~"
            self._owners[base] = owner
            self._bases[owner] = base
        return base
