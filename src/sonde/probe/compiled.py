"""The one-pass kernel, built from one_pass.c by the machine's own C compiler the first time it is needed.

Nothing is compiled at install time, and nothing needs a compiler: without one (or when anything goes wrong) `load` gives
None and blocks.py does the work. The library is kept in the user's cache directory under a name made of the source, the
compiler and the processor, so that a home directory shared by unlike machines is safe; it appears atomically, so several
ranks may build it at once. Building takes about 1 s, once per machine; loading 4 ms, once per process.
"""

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import stat
import struct
import subprocess
import tempfile
from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Final, TypeAlias

from sonde.probe.moments import Moments

Measure: TypeAlias = Callable[[int, int, int | None], tuple[Moments, int | None]]
"""(address, number of values, CRC-32 so far or None) → moments, and the CRC-32 with these bytes added."""

FLOATS: Final = ("float16", "bfloat16", "float32", "float64")
INTEGERS: Final = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")

_FLAGS: Final = ("-O3", "-march=native", "-std=gnu11", "-fPIC", "-shared")
_TIMEOUT_SECONDS: Final = 60.0
_MOMENTS: Final = struct.Struct("4d6q")
_UNSIGNED: Final = struct.Struct("4d4q2Q")

_logger = logging.getLogger("sonde")


@functools.cache
def load() -> dict[str, Measure] | None:
    """A measuring function per dtype, or None when there is no compiler. Never raises; asks only once per process."""
    try:
        library = ctypes.CDLL(str(_find_or_build()))
        has_fast_crc = bool(library.has_fast_crc())
        measures = {name: _measure_float(library, name, fuse=has_fast_crc) for name in FLOATS}
        measures |= {name: _measure_integer(library, name, fuse=has_fast_crc) for name in INTEGERS}
    except (OSError, subprocess.SubprocessError, AttributeError) as error:
        _logger.info("the probe goes on without its compiled kernel (statistics take about 10x as long): %s", error)
        return None
    return measures


def _measure_float(library: ctypes.CDLL, name: str, *, fuse: bool) -> Measure:
    call = _function(library, name)
    buffer, unpack = ctypes.c_char * _MOMENTS.size, _MOMENTS.unpack
    num_bytes = 8 if name == "float64" else 4 if name == "float32" else 2

    def measure(address: int, num: int, crc: int | None) -> tuple[Moments, int | None]:
        out = buffer()
        if crc is None:
            call(address, num, out, None)
        else:
            crc = _call_with_crc(call, (address, num, num_bytes), out, crc, fuse=fuse)
        largest, smallest, total, norm, nan, plus, minus, zero, _, _ = unpack(out)
        if nan + plus + minus == num:
            return Moments(num, None, None, 0.0, 0.0, nan, plus, minus, 0), crc
        return Moments(num, largest, smallest, total, norm, nan, plus, minus, zero), crc

    return measure


def _measure_integer(library: ctypes.CDLL, name: str, *, fuse: bool) -> Measure:
    call = _function(library, name)
    layout = _UNSIGNED if name.startswith("u") else _MOMENTS
    buffer, unpack = ctypes.c_char * layout.size, layout.unpack
    num_bytes = int(name.rpartition("int")[2]) // 8

    def measure(address: int, num: int, crc: int | None) -> tuple[Moments, int | None]:
        out = buffer()
        if crc is None:
            call(address, num, out, None)
        else:
            crc = _call_with_crc(call, (address, num, num_bytes), out, crc, fuse=fuse)
        _, _, total, norm, _, _, _, zero, largest, smallest = unpack(out)
        if not num:
            return Moments(0, None, None, 0.0, 0.0), crc
        return Moments(num, largest, smallest, total, norm, 0, 0, 0, zero), crc

    return measure


def _function(library: ctypes.CDLL, name: str) -> Callable[..., None]:
    function = library[f"measure_{name}"]
    function.argtypes = (ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p, ctypes.c_void_p)
    function.restype = None
    return function


def _call_with_crc(call: Callable[..., None], array: tuple[int, int, int], out: object, crc: int, *, fuse: bool) -> int:
    """Measure and continue the CRC-32: in the same pass, or by zlib where the processor has no quick way."""
    address, num, num_bytes = array
    if fuse:
        register = ctypes.c_uint32(crc ^ 0xFFFFFFFF)
        call(address, num, out, ctypes.byref(register))
        return register.value ^ 0xFFFFFFFF
    import zlib

    call(address, num, out, None)
    return zlib.crc32((ctypes.c_char * (num * num_bytes)).from_address(address), crc) if num else crc


def _find_or_build() -> Path:
    compiler = next(
        (path for name in (os.environ.get("CC"), "cc", "gcc", "clang") if name and (path := shutil.which(name))), None
    )
    if compiler is None:
        raise FileNotFoundError("no C compiler was found")
    source = resources.files("sonde.probe").joinpath("one_pass.c").read_bytes()
    key = hashlib.sha256(b"\0".join([source, compiler.encode(), *map(str.encode, _FLAGS), _processor()])).hexdigest()
    library = _private_directory() / f"one_pass-{key[:20]}.so"
    if not library.exists():
        _build(compiler, source, library)
    return library


def _build(compiler: str, source: bytes, library: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="build-", dir=library.parent) as folder:
        built = Path(folder) / "one_pass.so"
        command = [compiler, *_FLAGS, "-x", "c", "-", "-o", str(built), "-lm"]
        subprocess.run(command, input=source, capture_output=True, check=True, timeout=_TIMEOUT_SECONDS)
        os.replace(built, library)


def _private_directory() -> Path:
    """The user's cache directory, refused when somebody else could have put a library there."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    directory = Path(base) / "sonde" / "probe"
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = directory.stat()
    if status.st_uid != os.getuid() or status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise PermissionError(f"{directory} can be written by others")
    return directory


def _processor() -> bytes:
    """What -march=native depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_bytes().splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}".encode()
    return b"\n".join(sorted({line for line in lines if line.startswith((b"flags", b"Features", b"model name"))}))
