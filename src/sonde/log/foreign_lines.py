"""The lines of the loggers that scripts may expect in place of ours, read and written.

    DLLL {"timestamp": "…", …           NVIDIA's DLLogger 1.1: times are strings
    TCAPPDLL {"timestamp": "…", …       TCAP_DLLogger: `data` is the repr of a dict of strings
    INFO {"local_rank": 0, …            TCAP_DLLogger's info

TCAP's texts are converted back to the original values (`'0.01'` to 0.01, `'nan'` to NaN, `'[16,
3]'` to a list, `'tensor(1.5)'` to 1.5) with `ast.literal_eval`, which reads literals and runs no
code; anything else stays text. TCAP writes `loss` and `speed` as `QA.loss` and `QA.speed`; read
back they have their own names again.
"""

import ast
import datetime
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from sonde.log.backend import INFO, LOG, METADATA, Record, as_parameters
from sonde.records.values import decode, encode

NVIDIA: Final = "DLLL "
TCAP: Final = "TCAPPDLL "
TCAP_INFO: Final = "INFO "
PREFIXES: Final = (NVIDIA, TCAP, TCAP_INFO)

_TCAP_NAMES: Final = {"loss": "QA.loss", "speed": "QA.speed"}
_OWN_NAMES: Final = {theirs: ours for ours, theirs in _TCAP_NAMES.items()}
_NON_FINITE: Final = {"nan": math.nan, "inf": math.inf}
_TENSOR: Final = re.compile(
    r"tensor\((.*?)(?:, (?:device|dtype|grad_fn|requires_grad|size|layout)=.*)?\)", re.DOTALL
)
_SIZE: Final = re.compile(r"torch\.Size\((.*)\)", re.DOTALL)
_MAX_LITERAL: Final = 1_000_000


def nvidia_line(record: Record) -> bytes:
    """Return the record as NVIDIA's DLLogger 1.1 writes it: its keys in its order, times as
    strings, no rank.

    DLLogger has no INFO: by convention such a record is a LOG at step "PARAMETER".
    """
    local = str(datetime.datetime.fromtimestamp(record["timestamp"]).astimezone())
    if record["type"] == METADATA:
        return _line(NVIDIA, _metadata_fields(record, local))
    if record["type"] == INFO:
        data = as_parameters(record["data"])
        return _line(NVIDIA, _log_fields(record, local, "PARAMETER", data))
    return _line(NVIDIA, _log_fields(record, local, record["step"], record["data"]))


def tcap_line(record: Record) -> bytes:
    """Return the record as TCAP_DLLogger writes it: local time without a zone, and the values of a
    step as the text of a dict of texts.
    """
    # without a zone, as in TCAP
    local = str(datetime.datetime.fromtimestamp(record["timestamp"]))  # noqa: DTZ006
    if record["type"] == METADATA:
        return _line(TCAP, _metadata_fields(record, local))
    if record["type"] == INFO:
        rank = _local_rank(record["rank"])
        data = decode(encode(record["data"]))
        return _line(TCAP_INFO, {"local_rank": rank, "datetime": local, "type": INFO, "data": data})
    return _line(TCAP, _log_fields(record, local, record["step"], _tcap_data(record["data"])))


WRITERS: Final[Mapping[str, Callable[[Record], bytes]]] = {NVIDIA: nvidia_line, TCAP: tcap_line}
"""What writes a line, by its prefix."""


def _metadata_fields(record: Record, local: str) -> Record:
    return {
        "timestamp": str(record["timestamp"]),
        "elapsedtime": str(record["elapsedtime"]),
        "datetime": local,
        "type": METADATA,
        "metric": record["metric"],
        "metadata": record["metadata"],
    }


def _log_fields(record: Record, local: str, step: Any, data: Any) -> Record:
    return {
        "timestamp": str(record["timestamp"]),
        "datetime": local,
        "elapsedtime": str(record["elapsedtime"]),
        "type": LOG,
        "step": step,
        "data": data,
    }


def _tcap_data(data: Any) -> str:
    if not isinstance(data, Mapping):
        return str(data)
    return str({_TCAP_NAMES.get(name, name): _tcap_text(name, data[name]) for name in data})


def _tcap_text(name: str, value: Any) -> str:
    is_number = isinstance(value, float) and math.isfinite(value)
    return str(int(value)) if name == "rank" and is_number else str(value)


def _local_rank(rank: int) -> int:
    text = os.environ.get("LOCAL_RANK", "")
    return int(text) if text.isdecimal() else rank


def _line(prefix: str, fields: Record) -> bytes:
    encoded = encode(fields)
    try:
        # Python's own spelling of NaN and infinities, which is what scripts for DLLogger expect.
        text = json.dumps(decode(encoded))
    except (TypeError, ValueError):
        text = json.dumps(orjson.loads(encoded))
    return f"{prefix}{text}\n".encode()


def read_foreign_line(line: bytes) -> object:
    """Return the JSON value on a line of another logger, its data as they were logged. Raises
    ValueError if it is no JSON.

    NaN is unquoted there, and the text "NaN" is text.
    """
    prefix = next((known for known in PREFIXES if line.startswith(known.encode())), "")
    try:
        value = json.loads(line[len(prefix) :])
    except RecursionError:
        raise ValueError("JSON nested too deeply") from None
    if prefix == TCAP and isinstance(value, dict) and value.get("type") == LOG:
        value["data"] = _unquoted(value.get("data"))
    return value


def _unquoted(data: object) -> object:
    """Convert TCAP's data, the text of a dict whose values are texts."""
    values = _literal(data) if isinstance(data, str) else data
    if not isinstance(values, dict):
        return values
    return {_OWN_NAMES.get(name, name): _value(text) for name, text in values.items()}


def _value(text: Any) -> object:
    if not isinstance(text, str):
        return text
    match = _TENSOR.fullmatch(text) or _SIZE.fullmatch(text)
    return _literal(match[1] if match else text)


def _literal(text: str) -> object:
    """Return the Python literal in `text`, including nan and inf; the text itself if it is not a
    literal.
    """
    if len(text) > _MAX_LITERAL:
        return text
    try:
        return ast.literal_eval(_with_non_finite(text) if "nan" in text or "inf" in text else text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def _with_non_finite(text: str) -> ast.expr:
    """Parse `text` as an expression, replacing the names nan and inf by their values."""
    # ast is loosely typed
    return _Numbers().visit(ast.parse(text.strip(), mode="eval").body)  # type: ignore[no-any-return]


class _Numbers(ast.NodeTransformer):
    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Replace nan and inf by constants."""
        return ast.Constant(_NON_FINITE[node.id]) if node.id in _NON_FINITE else node
