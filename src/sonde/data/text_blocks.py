"""Split text files into blocks of whole lines. A line ends at a newline byte and nowhere else.

A lone carriage return, a form feed or a Unicode line separator does not end a line, so two files
that are parallel by `wc -l` stay parallel. A carriage return before the newline belongs to the line
end. The last line need not end in a newline.

A plain file is split by byte offsets: a block is a range in the file, and the worker reads it
itself. gz and zst files (recognised by their first bytes, not by their name) can only be read from
the front, so their blocks carry their bytes.

Blocks are processed in this process, in a pool of processes, or on a Dask cluster: any `Executor`
works. `in_order` keeps a bounded number of tasks under way and yields results in the order of the
tasks, so that neither a decompressed corpus nor its results pile up in memory.
"""

import contextlib
import gzip
import multiprocessing
import os
import threading
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from sonde.errors import DamagedFile, SettingError, SondeError, check_at_least, import_extra

BAD_UTF8: Final = "bad UTF-8"
EMPTY: Final = "empty"
OVER_LONG: Final = "over-long"
BAD_KINDS: Final = (BAD_UTF8, EMPTY, OVER_LONG)
"""What can be wrong with a line, worst first. A line is counted under one kind only."""

_GZIP: Final = b"\x1f\x8b"
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
_READ_BYTES: Final = 1 << 20
_MAX_LINE_BYTES: Final = 64 << 20
"""Longest line in bytes. A longer one is not text but, say, a disk image, and is refused before it
fills the memory.
"""
_ZSTD_BYTES: Final = 1 << 12
"""Compressed bytes to unpack at a time. Four bytes of zst can expand to 128 kB of text, all of it
returned at once.
"""
_DASK: Final = "dask://"
_TASKS_PER_WORKER: Final = 3
_CONNECT_SECONDS: Final = 10
T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, kw_only=True, slots=True)
class TextBlock:
    """Some whole lines of a file: a range in it, or the bytes themselves."""

    path: str
    """The file."""
    start: int = 0
    """First byte, for a plain file."""
    end: int = 0
    """One past the last byte, for a plain file."""
    content: bytes | None = None
    """The bytes, for a compressed file."""
    num_file_bytes: int
    """Bytes of the file on disk that this block covers."""


class Lines(NamedTuple):
    """A block as text."""

    lines: list[str]
    """Every line, without its line end; invalid UTF-8 is replaced by U+FFFD."""
    wrong: NDArray[np.uint8]
    """What is wrong with each line: 0 for nothing, else its 1-based place in BAD_KINDS."""


def cut_blocks(path: Path, block_bytes: int) -> Iterator[TextBlock]:
    """Yield the blocks of a file in order, each with about `block_bytes` bytes of text and at least
    one line.
    """
    magic = first_bytes(path)
    if magic.startswith((_GZIP, _ZSTD)):
        return _stream_blocks(path, magic, block_bytes)
    return _plain_blocks(path, block_bytes)


def read_block(block: TextBlock) -> bytes:
    """Return the bytes of a block."""
    if block.content is not None:
        return block.content
    with open(block.path, "rb") as file:
        file.seek(block.start)
        content = file.read(block.end - block.start)
    if len(content) != block.end - block.start:
        raise DamagedFile(f"{block.path} became shorter while it was read")
    return content


def split_lines(content: bytes, max_line_bytes: int) -> Lines:
    """Split a block into lines and find the bad ones."""
    content = content.replace(b"\r\n", b"\n").removesuffix(b"\n")
    broken: list[int] = []
    try:
        lines = content.decode().split("\n")
    except UnicodeDecodeError:
        raw_lines = content.split(b"\n")
        lines = [raw.decode(errors="replace") for raw in raw_lines]
        broken = [number for number, raw in enumerate(raw_lines) if lines[number].encode() != raw]
    wrong = np.zeros(len(lines), np.uint8)
    if len(content) > max_line_bytes:
        ends = np.append(np.flatnonzero(np.frombuffer(content, np.uint8) == 10), len(content))
        wrong[np.diff(ends, prepend=-1) - 1 > max_line_bytes] = BAD_KINDS.index(OVER_LONG) + 1
    wrong[[number for number, line in enumerate(lines) if not line or line.isspace()]] = (
        BAD_KINDS.index(EMPTY) + 1
    )
    wrong[broken] = BAD_KINDS.index(BAD_UTF8) + 1
    return Lines(lines, wrong)


def _plain_blocks(path: Path, block_bytes: int) -> Iterator[TextBlock]:
    with path.open("rb") as file:
        num_bytes = os.fstat(file.fileno()).st_size
        start = 0
        while start < num_bytes:
            file.seek(min(start + block_bytes - 1, num_bytes))
            _refuse_endless(path, len(file.readline(_MAX_LINE_BYTES)))
            end = file.tell()
            yield TextBlock(path=str(path), start=start, end=end, num_file_bytes=end - start)
            start = end


