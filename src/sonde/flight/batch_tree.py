"""Convert any batch to a plain tree and a list of tensors, and back; and find its rows, tokens and names. Nothing is pickled.

A batch may be a tensor, a tuple, a dict, a dataclass or a user-defined object. The tree is JSON and says where each
tensor belongs. Rebuilding a batch needs another batch of the same script as a template for its types and devices, so no
type is ever named in a file.

    {"d": [["input_ids", {"t": 0}], ["labels", {"t": 1}]]}
"""

import copy
import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor

from sonde.errors import DamagedFile

CONTENT: Final = "content"
"""The dataset name of samples without a number: their number is a digest of their tokens."""
TRAIN: Final = "train"
"""The dataset name of samples that have a number but no dataset."""
_TOKEN_KEYS: Final = ("input_ids", "tokens", "input", "inputs", "x", "source", "target", "labels")
_MASK: Final = "attention_mask"
_MAX_DEPTH: Final = 16
_PLAIN: Final = (str, int, float, bool, type(None))


def flatten(value: Any, leaves: list[Tensor], depth: int = 0) -> dict[str, Any]:
    """Return the tree of a batch, and append its tensors to `leaves` without copying."""
    if isinstance(value, Tensor):
        leaves.append(value)
        return {"t": len(leaves) - 1}
    if type(value) is dict or isinstance(value, Mapping):
        return {"d": [[key, flatten(one, leaves, depth + 1)] for key, one in value.items() if type(key) in (str, int)]}
    if isinstance(value, (list, tuple)) and depth < _MAX_DEPTH:
        return {"l": [flatten(one, leaves, depth + 1) for one in value]}
    if type(value) in _PLAIN:
        return {"v": value}
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        leaves.append(torch.from_numpy(np.ascontiguousarray(value)))
        return {"n": len(leaves) - 1}
    fields = getattr(value, "__dict__", None)
    if isinstance(fields, dict) and not callable(value) and depth < _MAX_DEPTH:
        return {"o": [[key, flatten(one, leaves, depth + 1)] for key, one in fields.items()]}
    return {"x": type(value).__name__}


def rebuild(tree: Any, leaves: Sequence[Tensor], template: Any) -> Any:
    """Rebuild the batch that `flatten` took apart, with the types and devices of `template`."""
    try:
        return _rebuild(tree, leaves, template)
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError) as error:
        raise DamagedFile(
            "a kept batch cannot be built again",
            cause=f"{type(error).__name__}: {error}"[:300],
            hint="the script must make batches of the same kind as when the run was trained",
        ) from None


def _rebuild(tree: Any, leaves: Sequence[Tensor], template: Any) -> Any:
    kind: str
    content: Any
    kind, content = next(iter(tree.items())) if isinstance(tree, dict) and len(tree) == 1 else ("", None)
    if kind == "t":
        leaf = leaves[content]
        return leaf.to(template.device) if isinstance(template, Tensor) else leaf
    if kind == "n":
        return leaves[content].numpy()
    if kind == "v":
        return content
    if kind == "d":
        known: Mapping[Any, Any] = template if isinstance(template, Mapping) else {}
        items = {key: _rebuild(one, leaves, known.get(key)) for key, one in content}
        if type(known) is dict:
            return items
        made = copy.copy(template)
        made.update(items)
        return made
    if kind == "l":
        places = template if isinstance(template, (list, tuple)) else []
        parts = [_rebuild(one, leaves, places[at] if at < len(places) else None) for at, one in enumerate(content)]
        if isinstance(template, tuple):
            return type(template)(*parts) if hasattr(template, "_fields") else tuple(parts)
        return parts
    if kind == "o":
        made, own = copy.copy(template), vars(template)
        for key, one in content:
            if key in own:
                object.__setattr__(made, key, _rebuild(one, leaves, own[key]))
        return made
    if kind == "x":
        return template
    raise ValueError(f"{tree!r:.100} is no part of a batch")


def tokens_of(batch: Any) -> Tensor | None:
    """Return the tensor with the tokens of a batch or a sample: by a common name, otherwise the first integer tensor."""
    if isinstance(batch, Tensor):
        # Read from the dtype: a method would release the GIL.
        is_number = batch.dtype.is_floating_point or batch.dtype.is_complex
        return batch if batch.dim() and not is_number else None
    if isinstance(batch, np.ndarray):
        return tokens_of(torch.from_numpy(batch)) if batch.dtype.kind in "iu" else None
    if isinstance(batch, Mapping):
        for key in _TOKEN_KEYS:
            if key in batch and (found := tokens_of(batch[key])) is not None:
                return found
        return _first(list(batch.values()))
    if isinstance(batch, (list, tuple)):
        if batch and all(type(one) is int for one in batch):
            return torch.tensor(batch)
        return _first(batch)
    fields = getattr(batch, "__dict__", None)
    return tokens_of(fields) if isinstance(fields, dict) else None


