"""Which files a dataset is made of, as plain data; and the dataset again, from that data, in another process.

    {"kind": "pairs",  "source": {"prefix": …, "sha256": …}, "target": {…}}
    {"kind": "blocks", "tokens": {…}, "block_size": 512, "mode": "pack"}

The digest is that of the tokens' sidecar. Data that has another one by now is not what was trained on: opening refuses it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sonde.data.blocks import BlockDataset
from sonde.data.directory import DataDirectory
from sonde.data.pairs import PairDataset, open_pairs
from sonde.data.token_file import TokenFile, index_path
from sonde.errors import DamagedFile, SettingError


def describe_datasets(datasets: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What each dataset is made of; those of other kinds than sonde's own are left out."""
    described = {name: describe_dataset(dataset) for name, dataset in datasets.items()}
    return {name: description for name, description in described.items() if description is not None}


def describe_dataset(dataset: Any) -> dict[str, Any] | None:
    """What one dataset is made of."""
    if isinstance(dataset, PairDataset):
        return {"kind": "pairs", "source": _describe(dataset.source), "target": _describe(dataset.target)}
    if isinstance(dataset, BlockDataset):
        tokens = _describe(dataset.tokens)
        return {"kind": "blocks", "tokens": tokens, "block_size": dataset.block_size, "mode": dataset.mode}
    return None


def open_dataset(name: str, description: Mapping[str, Any]) -> PairDataset | BlockDataset:
    """The dataset that was described. SettingError or DamagedFile say why there is none."""
    kind = description.get("kind")
    if kind == "pairs":
        return PairDataset(_open(description["source"]), _open(description["target"]), name=name)
    if kind == "blocks":
        tokens = _open(description["tokens"])
        return BlockDataset(tokens, description["block_size"], name=name, mode=description["mode"])
    raise SettingError(f"the dataset {name} is of a kind this sonde does not know: {kind!r}")


def open_in_directory(name: str, directory: Path, description: Mapping[str, Any] | None) -> PairDataset | BlockDataset:
    """The dataset out of a prepared directory that may lie elsewhere now; without a description, its split `name`."""
    if description is None:
        return open_pairs(directory, name)
    return open_dataset(name, {key: _moved(value, directory) for key, value in description.items()})


def directory_of(dataset: PairDataset | BlockDataset) -> DataDirectory:
    """The prepared directory it lies in, which has the tokenizer."""
    tokens = dataset.target if isinstance(dataset, PairDataset) else dataset.tokens
    return DataDirectory(tokens.prefix.parent)


def _describe(tokens: TokenFile) -> dict[str, Any]:
    digest = tokens.sidecar.bin.sha256 if tokens.sidecar else None
    return {"prefix": str(tokens.prefix.absolute()), "sha256": digest}


def _open(description: Mapping[str, Any]) -> TokenFile:
    prefix = Path(description["prefix"])
    if not index_path(prefix).exists():
        raise SettingError(f"there is no data at {prefix}: say where it is now with --data DIR")
    tokens = TokenFile(prefix)
    digest = description.get("sha256")
    if digest is not None and tokens.sidecar is not None and tokens.sidecar.bin.sha256 != digest:
        raise DamagedFile(
            f"{prefix} is not the data that was trained on",
            cause=f"its SHA-256 is {tokens.sidecar.bin.sha256[:12]}…, the run says {digest[:12]}…",
        )
    return tokens


def _moved(value: Any, directory: Path) -> Any:
    if isinstance(value, Mapping) and "prefix" in value:
        return {**value, "prefix": str(directory / Path(value["prefix"]).name)}
    return value
