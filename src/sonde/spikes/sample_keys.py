"""Samples as 64-bit keys, for the ledger: 15 bits of dataset and 48 of number, or 63 bits of a hash.

A sample is called what the loop calls it: a pair of dataset and number, a number, a text; or, where it has no name, by its content: a hash of its
tokens, as an array of uint64, as a number beyond 48 bits, or as a text of `#` and 16 hexadecimal digits. What a key means goes into the ledger once, as names.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, Final, final

import numpy as np
from numpy.typing import NDArray

_HASHED: Final = 1 << 63
_NUMBER_BITS: Final = 48
_MAX_DATASETS: Final = 1 << 15
_MAX_TEXTS: Final = 100_000
"""Texts that are remembered; of more there is only the hash."""
_MAX_TEXT: Final = 200


@final
class SampleKeys:
    """Makes keys of names, and names of keys."""

    def __init__(self) -> None:
        self.datasets: dict[str, int] = {}
        """The number of every dataset."""
        self.texts: dict[int, str] = {}
        """By key: what the loop called the sample, where that is a text."""
        self._news: dict[str, dict[str, Any]] = {}

    def of(self, ids: Any) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        """The key of each sample, and which of them are samples at all (a rank without data has a row called -1)."""
        if hasattr(ids, "dtype"):
            if hasattr(ids, "numpy"):
                ids = ids.cpu().numpy()
            if ids.dtype == np.uint64:
                return ids | np.uint64(_HASHED), np.ones(len(ids), bool)
            return self._of_numbers("", ids.astype(np.int64))
        if set(map(type, ids)) == {tuple} and set(map(len, ids)) == {2}:
            names, numbers = {one[0] for one in ids}, [one[1] for one in ids]
            if len(names) == 1 and set(map(type, numbers)) == {int}:
                return self._of_numbers(str(names.pop()), np.array(numbers, np.int64))
        keys = [self._of_one(one) for one in ids]
        good = np.array([key is not None for key in keys], bool)
        return np.array([key or 0 for key in keys], np.uint64), good

    def news(self) -> dict[str, dict[str, Any]]:
        """Names that were given since this was last asked, as plain data."""
        news, self._news = self._news, {}
        return news

    def all_names(self) -> dict[str, dict[str, Any]]:
        """All names, as plain data."""
        return {"datasets": dict(self.datasets), "texts": {f"{key:016x}": text for key, text in self.texts.items()}}

    def learn(self, names: Mapping[str, Any]) -> None:
        """Take in names that were written. Raises what a damaged document makes it raise."""
        for name, number in names.get("datasets", {}).items():
            self.datasets[str(name)] = int(number) % _MAX_DATASETS
        self.texts |= {int(key, 16): str(text)[:_MAX_TEXT] for key, text in names.get("texts", {}).items()}

    def name_of(self, key: int) -> tuple[str, int | str]:
        """Dataset and number, or an empty dataset and a text, or `#` and a hash."""
        if key & _HASHED:
            return "", self.texts.get(key, f"#{key & (_HASHED - 1):016x}")
        number = key >> _NUMBER_BITS
        dataset = next((name for name, one in self.datasets.items() if one == number), f"dataset {number}")
        return dataset, key & ((1 << _NUMBER_BITS) - 1)

    def _of_numbers(self, dataset: str, numbers: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
        code = np.uint64(self.code(dataset) << _NUMBER_BITS)
        keys = numbers.astype(np.uint64)
        large = numbers >= 1 << _NUMBER_BITS
        if large.any():
            return np.where(large, keys | np.uint64(_HASHED), keys | code), numbers >= 0
        return keys | code, numbers >= 0

    def _of_one(self, one: Any) -> int | None:
        dataset, name = one if isinstance(one, Sequence) and not isinstance(one, str) and len(one) == 2 else ("", one)
        if isinstance(name, (int, np.integer)):
            keys, good = self._of_numbers(str(dataset), np.array([int(name) & (_HASHED - 1) if name >= 0 else -1]))
            return int(keys[0]) if good[0] else None
        text = f"{dataset}:{name}" if dataset else str(name)
        if len(text) == 17 and text[0] == "#" and all(digit in "0123456789abcdef" for digit in text[1:]):
            return int(text[1:], 16) | _HASHED
        key = (
            int.from_bytes(hashlib.blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), "little") | _HASHED
        )
        if key not in self.texts and len(self.texts) < _MAX_TEXTS:
            self.texts[key] = text[:_MAX_TEXT]
            self._news.setdefault("texts", {})[f"{key:016x}"] = text[:_MAX_TEXT]
        return key

    def code(self, dataset: str) -> int:
        """The number of a dataset; a new one is given one."""
        code = self.datasets.get(dataset)
        if code is None:
            code = self.datasets[dataset] = (max(self.datasets.values(), default=-1) + 1) % _MAX_DATASETS
            self._news.setdefault("datasets", {})[dataset] = code
        return code
