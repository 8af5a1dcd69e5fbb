"""Find the runs in whatever a user names: a file of any supported format, or a folder of them.

    find_sources(path)       every run there, with its points

A format is recognised by content, never by the name of the file. Text is given to every reader of
lines, and the one that finds the most losses wins. Compressed files (gzip) are opened. A file may
have 1 GiB of text; a log of 100,000 printed lines takes 3 s.
"""

import bz2
import codecs
import json
import lzma
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Final, NamedTuple

from sonde.curves.column_lines import rows_of_columns
from sonde.curves.event_logs import (
    folders_with,
    is_event_file,
    is_wandb_file,
    tensorboard_sources,
    wandb_sources,
)
from sonde.curves.json_documents import (
    HUGGING_FACE,
    find_state,
    history_of,
    is_trainer_state,
    points_of_history,
    rows_of_document,
    torn_history,
)
from sonde.curves.json_lines import rows_of_dllogger, rows_of_json_lines, rows_of_mllog
from sonde.curves.mlflow_database import database_sources, is_database
from sonde.curves.names import is_loss, loss_names
from sonde.curves.points import VALUE, Row, Source, points_of, usual_name
from sonde.curves.tables import tables_of
from sonde.curves.text_lines import dialect_of, rows_of_text
from sonde.errors import RunError, RunNotFound
from sonde.records.catalog import find_runs
from sonde.records.files import open_regular

_MAX_BYTES: Final = 1 << 30
_MAX_FILES: Final = 1000
_HEAD: Final = 1 << 16
_DECODERS: Final[dict[bytes, Callable[[], Any]]] = {
    b"\x1f\x8b": partial(zlib.decompressobj, wbits=31),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\x00": lzma.LZMADecompressor,
}
"""What reads a compressed file, by its first bytes."""
_NEWLINES: Final = re.compile(r"[\r\n]+")
_LIGHTNING: Final = frozenset({"epoch", "step"})
_NO_LOGS: Final = (".py", ".md", ".yaml", ".yml", ".toml", ".ipynb", ".html", ".svg", ".sh")
"""Text that never is a log, left unread in a folder."""
_NO_FOLDERS: Final = ("node_modules", "__pycache__", "site-packages")

LineReader = Callable[[Iterable[str]], Iterator[Row]]


class LineFormat(NamedTuple):
    """A format with one record per line."""

    words: str
    """What it is called; of printed lines, `dialect_of` says more."""
    read: LineReader
    min_rows: int = 1
    """With fewer losses it is something else that mentions one."""


LINE_FORMATS: Final = (
    LineFormat("MLPerf's MLLOG", rows_of_mllog),
    LineFormat("DLLogger's lines", rows_of_dllogger),
    LineFormat("JSON lines", rows_of_json_lines),
    LineFormat("", rows_of_text, min_rows=3),
    LineFormat("columns of numbers", rows_of_columns, min_rows=3),
)
"""Every format of lines. A further one is a function from lines to rows and an entry here."""


def find_sources(path: str | Path) -> list[Source]:
    """Return every run of another tool at or below a path: none if nothing there is a log. Raises
    RunNotFound if there is nothing at all.

    ```python
    from pathlib import Path

    from sonde.curves import find_sources

    losses = [9.0 if step == 250 else 3.0 + step % 5 / 100 for step in range(400)]
    lines = [f"step {step} loss {loss}" for step, loss in enumerate(losses)]
    Path("train.log").write_text("\\n".join(lines))
    (source,) = find_sources("train.log")  # or a folder
    assert len(list(source.points)) == 400
    ```
    """
    path = Path(path)
    if path.is_dir():
        return list(_in_folder(path))
    if not path.exists():
        raise RunNotFound(f"there is nothing at {path}", hint="give a log, or a folder of logs")
    try:
        return list(_in_file(path))
    except OSError as error:
        raise RunError(f"{path} cannot be read", cause=error.strerror or str(error)) from None


def find_run_directories(path: Path) -> list[Path]:
    """Return the run directories of sonde at or below a folder."""
    return list(find_runs(path)) if path.is_dir() else []


def _in_folder(folder: Path) -> Iterator[Source]:
    state = find_state(folder)
    if state.is_file():
        yield from _in_file(state)
        return
    yield from tensorboard_sources(folder)
    yield from wandb_sources(folder)
    for path in islice(_other_logs(folder), _MAX_FILES):
        try:
            yield from _in_file(path)
        except OSError:
            continue


def _other_logs(folder: Path) -> Iterator[Path]:
    """Yield the files that may be logs. What lies beside the files of a tracker tells the same
    curve once more, and is left out.
    """
    tracked = {place for place, _ in folders_with(folder, "tfevents")}
    tracked |= {place for place, _ in folders_with(folder, ".wandb")}
    for root, folders, names in os.walk(folder):
        if Path(root) in tracked:
            folders.clear()
            continue
        shown = [name for name in folders if not name.startswith(".") and name not in _NO_FOLDERS]
        folders[:] = sorted(shown)
        for name in sorted(names):
            if not name.startswith(".") and not name.endswith(_NO_LOGS):
                yield Path(root, name)


