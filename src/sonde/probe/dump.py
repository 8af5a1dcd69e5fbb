"""Dumps: the records and names in one, how debug.json is built from them, and reading them
(docs/formats/probe.md).

    {"type":"DUMP","format":1,"task":…,"level":"debug","step":0,"rank":0,"pid":…,"time":…}
    {"type":"VALUE","key":"x.0.debug","tree":…,"grad":"x_grad.0.debug"}
    {"type":"GRAD","key":"x_grad.0.debug","of":"x.0.debug","indexes":["key2","0"],"leaf":…}

`fold` turns the records into the document, both for the writer at `step()` and for a reader after a
kill.

A name that the user gave becomes a safe key of debug.json and a safe file name:

    key   {name}{_grad}.{count}.debug[.pass{k}]                 any name; JSON needs no escaping
          beyond its own
    file  {name}{_grad}.{count}[.pass{k}].tensor[.{index}]*.{pt|npy}      or .debug (file_mark)

A file name keeps letters, digits and `_-.`. Every other character, a leading dot and a dot inside
an index is written as %XX, so no name can escape its folder and no two names share a file. A name
too long for the file system is cut and ends in a digest of the whole name.

Dumps are read whether sonde or msprobe wrote them, for PyTorch or MindSpore, complete or from a
killed process.

    dump_path/step{N}/rank{R}/debug.json      (without a rank: rank; in msprobe 26: proc{PID})

If debug.json is missing or older than the stream probe.jsonl, the dump is rebuilt from the stream
in memory; nothing is written. Needs torch only to load the whole tensors of a PyTorch dump.
"""

import hashlib
import importlib
import itertools
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final, NamedTuple

import orjson

from sonde.errors import DamagedFile, RunNotFound
from sonde.probe.walk import Indexes, Leaf, Tree, is_leaf, leaves
from sonde.records.files import read_small
from sonde.records.reader import damage_text, read_records

DUMP: Final = "DUMP"
VALUE: Final = "VALUE"
GRAD: Final = "GRAD"
SUSPECT: Final = "SUSPECT"

FORMAT: Final = 1
STREAM: Final = "probe.jsonl"
DOCUMENT: Final = "debug.json"
TENSOR_FOLDER: Final = "dump_tensor_data"
MAX_FILE_BYTES: Final = 200
"""Longest file name in bytes. File systems allow 255; the rest is left for temporary names."""

_KEY_MARK: Final = "debug"
_MAX_DOCUMENT_BYTES: Final = 1 << 30
_STEP: Final = re.compile(r"step(\d+)")
_PROCESS: Final = re.compile(r"rank(\d*)|proc(\d+)")
_READERS: Final = {".pt": "sonde.probe.torch_tensors", ".npy": "sonde.probe.numpy_arrays"}


def value_key(base: str, count: int) -> str:
    """Return the key of a saved value, or of its first gradient if `base` belongs to the
    gradient.
    """
    return f"{base}.{count}.{_KEY_MARK}"


def pass_key(key: str, num_earlier: int) -> str:
    """Return the key of a gradient from a later backward pass."""
    return f"{key}.pass{num_earlier}" if num_earlier else key


def recompute_key(key: str) -> str:
    """Return the key of a value that activation checkpointing saved again."""
    return f"{key}.recompute"


def file_name_of(key: str, indexes: Indexes, suffix: str, mark: str = "tensor") -> str:
    """Return the file name of one tensor; `key` is its record's key, `indexes` its path inside the
    saved value, and `mark` the word between them.
    """
    base, _, rest = key.rpartition(f".{_KEY_MARK}")
    ways = [_safe_index(index, mark) for index in indexes]
    stem = ".".join([safe_name(base, mark) + rest, mark, *ways])
    if len(stem.encode()) > MAX_FILE_BYTES:
        digest = hashlib.sha256(stem.encode()).hexdigest()[:16]
        stem = stem.encode()[: MAX_FILE_BYTES - 17].decode(errors="ignore") + "~" + digest
    return f"{stem}.{suffix}"


