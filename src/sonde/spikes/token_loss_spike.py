"""`TokenLossSpike`: ATorch's recorder of loss spikes and its layout of data, as its manual has them.

    spike = TokenLossSpike("spikes", [("wikipedia", "corpus/base"), ("zhihu", "tokenized/zhihu.lazy")], 4, 2000, 10)
    spike.save_loss("rank0.txt", loss, step, losses_str="2.44,40.05", sample_infos_str="20-0-11-22-0,20-1-13-14-2")
    spike.decode_loss_spike("out.txt", tokenizer)

A sample info is `{scatter_id}-{dsid}-{idx}-{raw_id}-{sample_id}`: row `sample_id` of `{path}.scatter/{scatter_id}.lazy/text`,
where `path` is that of dataset number `dsid`, and a row is `each_sample_len` raw int32. `idx` and `raw_id` are not used.
"""

import os
from abc import ABC
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from sonde.errors import SettingError
from sonde.spikes.loss_spike import LossSpike
from sonde.spikes.sample_text import Fetched, FetchedMany

_MAX_OPEN_SHARDS: Final = 512


class ShardPlace(NamedTuple):
    """Where a sample lies."""

    dataset: int
    """Number of its dataset."""
    scatter_id: str
    """Its shard, a number."""
    row: int
    """Its row in the shard."""