def _in_file(path: Path) -> Iterator[Source]:
    with open_regular(path, follow=True) as file:
        head = file.read(_HEAD)
    if is_wandb_file(head):
        yield from wandb_sources(path)
    elif is_event_file(head):
        yield from tensorboard_sources(path)
    elif is_database(head):
        yield from database_sources(path)
    else:
        damage: list[str] = []
        text = _text_of(path, damage)
        found = _in_document(path, text) if text[:1] in ("{", "[") else []
        sources = found or list(_in_lines(path, text))
        if damage and not sources:
            sources = [Source(path=path)]
        for source in sources:
            source.damage += damage
            yield source


def _text_of(path: Path, damage: list[str]) -> str:
    """Return the text of a file. In UTF-16 without a mark, as some Windows programs write it, every
    other byte of plain text is 0. A machine that goes down leaves blocks of zeros in a log.
    """
    with open_regular(path, follow=True) as file:
        content = file.read(_MAX_BYTES)
        if file.read(1):
            damage.append(f"it is longer than {_MAX_BYTES >> 20:,} MiB; the rest was not read")
    for mark, decoder in _DECODERS.items():
        if content.startswith(mark):
            content = _unpacked(content, decoder, damage)
            break
    if content.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return content.decode("utf-32", "replace")
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", "replace")
    head = content[:_HEAD]
    if b"\x00" not in head:
        return content.decode("utf-8-sig", "replace").lstrip()
    for place, encoding in enumerate(("utf-16-be", "utf-16-le")):
        if head[place::2].count(0) > len(head) // 3:
            return content.decode(encoding, "replace").lstrip()
    return content.replace(b"\x00", b"\n").decode("utf-8", "replace").lstrip()


def _unpacked(content: bytes, new_decoder: Callable[[], Any], damage: list[str]) -> bytes:
    """Return what a compressed file holds, as far as it goes. It may have several parts, one after
    the other.
    """
    parts: list[bytes] = []
    room = _MAX_BYTES
    at = 0
    decoder = new_decoder()
    while at < len(content) and room > 0:
        if decoder.eof:
            decoder = new_decoder()
        chunk = content[at : at + _HEAD]
        try:
            parts.append(decoder.decompress(chunk, room))
        except (OSError, EOFError, zlib.error, lzma.LZMAError) as error:
            damage.append(f"its compression is damaged: {error}")
            return b"".join(parts)
        room -= len(parts[-1])
        at += len(chunk) - len(decoder.unused_data)
    if not decoder.eof:
        damage.append("its compressed end is missing, or too long to be read")
    return b"".join(parts)


def _in_document(path: Path, text: str) -> list[Source]:
    """Return the runs of one JSON document; none if it is something else, such as JSON lines."""
    try:
        document: Any = json.loads(text)
    except (ValueError, RecursionError):
        return _in_torn_state(path, text)
    if is_trainer_state(document):
        source = Source(path=path, format=HUGGING_FACE)
        plain = {name: value for name, value in document.items() if isinstance(value, int | float)}
        source.settings |= plain
        source.points = list(points_of_history(source, history_of(document)))
        return [source]
    rows = rows_of_document(document)
    title = _metric_in_name(path)
    named = [_titled(row, title) for row in rows]
    if not named:
        return []
    return [Source(path=path, format="a JSON document", points=list(points_of(named)))]


def _titled(row: Row, title: str) -> Row:
    """Return a row whose nameless value has a title, in its place among the columns."""
    return {title if name == VALUE else name: value for name, value in row.items()}


def _in_torn_state(path: Path, text: str) -> list[Source]:
    """Return the run of a Trainer's state whose end is missing; none if it is something else."""
    entries = torn_history(text)
    if not entries:
        return []
    source = Source(path=path, format=HUGGING_FACE)
    source.note("its end is missing")
    source.points = list(points_of_history(source, entries))
    return [source]


def _in_lines(path: Path, text: str) -> Iterator[Source]:
    lines = _NEWLINES.split(text)
    best: list[Row] = []
    words = ""
    for format_ in LINE_FORMATS:
        rows = list(format_.read(lines))
        if _num_losses(rows) > max(_num_losses(best), format_.min_rows - 1):
            best = rows
            words = format_.words or dialect_of(lines)
    tables = tables_of(lines, _metric_in_name(path))
    num_in_tables = sum(map(_num_losses, tables.values()))
    if tables and (num_in_tables > _num_losses(best) or not best):
        for run, rows in tables.items():
            points = list(points_of(rows))
            if points:
                words = _words_of_table(rows, path)
                yield Source(path=path, name=run, format=words, points=points)
    elif best:
        yield Source(path=path, format=words, points=list(points_of(best)))


def _num_losses(rows: Sequence[Row]) -> int:
    wanted = loss_names({name for row in rows for name in row})
    return sum(any(name in row for name in wanted) for row in rows)


def _words_of_table(rows: Sequence[Row], path: Path) -> str:
    columns = {name for row in rows[:200] for name in row}
    has_its_names = any(name.endswith(("_step", "_epoch")) for name in columns)
    if columns >= _LIGHTNING and (has_its_names or path.name == "metrics.csv"):
        return "Lightning's metrics.csv"
    return "a table"


def _metric_in_name(path: Path) -> str:
    """Return what a file of one metric holds: TensorBoard's and MLflow's downloads say it only in
    their names.
    """
    stem = path.name.removesuffix(".gz").rpartition(".")[0] or path.name
    name = usual_name(stem.rpartition("tag-")[2])
    return name if is_loss(name) else VALUE