def safe_name(name: str, mark: str = "tensor") -> str:
    """Return `name` in a form that is safe inside a file name. Different names stay different."""
    quoted = re.sub(r"[^\w.-]", _quote, name)
    if quoted.startswith("."):
        quoted = "%2E" + quoted[1:]
    # The mark between name and indexes must occur only once, or two names could collide.
    return quoted.replace(f".{mark}", f"%2E{mark}")


def _safe_index(index: str, mark: str) -> str:
    quoted = safe_name(index, mark).replace(".", "%2E")
    if quoted == mark:
        return f"%{ord(mark[0]):02X}{mark[1:]}"
    return quoted or "%"


def _quote(match: re.Match[str]) -> str:
    return "".join(f"%{byte:02X}" for byte in match[0].encode(errors="surrogatepass"))


def fold(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Build the document of a dump: msprobe's header, then every value and gradient in call
    order.
    """
    document: dict[str, Any] = {
        "task": "statistics",
        "level": "debug",
        "framework": "pytorch",
        "dump_data_dir": None,
    }
    data: dict[str, Tree] = {}
    gradients: dict[str, tuple[str, dict[Indexes, Leaf]]] = {}
    for record in records:
        kind = record.get("type")
        if kind == VALUE:
            data[record["key"]] = record["tree"]
            if "grad" in record:
                data[record["grad"]] = None
                gradients[record["grad"]] = (record["key"], {})
            if "framework" in record:
                document["framework"] = record["framework"]
        elif kind == GRAD:
            data.setdefault(record["key"])
            _, found = gradients.setdefault(record["key"], (record["of"], {}))
            found[tuple(record["indexes"])] = record["leaf"]
        elif kind == DUMP:
            document |= {
                key: record[key] for key in ("task", "level", "dump_data_dir") if key in record
            }
    for key, (of, found) in gradients.items():
        lost = {".".join(indexes): leaf for indexes, leaf in found.items()}
        data[key] = _gradient_tree(data[of], found) if of in data else lost
    document["data"] = data
    return document


def document_bytes(document: dict[str, Any]) -> bytes:
    """Return debug.json as bytes, one line per entry, with bare NaN and Infinity as in msprobe and
    Python's json.
    """
    header = ",\n".join(
        f" {json.dumps(key)}: {json.dumps(value)}"
        for key, value in document.items()
        if key != "data"
    )
    entries = b",\n".join(
        [b"  %b: %b" % (_json(key), _json(tree)) for key, tree in document["data"].items()]
    )
    return b'{\n%b,\n "data": {\n%b\n }\n}\n' % (header.encode(), entries)


def _json(value: object) -> bytes:
    try:
        text = orjson.dumps(value)
    except (TypeError, ValueError, RecursionError):  # an int beyond 64 bits, a lone surrogate
        return json.dumps(value, default=repr).encode()
    # orjson writes NaN as null: if there is a null, use the json module, which tells them apart.
    return text if b"null" not in text else json.dumps(value, default=repr).encode()


def _gradient_tree(tree: Tree, gradients: dict[Indexes, Leaf], indexes: Indexes = ()) -> Tree:
    """Return the tree of a value with a gradient in place of each leaf, or null if none has
    arrived.
    """
    if tree is None or is_leaf(tree):
        return gradients.get(indexes)
    if isinstance(tree, list):
        return [
            _gradient_tree(node, gradients, (*indexes, str(place)))
            for place, node in enumerate(tree)
        ]
    return {key: _gradient_tree(node, gradients, (*indexes, key)) for key, node in tree.items()}


class Dump(NamedTuple):
    """What one process saved in one step."""

    directory: Path
    header: dict[str, Any]
    data: dict[str, Tree]
    """Value trees by key, in call order."""

    def leaves(self) -> dict[tuple[str, ...], Leaf | None]:
        """Return every tensor and scalar by key and path (`("x.0.debug", "key2", "0")`), in call
        order.
        """
        return {
            (key, *indexes): leaf
            for key, tree in self.data.items()
            for indexes, leaf in leaves(tree)
        }

    def load(self, leaf: Leaf) -> Any:
        """Return the whole tensor of a leaf as a numpy array, or None if it was not written or its
        file is gone.

        bfloat16 and fp8 tensors are returned as float32.
        """
        name = leaf.get("data_name")
        if not isinstance(name, str) or os.path.basename(name) != name:
            return None
        path = self.directory / TENSOR_FOLDER / name
        reader = _READERS.get(path.suffix)
        if reader is None or not path.is_file():
            return None
        return importlib.import_module(reader).read(path)


def read_dump(path: Path) -> Dump:
    """Read the dump of one process and step; `path` is its folder or a file in it."""
    directory = path if path.is_dir() else path.parent
    # The stream has a checksum per line and debug.json has none, so our dumps are read from the
    # stream unless debug.json was requested by name.
    source = path
    if path.is_dir():
        has_stream = (directory / STREAM).is_file()
        source = directory / (STREAM if has_stream else DOCUMENT)
    is_stream = source.name == STREAM
    reading = read_records(source)
    try:
        if is_stream:
            loaded = fold(reading)
        else:
            loaded = json.loads(read_small(source, max_bytes=_MAX_DOCUMENT_BYTES, follow=True))
        data = loaded.pop("data")
        if not isinstance(data, dict):
            raise TypeError("its data is no object")
    except OSError as error:
        raise RunNotFound(
            f"there is no dump at {path}", cause=error.strerror or str(error)
        ) from error
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        what = "stream of the probe" if is_stream else "debug.json"
        raise DamagedFile(f"{source} is no {what}", cause=str(error)) from error
    if reading.num_bad:
        hint = (
            f"{source.with_name(DOCUMENT)} may be whole: give it by its name; it has no checksums"
        )
        raise DamagedFile(f"{source} has {damage_text(reading.num_bad)}", hint=hint)
    return Dump(directory, loaded, data)


def find_dumps(path: Path) -> dict[tuple[str, str], Path]:
    """Return the dumps below `path` by step and process ("0", "rank1"); a single dump has the key
    ("", "").
    """
    if path.is_file() or _holds_dump(path):
        return {("", ""): path}
    if not path.is_dir():
        hint = "give a dump_path, a step folder, a rank folder or a debug.json"
        raise RunNotFound(f"there is no dump at {path}", hint=hint)
    found: dict[tuple[str, str], Path] = {}
    for folder in sorted(path.iterdir()):
        match = _STEP.fullmatch(folder.name)
        if match:
            found |= {(match[1], process): place for process, place in _processes(folder).items()}
    found = found or {("", process): place for process, place in _processes(path).items()}
    if not found:
        raise RunNotFound(
            f"there is no dump in {path}",
            hint="a dump_path holds step0/rank/debug.json, step0/rank1/debug.json and the like",
        )
    return dict(
        sorted(found.items(), key=lambda item: (int(item[0][0] or 0), len(item[0][1]), item[0][1]))
    )


def _processes(folder: Path) -> dict[str, Path]:
    """Return the dumps in a step's folder. Folders named by process id are renumbered, as ids
    differ between runs.
    """
    found = [
        (place, _PROCESS.fullmatch(place.name))
        for place in sorted(folder.iterdir())
        if _holds_dump(place)
    ]
    ranks = {f"rank{match[1] or 0}": place for place, match in found if match and not match[2]}
    others = sorted((int(match[2]), place) for place, match in found if match and match[2])
    free = (name for name in map("rank{}".format, itertools.count()) if name not in ranks)
    return ranks | dict(zip(free, (place for _, place in others), strict=False))


def _holds_dump(folder: Path) -> bool:
    return (folder / DOCUMENT).is_file() or (folder / STREAM).is_file()
