"""Read dumps: written by sonde or msprobe, for PyTorch or MindSpore, complete or from a killed process.

    dump_path/step{N}/rank{R}/debug.json      (msprobe without torch.distributed: proc{PID}; its older versions: rank)

If debug.json is missing or older than the stream probe.jsonl, the dump is rebuilt from the stream in memory; nothing is
written. Needs torch only to load the whole tensors of a PyTorch dump.
"""

import importlib
import itertools
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, final

from sonde.errors import DamagedFile, RunNotFound
from sonde.probe.dump_format import DOCUMENT, STREAM, TENSOR_FOLDER, fold
from sonde.probe.moments import Leaf
from sonde.probe.walk import Tree, leaves
from sonde.records.files import read_small
from sonde.records.reader import damage_text, read_records

_MAX_DOCUMENT_BYTES: Final = 1 << 30
_STEP: Final = re.compile(r"step(\d+)")
_PROCESS: Final = re.compile(r"rank(\d*)|proc(\d+)")
_READERS: Final = {".pt": "sonde.probe.torch_tensors", ".npy": "sonde.probe.numpy_arrays"}


@final
@dataclass(frozen=True, slots=True)
class Dump:
    """What one process saved in one step."""

    directory: Path
    header: dict[str, Any]
    data: dict[str, Tree]
    """Value trees by key, in call order."""

    @property
    def is_ours(self) -> bool:
        """True if sonde wrote the dump, not msprobe."""
        return (self.directory / STREAM).is_file()

    def leaves(self) -> dict[tuple[str, ...], Leaf | None]:
        """Return every tensor and scalar by key and path (`("x.0.debug", "key2", "0")`), in call order."""
        return {(key, *indexes): leaf for key, tree in self.data.items() for indexes, leaf in leaves(tree)}

    def load(self, leaf: Leaf) -> Any:
        """Return the whole tensor of a leaf as a numpy array, or None if it was not written or its file is gone.

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
    # The stream has a checksum per line and debug.json has none, so our dumps are read from the stream unless
    # debug.json was requested by name.
    is_stream = path.name == STREAM or (path.is_dir() and (directory / STREAM).is_file())
    source = directory / (STREAM if is_stream else DOCUMENT) if path.is_dir() else path
    reading = read_records(source)
    try:
        content = b"" if is_stream else read_small(source, max_bytes=_MAX_DOCUMENT_BYTES, follow=True)
        loaded = fold(reading) if is_stream else json.loads(content)
        data = loaded.pop("data")
        if not isinstance(data, dict):
            raise TypeError("its data is no object")
    except OSError as error:
        raise RunNotFound(f"there is no dump at {path}", cause=error.strerror or str(error)) from error
    except (ValueError, TypeError, AttributeError, LookupError, RecursionError) as error:
        what = "stream of the probe" if is_stream else "debug.json"
        raise DamagedFile(f"{source} is no {what}", cause=str(error)) from error
    if reading.num_bad:
        hint = f"{source.with_name(DOCUMENT)} may be whole: give it by its name; it has no checksums"
        raise DamagedFile(f"{source} has {damage_text(reading.num_bad)}", hint=hint)
    return Dump(directory, loaded, data)


def find_dumps(path: Path) -> dict[tuple[str, str], Path]:
    """Return the dumps below `path` by step and process ("0", "rank1"); a single dump has the key ("", "")."""
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
        raise RunNotFound(f"there is no dump in {path}", hint="a dump_path holds step0/rank0/debug.json and the like")
    return dict(sorted(found.items(), key=lambda item: (int(item[0][0] or 0), len(item[0][1]), item[0][1])))


def _processes(folder: Path) -> dict[str, Path]:
    """Return the dumps in a step's folder. Folders named by process id are renumbered, as ids differ between runs."""
    found = [(place, _PROCESS.fullmatch(place.name)) for place in folder.iterdir() if _holds_dump(place)]
    ranks = {f"rank{match[1] or 0}": place for place, match in found if match and not match[2]}
    others = sorted((int(match[2]), place) for place, match in found if match and match[2])
    free = (name for name in map("rank{}".format, itertools.count()) if name not in ranks)
    return ranks | dict(zip(free, (place for _, place in others), strict=False))


def _holds_dump(folder: Path) -> bool:
    return (folder / DOCUMENT).is_file() or (folder / STREAM).is_file()