class TokenLossSpike(LossSpike, ABC):
    """Loss spikes over shards of fixed rows. Saves without `sample_data_paths` and `each_sample_len`; decodes with both.

    ATorch's two extension points are here: a subclass may override `fetch` (where a sample's tokens come from) and
    `parse_sample_content` (what is said of a line).
    """

    def __init__(  # the manual's signature
        self,
        loss_spike_save_dir: str | os.PathLike[str],
        sample_data_paths: Sequence[tuple[str, str | os.PathLike[str]]] | None = None,
        each_sample_len: int | None = None,
        min_iter: int = 0,
        min_loss: float = 0.0,
        loss_info_splitter: str = "\t",
        loss_sample_str_splitter: str = ",",
    ) -> None:
        if each_sample_len is not None and each_sample_len < 1:
            raise SettingError(f"each_sample_len is the number of tokens of a row, not {each_sample_len}")
        super().__init__(
            loss_spike_save_dir,
            min_iter=min_iter,
            min_loss=min_loss,
            loss_info_splitter=loss_info_splitter,
            loss_sample_str_splitter=loss_sample_str_splitter,
        )
        self.sample_data_paths = None if sample_data_paths is None else list(sample_data_paths)
        self.each_sample_len = each_sample_len
        self._shards: dict[tuple[int, str], NDArray[np.int32]] = {}

    def parse_sample_info(self, sample_info: str) -> ShardPlace:
        """The place that a sample info names."""
        parts = sample_info.strip().split("-")
        if len(parts) != 5:
            raise ValueError(f"{len(parts)} numbers instead of 5")
        scatter_id, dataset, _, _, row = parts
        if not scatter_id.isdecimal():
            raise ValueError(f"{scatter_id!r} is no number of a shard")
        return ShardPlace(int(dataset), scatter_id, int(row))

    def fetch_tokens(self, place: ShardPlace) -> Fetched:
        """The name of its dataset and the tokens of a sample."""
        shard = self._shard(place.dataset, place.scatter_id)
        if not 0 <= place.row < len(shard):
            raise IndexError(_no_row(place.row, shard))
        return Fetched(self._datasets()[place.dataset][0], shard[place.row].tolist())

    def fetch(self, each_sample_info: str) -> tuple[Any, Any]:
        """The name of its dataset and the tokens of a sample, by the text that names it; (None, None) when there are none."""
        try:
            dataset, tokens = self.fetch_tokens(self.parse_sample_info(each_sample_info))
        except (LookupError, ValueError, OSError):
            return None, None
        return dataset, np.array(tokens, np.int32)

    @staticmethod
    def get_data_file_len(fpath: str | os.PathLike[str], dtype: np.dtype[Any]) -> int:
        """How many values a file holds: ATorch's, for a `fetch` that was written there."""
        return os.path.getsize(fpath) // dtype.itemsize

    def fetch_many(self, sample_infos: Sequence[str]) -> FetchedMany:
        """The tokens of many samples, as one array. Reads shard by shard, or asks a subclass that overrides `fetch`."""
        if type(self).fetch is not TokenLossSpike.fetch:
            return self._fetch_one_by_one(sample_infos)
        num_samples = len(sample_infos)
        samples = FetchedMany([""] * num_samples, np.zeros((num_samples, self.each_sample_len or 0), np.int32), {})
        by_shard: defaultdict[str, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
        for place, info in enumerate(sample_infos):
            try:
                shard, _, _, text = info.rsplit("-", 3)
                row = int(text)
            except ValueError:
                samples.missing[place] = "this is not five numbers"
                continue
            places, rows = by_shard[shard]
            places.append(place)
            rows.append(row)
        for shard, (places, rows) in by_shard.items():
            try:
                self._fetch_rows(self.parse_sample_info(f"{shard}-0-0-0"), places, rows, samples)
            except (LookupError, ValueError, OSError) as error:
                samples.missing.update(dict.fromkeys(places, str(error)))
        return samples

    def _fetch_one_by_one(self, sample_infos: Sequence[str]) -> FetchedMany:
        samples = FetchedMany([], [], {})
        for place, info in enumerate(sample_infos):
            try:
                dataset, tokens = self.fetch(info)
            except Exception as error:  # noqa: BLE001  (a user's method; the other samples are decoded all the same)
                dataset, tokens = None, f"{type(error).__name__}: {error}"
            if dataset is None:
                samples.missing[place] = tokens or "fetch gave nothing"
            samples.datasets.append(str(dataset))
            samples.tokens.append([] if dataset is None else np.asarray(tokens).tolist())  # type: ignore[union-attr]  # a list here
        return samples

    def _fetch_rows(self, place: ShardPlace, places: list[int], rows: list[int], samples: FetchedMany) -> None:
        """Put rows of one shard into their places among the samples."""
        shard = self._shard(place.dataset, place.scatter_id)
        name = self._datasets()[place.dataset][0]
        for at, row in zip(places, rows, strict=True):
            samples.datasets[at] = name
            if row >= len(shard):
                samples.missing[at] = _no_row(row, shard)
        if len(shard):
            inside = [row if row < len(shard) else 0 for row in rows]  # not by numpy: a row may be any number
            samples.tokens[places] = shard[inside]  # type: ignore[call-overload]  # numpy takes any sequence of places, its stubs do not

    def check_can_decode(self) -> None:
        """Raise SettingError when the data was not named, unless a subclass knows where it is."""
        if type(self).fetch is TokenLossSpike.fetch and not self._has_own_contents():
            self._datasets()

    def _datasets(self) -> list[tuple[str, str | os.PathLike[str]]]:
        names = ("sample_data_paths", "each_sample_len")
        missing = [name for name in names if getattr(self, name) is None]
        if self.sample_data_paths is None or missing:
            raise SettingError(
                f"decoding needs {' and '.join(missing)}, given to TokenLossSpike",
                hint="sample_data_paths=[('wikipedia', 'corpus/base'), …] in the order of dataset ids, each_sample_len=4096",
            )
        return self.sample_data_paths

    def _shard(self, dataset: int, scatter_id: str) -> NDArray[np.int32]:
        """The rows of a shard, mapped read-only, once."""
        shard = self._shards.get((dataset, scatter_id))
        if shard is None:
            datasets = self._datasets()
            if not 0 <= dataset < len(datasets):
                raise IndexError(f"there is no dataset {dataset}: there are {len(datasets)}")
            assert self.each_sample_len is not None
            path = Path(f"{os.fspath(datasets[dataset][1])}.scatter") / f"{scatter_id}.lazy" / "text"
            if len(self._shards) >= _MAX_OPEN_SHARDS:
                self._shards.pop(next(iter(self._shards)))
            shard = self._shards[dataset, scatter_id] = _map_rows(path, self.each_sample_len)
        return shard


def _no_row(row: int, shard: NDArray[np.int32]) -> str:
    return f"there is no row {row}: the shard has {len(shard)}"


def _map_rows(path: Path, row_tokens: int) -> NDArray[np.int32]:
    """The whole rows of a file of int32; tokens after the last whole row belong to none."""
    num_rows = path.stat().st_size // (4 * row_tokens)
    if not num_rows:
        return np.zeros((0, row_tokens), np.int32)
    # As a plain array over the map: indexing numpy's own class for it takes twice as long.
    return np.asarray(np.memmap(path, np.int32, mode="r", shape=(num_rows, row_tokens)))