def _first(values: Sequence[Any]) -> Tensor | None:
    return next((found for found in map(tokens_of, values) if found is not None), None)


def num_rows(batch: Any) -> int:
    """Return the number of samples in a batch: the first dimension of its tokens, or of its first tensor."""
    tensor = _rows_of(batch)
    return len(tensor) if tensor is not None else 0


def _rows_of(batch: Any) -> Tensor | None:
    """Return the tensor with one row per sample: the tokens, or the first tensor."""
    leaves: list[Tensor] = []
    tokens = tokens_of(batch)
    if tokens is None:
        flatten(batch, leaves)
    return tokens if tokens is not None else next((one for one in leaves if one.dim()), None)


def token_rows(batch: Any) -> list[list[int]]:
    """Return the tokens of every row, without padding if the batch says what padding is; empty if it has no tokens."""
    tokens = tokens_of(batch)
    if tokens is None or tokens.dim() < 2:
        return []
    mask = batch.get(_MASK) if isinstance(batch, Mapping) else None
    if isinstance(mask, Tensor) and mask.shape == tokens.shape:
        return [row[keep].tolist() for row, keep in zip(tokens, mask.to(tokens.device, torch.bool), strict=True)]
    rows: list[list[int]] = tokens.flatten(1).tolist()
    return rows


def without_rows(batch: Any, keep: Sequence[int]) -> Any:
    """Return a batch with the rows `keep` only, in everything that has one entry per row."""
    leaves: list[Tensor] = []
    tree, count, chosen = flatten(batch, leaves), num_rows(batch), torch.tensor(list(keep))
    kept = [
        leaf.index_select(0, chosen.to(leaf.device)) if leaf.dim() and len(leaf) == count else leaf for leaf in leaves
    ]

    def cut(node: Any) -> Any:
        kind, content = next(iter(node.items()))
        if kind == "l" and len(content) == count and all("v" in one for one in content):
            return {kind: [content[row] for row in keep]}
        if kind == "l":
            return {kind: [cut(one) for one in content]}
        return {kind: [[key, cut(one)] for key, one in content]} if kind in ("d", "o") else node

    return rebuild(cut(tree), kept, batch)


def named_rows(given: Any, batch: Any) -> list[tuple[str, int]]:
    """Return the names of a batch's rows: those that the user gave, otherwise names derived from their content."""
    if given is None:
        return sample_names(batch)
    listed = given.tolist() if hasattr(given, "tolist") else list(given)
    if set(map(type, listed)) == {int}:
        return [(TRAIN, one) for one in listed]
    if all(isinstance(one, (tuple, list)) and len(one) == 2 and isinstance(one[1], int) for one in listed):
        return [(str(one[0]), one[1]) for one in listed]
    return sample_names(batch)


def sample_names(batch: Any) -> list[tuple[str, int]]:
    """Return a name for every row of an unnamed batch: a digest of its tokens, or of its bytes."""
    rows = token_rows(batch)
    if rows:
        return [(CONTENT, name_of(_unpadded(row))) for row in rows]
    tensor = _rows_of(batch)
    return [] if tensor is None else [(CONTENT, _digest_of(row)) for row in tensor.detach()]


def names_of_sample(sample: Any) -> set[int]:
    """Return the names that a sample of a dataset may have had as a row of a batch."""
    tokens = tokens_of(sample)
    if tokens is not None and tokens.dim():
        row = tokens.flatten().tolist()
        return {name_of(row), name_of(_unpadded(row))}
    leaves: list[Tensor] = []
    flatten(sample, leaves)
    return {_digest_of(leaves[0])} if leaves else set()


def name_of(tokens: Sequence[int]) -> int:
    """Return the number that identifies a row of tokens: 63 bits, the same in every process."""
    return _digest(np.asarray(tokens, np.int64).tobytes())


def _digest_of(tensor: Tensor) -> int:
    return _digest(tensor.cpu().contiguous().view(torch.uint8).numpy().tobytes())


def _digest(payload: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(payload, digest_size=8).digest(), "little") >> 1


def _unpadded(row: Sequence[int]) -> Sequence[int]:
    """Remove repeated tokens at the end of a row, which are padding (or, rarely, text that ends that way)."""
    end = len(row)
    while end > 1 and row[end - 2] == row[-1]:
        end -= 1
    return row[: end - 1] if end < len(row) else row