def _stream_blocks(path: Path, magic: bytes, block_bytes: int) -> Iterator[TextBlock]:
    place = 0
    text = bytearray()
    with path.open("rb") as file:
        unpacked = iter(partial(gzip.GzipFile(fileobj=file).read, _READ_BYTES), b"")
        chunks = unpacked if magic.startswith(_GZIP) else _zstd_chunks(file)
        while True:
            try:
                chunk = next(chunks, b"")
            except (OSError, EOFError, zlib.error) as error:
                raise DamagedFile(f"{path} cannot be decompressed", cause=str(error)) from error
            # Find the end of the line that the block's last byte is in. Earlier text has already
            # been searched.
            searched = max(block_bytes - 1, len(text))
            text += chunk
            _refuse_endless(path, len(text) - block_bytes)
            while end := text.find(b"\n", searched) + 1 if chunk else len(text):
                before = place
                place = file.tell()
                content = bytes(text[:end])
                yield TextBlock(path=str(path), content=content, num_file_bytes=place - before)
                del text[:end]
                searched = block_bytes - 1
            if not chunk:
                return


def _refuse_endless(path: Path, num_bytes: int) -> None:
    if num_bytes >= _MAX_LINE_BYTES:
        raise DamagedFile(
            f"{path} has a line of {_MAX_LINE_BYTES >> 20} MB or more", hint="is it a text file?"
        )


def _zstd_chunks(file: BinaryIO) -> Iterator[bytes]:
    """Yield the text of all frames. A truncated last frame raises an error."""
    zstandard = import_extra("zstandard", needed_for="reading zst files", extra="text")
    frame = None
    packed = b""
    while packed or (packed := file.read(_ZSTD_BYTES)):
        frame = frame or zstandard.ZstdDecompressor().decompressobj()
        try:
            chunk = frame.decompress(packed)
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from error
        packed = frame.unused_data
        frame = None if frame.eof else frame
        if chunk:
            yield chunk
    if frame:
        raise EOFError("the last frame is torn")


def first_bytes(path: Path) -> bytes:
    """Return the first bytes of a file. Raises SettingError if it is missing or cannot be
    opened.
    """
    try:
        with path.open("rb") as file:
            return file.read(4)
    except FileNotFoundError:
        raise SettingError(f"there is no file {path}") from None
    except OSError as error:
        raise SettingError(f"{path} cannot be read", cause=error.strerror) from None


@contextlib.contextmanager
def open_executor(
    workers: int, address: str | None = None
) -> Iterator[tuple[Executor | None, int]]:
    """Yield an executor (None: this process) and the number of tasks to keep under way.
    `address` is `dask://HOST:PORT` or None.
    """
    check_at_least(1, workers=workers)
    if address is not None:
        with _dask_client(address) as client:
            num_threads = sum(client.nthreads().values())
            if num_threads == 0:
                raise SettingError(f"the Dask cluster at {address} has no workers")
            # `pure=False`: a part is a file, and dask must not reuse an old result for it.
            yield client.get_executor(pure=False), num_threads * _TASKS_PER_WORKER
    elif workers == 1:
        yield None, 1
    else:
        # Spawned, not forked: the parent may hold threads (tokenizers, torch) that do not survive a
        # fork.
        spawned = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(workers, mp_context=spawned, initializer=_end_with_parent)
        try:
            yield pool, workers * _TASKS_PER_WORKER
        finally:
            pool.shutdown(cancel_futures=True)


def in_order(
    executor: Executor | None, function: Callable[[T], R], tasks: Iterable[T], *, num_under_way: int
) -> Iterator[R]:
    """Yield the results of `function` over `tasks`, in order. Without an executor they are computed
    here.
    """
    if executor is None:
        yield from map(function, tasks)
        return
    pending: deque[Future[R]] = deque()
    try:
        for task in tasks:
            pending.append(executor.submit(function, task))
            if len(pending) >= num_under_way:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenExecutor as error:
        raise SondeError(
            "a worker process died",
            cause=f"{error}; out of memory, perhaps",
            hint=(
                "run the same command again: it goes on with the parts that are done; fewer workers"
                " need less memory"
            ),
        ) from error
    finally:
        for future in pending:
            future.cancel()


def _dask_client(address: str) -> Any:
    if not address.startswith(_DASK) or address == _DASK:
        raise SettingError(
            f"the executor {address!r} is not known", hint="dask://HOST:PORT names a Dask scheduler"
        )
    distributed = import_extra("distributed", needed_for="a Dask executor", extra="dask")
    scheduler = "tcp://" + address.removeprefix(_DASK)
    try:
        return distributed.Client(scheduler, timeout=_CONNECT_SECONDS, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise SettingError(f"there is no Dask scheduler at {address}", cause=str(error)) from error


def _end_with_parent() -> None:
    """End this pool process when its parent is killed; by default it would wait for work
    forever.
    """
    parent: Any = multiprocessing.parent_process()

    def wait_and_exit() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=wait_and_exit, daemon=True).start()
