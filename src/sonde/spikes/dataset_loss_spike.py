"""`DatasetLossSpike`: the documented interface over sonde's own datasets.

    spike = DatasetLossSpike("spikes", {"train": open_pairs("data")}, min_iter=2000, min_loss=10)
    spike.save_loss(None, loss, step, losses_str=losses, sample_infos_str=[sample_info(*row) for row in batch.provenance])

A sample info is `{dataset}:{sample}`, as in `train:20117`.
"""

import os
from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol, final

from sonde.errors import SettingError
from sonde.spikes.loss_spike import LossSpike
from sonde.spikes.sample_text import Fetched


def sample_info(dataset: str, sample: int) -> str:
    """The text that names a sample."""
    return f"{dataset}:{sample}"


class SampleReader(Protocol):
    """What is needed of a dataset: `dataset[i].target` are the tokens of sample i."""

    def __len__(self) -> int: ...

    def __getitem__(self, sample: int, /) -> Any: ...


class DatasetPlace(NamedTuple):
    """Where a sample lies."""

    dataset: str
    sample: int


@final
class DatasetLossSpike(LossSpike):
    """Loss spikes over datasets by name."""

    def __init__(
        self,
        loss_spike_save_dir: str | os.PathLike[str],
        datasets: Mapping[str, SampleReader],
        *,
        min_iter: int = 0,
        min_loss: float = 0.0,
    ) -> None:
        for name in datasets:
            if "\t" in name or "," in name or "\n" in name:
                raise SettingError(
                    f"a dataset cannot be named {name!r} here: tabs and commas separate the fields of a line"
                )
        super().__init__(loss_spike_save_dir, min_iter=min_iter, min_loss=min_loss)
        self.datasets = dict(datasets)

    def parse_sample_info(self, sample_info: str) -> DatasetPlace:
        """The place that a sample info names."""
        dataset, colon, sample = sample_info.strip().rpartition(":")
        if not colon:
            raise ValueError("not of the form DATASET:SAMPLE")
        return DatasetPlace(dataset, int(sample))

    def fetch_tokens(self, place: DatasetPlace) -> Fetched:
        """The name of its dataset and the tokens of a sample."""
        if place.dataset not in self.datasets:
            raise LookupError(f"there is no dataset {place.dataset!r}: there are {', '.join(self.datasets)}")
        dataset = self.datasets[place.dataset]
        if not 0 <= place.sample < len(dataset):
            raise LookupError(f"there is no sample {place.sample}: {place.dataset} has {len(dataset)}")
        return Fetched(place.dataset, dataset[place.sample].target.tolist())
