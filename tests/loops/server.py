"""Runs loops of the table, each in a process of its own, forked from one that has loaded torch and
never sonde.

    request     {"loop": …, "watched": …, "spike": …, "folder": …, "mutant": …}     a line of JSON
    answer      {"hash": …, "generators": …, "num_updates": …, "said": …, "error": …}
"""

import atexit
import contextlib
import hashlib
import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from loops import mutants
from loops.context import Context, seed
from loops.table import LOOPS

_MAX_SECONDS = 60.0


def digest(values: list[Any]) -> str:
    """Return a hash of everything that training must leave the same."""
    found = hashlib.sha256()
    for value in values:
        for name, tensor in _tensors(value):
            found.update(name.encode())
            found.update(_bytes_of(tensor))
    return found.hexdigest()


def _tensors(value: Any) -> list[tuple[str, Tensor]]:
    if isinstance(value, nn.Module):
        return [*value.named_parameters(), *value.named_buffers()]
    return [("", value)]


def _bytes_of(tensor: Tensor) -> bytes:
    if tensor.is_meta or isinstance(tensor, nn.UninitializedBuffer | nn.UninitializedParameter):
        return b"no memory"
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    dense = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    return dense.contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def generators() -> str:
    """Return a hash of the global generators."""
    found = hashlib.sha256(torch.get_rng_state().numpy().tobytes())
    found.update(repr(random.getstate()).encode())
    found.update(repr(np.random.get_state()).encode())  # noqa: NPY002
    return found.hexdigest()


def run(request: dict[str, Any]) -> dict[str, Any]:
    """Run one loop in this process."""
    context = Context(Path(request["folder"]), request["watched"], request["spike"])
    seed()
    answer: dict[str, Any] = {}
    if request.get("mutant"):
        mutants.apply(request["mutant"])
    try:
        LOOPS[request["loop"]](context)
        answer["hash"] = digest(context.hashed)
        answer["generators"] = generators()
    except BaseException:  # noqa: BLE001  whatever a loop raises is an answer
        answer["error"] = traceback.format_exc()
    answer |= {
        "num_updates": context.num_updates,
        "losses": context.losses,
        "said": context.said,
    }
    return answer


def _child(request: dict[str, Any], result: Path) -> None:
    os.setsid()
    log = (result.parent / "log.txt").open("w")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    answer = run(request)
    result.write_text(json.dumps(answer))
    # What an interpreter does when it ends; os._exit alone would hide what hangs there.
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    log.flush()
    os._exit(0)


def serve() -> None:
    """Answer requests until the input ends."""
    for line in sys.stdin:
        request = json.loads(line)
        folder = Path(request["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        result = folder / "answer.json"
        pid = os.fork()
        if pid == 0:
            with contextlib.suppress(BaseException):
                _child(request, result)
            os._exit(1)
        answer = _wait(pid, result)
        print(json.dumps(answer), flush=True)


def _wait(pid: int, result: Path) -> dict[str, Any]:
    deadline = time.monotonic() + _MAX_SECONDS
    while time.monotonic() < deadline:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            answer = json.loads(result.read_text()) if result.exists() else {"error": "no answer"}
            if status != 0:
                answer.setdefault("error", f"ended with status {status}")
            break
        time.sleep(0.005)
    else:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        answer = {"error": f"did not end within {_MAX_SECONDS:g} s"}
    log = result.parent / "log.txt"
    answer["log"] = log.read_text(errors="replace")[-8000:] if log.exists() else ""
    return answer


if __name__ == "__main__":
    assert "sonde" not in sys.modules
    serve()
