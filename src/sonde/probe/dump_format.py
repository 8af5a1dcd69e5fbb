"""The records of a dump, and how debug.json is built from them (docs/formats/probe.md).

    {"type":"DUMP","format":1,"task":…,"level":"debug","step":0,"rank":0,"pid":…,"time":…}
    {"type":"VALUE","key":"x.0.debug","tree":…,"grad":"x_grad.0.debug"}
    {"type":"GRAD","key":"x_grad.0.debug","of":"x.0.debug","indexes":["key2","0"],"leaf":…}

`fold` turns the records into the document, both for the writer at `step()` and for a reader after a kill.
"""

import json
from collections.abc import Iterable
from typing import Any, Final

import orjson

from sonde.probe.walk import Indexes, Tree, is_leaf

DUMP: Final = "DUMP"
VALUE: Final = "VALUE"
GRAD: Final = "GRAD"
SUSPECT: Final = "SUSPECT"

FORMAT: Final = 1
STREAM: Final = "probe.jsonl"
DOCUMENT: Final = "debug.json"
TENSOR_FOLDER: Final = "dump_tensor_data"


def fold(records: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """Build the document of a dump: msprobe's header, then every value and gradient in call order."""
    document: dict[str, Any] = {"task": "statistics", "level": "debug", "framework": "pytorch", "dump_data_dir": None}
    data: dict[str, Tree] = {}
    for record in records:
        kind = record.get("type")
        if kind == VALUE:
            data[record["key"]] = record["tree"]
            if "grad" in record:
                data[record["grad"]] = _without_leaves(record["tree"])
            if "framework" in record:
                document["framework"] = record["framework"]
        elif kind == GRAD:
            _put_gradient(data, record)
        elif kind == DUMP:
            document |= {key: record[key] for key in ("task", "level", "dump_data_dir") if key in record}
    document["data"] = data
    return document


def document_bytes(document: dict[str, Any]) -> bytes:
    """Return debug.json as bytes, one line per entry, with bare NaN and Infinity as in msprobe and Python's json."""
    header = ",\n".join(f" {json.dumps(key)}: {json.dumps(value)}" for key, value in document.items() if key != "data")
    entries = b",\n".join([b"  %b: %b" % (_json(key), _json(tree)) for key, tree in document["data"].items()])
    return b'{\n%b,\n "data": {\n%b\n }\n}\n' % (header.encode(), entries)


def _json(value: object) -> bytes:
    try:
        text = orjson.dumps(value)
    except (TypeError, ValueError, RecursionError):  # an int beyond 64 bits, a lone surrogate
        return json.dumps(value, default=repr).encode()
    # orjson writes NaN as null: if there is a null, use the json module, which tells them apart.
    return text if b"null" not in text else json.dumps(value, default=repr).encode()


def _put_gradient(data: dict[str, Tree], record: dict[str, Any]) -> None:
    key, indexes = record["key"], tuple(record["indexes"])
    if key not in data:
        data[key] = _without_leaves(data.get(record["of"]))
    data[key] = _replaced(data[key], indexes, record["leaf"])


def _replaced(tree: Tree, indexes: Indexes, leaf: Tree) -> Tree:
    """Return `tree` with `leaf` placed at `indexes`; a path that is missing because a record was lost is created."""
    if not indexes:
        return leaf
    first, rest = indexes[0], indexes[1:]
    if isinstance(tree, list) and first.isdecimal() and int(first) < len(tree):
        tree[int(first)] = _replaced(tree[int(first)], rest, leaf)
        return tree
    if not isinstance(tree, dict):
        tree = {}
    tree[first] = _replaced(tree.get(first), rest, leaf)
    return tree


def _without_leaves(tree: Tree) -> Tree:
    """Return the same tree with null for every leaf: the gradients that have not arrived yet."""
    if isinstance(tree, list):
        return [_without_leaves(node) for node in tree]
    if isinstance(tree, dict) and not is_leaf(tree):
        return {key: _without_leaves(node) for key, node in tree.items()}
    return None
