"""`TokenLossSpike`: ATorch's loss spike recorder and data layout, as documented in its manual.

    spike = TokenLossSpike("spikes", [("wikipedia", "corpus/base"), ("zhihu",
        "tokenized/zhihu.lazy")], 4, 2000, 10)
    spike.save_loss("rank0.txt", loss, step, losses_str="2.44,40.05",
        sample_infos_str="20-0-11-22-0,20-1-13-14-2")
    spike.decode_loss_spike("out.txt", tokenizer)

A sample info is `{scatter_id}-{dsid}-{idx}-{raw_id}-{sample_id}`: row `sample_id` of
`{path}.scatter/{scatter_id}.lazy/text`, where `path` is that of dataset number `dsid`, and a row is
`each_sample_len` raw int32. `idx` and `raw_id` are not used.
"""

import os
from abc import ABC
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sonde.compat.atorch.loss_spike import Fetched, LossSpike
from sonde.errors import SettingError

_MAX_OPEN_SHARDS: Final = 512


class TokenLossSpike(LossSpike, ABC):
    """Loss spikes for shards of fixed-length rows. Decoding needs `sample_data_paths` and
    `each_sample_len`; saving does not.

    A subclass may override ATorch's two extension points: `fetch` (where a sample's tokens come
    from) and `parse_sample_content` (what is written for a line).

    ```python
    from sonde import TokenLossSpike

    spikes = TokenLossSpike("spikes", min_iter=100, min_loss=4.0)
    samples = "3-0-1-2-7,3-0-1-2-8"
    spikes.save_loss("losses", 5.2, 207, losses_str="2.1,8.3", sample_infos_str=samples)
    ```
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
        """Prepare to save or decode.

        Args:
            loss_spike_save_dir: The directory of the saved files.
            sample_data_paths: The data sets, each a name and the directory of its shards.
            each_sample_len: The number of tokens in a row.
            min_iter: Leave out earlier iterations.
            min_loss: Leave out lower losses.
            loss_info_splitter: Stands between the fields of a line.
            loss_sample_str_splitter: Stands between the samples of a field.
        """
        if each_sample_len is not None and each_sample_len < 1:
            raise SettingError(
                f"each_sample_len is the number of tokens of a row, not {each_sample_len}"
            )
        super().__init__(
            loss_spike_save_dir, min_iter, min_loss, loss_info_splitter, loss_sample_str_splitter
        )
        self.sample_data_paths = None if sample_data_paths is None else list(sample_data_paths)
        self.each_sample_len = each_sample_len
        self._shards: dict[str, tuple[str, NDArray[np.int32]]] = {}

    def parse_sample_info(self, sample_info: str) -> tuple[str, int]:
        """Parse a sample info into its shard with the dataset (`20-1`) and the row in it."""
        try:
            shard, _, _, row = sample_info.strip().rsplit("-", 3)
            return shard, int(row)
        except ValueError:
            raise ValueError("this is not five numbers") from None

    def fetch_tokens(self, place: tuple[str, int]) -> Fetched:
        """Return the dataset's name and the tokens of a sample."""
        shard, row = place
        name, rows = self._shards.get(shard) or self._open_shard(shard)
        if row >= len(rows):
            raise IndexError(f"there is no row {row}: the shard has {len(rows)}")
        return name, rows[row]  # an array works as well as a list

    def fetch(self, each_sample_info: str) -> tuple[Any, Any]:
        """Return the dataset's name and the tokens of the sample with this info; (None, None) if
        there are none.
        """
        try:
            dataset, tokens = super().fetch_sample(each_sample_info)
        except (LookupError, ValueError, OSError):
            return None, None
        return dataset, np.array(tokens)

    @staticmethod
    def get_data_file_len(fpath: str | os.PathLike[str], dtype: np.dtype[Any]) -> int:
        """Return the number of values in a file. Part of ATorch's interface, for subclasses that
        override `fetch`.
        """
        return os.path.getsize(fpath) // dtype.itemsize

    def fetch_sample(self, sample_info: str) -> Fetched:
        """Return the dataset's name and tokens, using an overridden `fetch` if there is one."""
        if type(self).fetch is TokenLossSpike.fetch:
            return self.fetch_tokens(self.parse_sample_info(sample_info))
        dataset, tokens = self.fetch(sample_info)
        if dataset is None:
            raise LookupError("fetch gave nothing")
        return str(dataset), np.asarray(tokens).tolist()

    def check_can_decode(self) -> None:
        """Raise SettingError if the data was not given and no subclass provides it."""
        missing = [
            name for name in ("sample_data_paths", "each_sample_len") if getattr(self, name) is None
        ]
        if missing and type(self).fetch is TokenLossSpike.fetch and not self._has_own_contents():
            raise SettingError(
                f"decoding needs {' and '.join(missing)}, given to TokenLossSpike",
                hint=(
                    "sample_data_paths=[('wikipedia', 'corpus/base'), …] in the order of dataset"
                    " ids, each_sample_len=4096"
                ),
            )

    def _open_shard(self, shard: str) -> tuple[str, NDArray[np.int32]]:
        """Return the name of a shard's dataset and its rows, memory-mapped read-only and cached. An
        incomplete last row is ignored.
        """
        scatter_id, *numbers = shard.split("-")
        if len(numbers) != 1:
            raise ValueError(f"{len(numbers) + 4} numbers instead of 5")
        if not scatter_id.isdecimal():
            raise ValueError(f"{scatter_id!r} is no number of a shard")
        datasets = self.sample_data_paths
        dataset = int(numbers[0])
        row_tokens = self.each_sample_len
        if datasets is None or row_tokens is None:
            raise LookupError("sample_data_paths and each_sample_len were not given")
        if dataset >= len(datasets):
            raise IndexError(f"there is no dataset {dataset}: there are {len(datasets)}")
        name, base = datasets[dataset]
        path = Path(f"{os.fspath(base)}.scatter") / f"{scatter_id}.lazy" / "text"
        num_rows = path.stat().st_size // (4 * row_tokens)
        rows = np.zeros((0, row_tokens), np.int32)
        # an empty file cannot be mapped; a plain array over the map is indexed in half the time
        if num_rows:
            rows = np.asarray(np.memmap(path, np.int32, mode="r", shape=(num_rows, row_tokens)))
        if len(self._shards) >= _MAX_OPEN_SHARDS:
            self._shards.pop(next(iter(self._shards)))
        self._shards[shard] = name, rows
        return name, rows
