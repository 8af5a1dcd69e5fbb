"""`without(dataset, run)`: a map-style dataset without the samples that a run is told to skip, by number or by content.

Numbers are those of the dataset's name in the skip list, `train` unless said otherwise. Names made of content (`content 2809058013684499405`) are
looked up by reading every sample once, when there are any.
"""

from pathlib import Path
from typing import Any, final

from sonde.data.skip_list import SkipList, read_skip_list
from sonde.errors import SettingError
from sonde.flight.batch_tree import CONTENT, TRAIN, names_of_sample
from sonde.records.layout import RunLayout
from sonde.run import Run


def without(dataset: Any, run: "Run | Path | str", *, name: str = TRAIN) -> Any:
    """The dataset without what the run's skip list names; the dataset itself when it names nothing of it.

    `name` is what the skip list calls the dataset.
    """
    missing = [one for one in ("__len__", "__getitem__") if not hasattr(dataset, one)]
    if missing:
        raise SettingError(
            f"samples can be left out of a dataset with numbers only, and {type(dataset).__name__} has no {missing[0]}",
            hint="a dataset that is iterated over must leave them out itself: sonde.data.skip_list.read_skip_list",
        )
    path = (run.layout if isinstance(run, Run) else RunLayout(Path(run))).skip_list
    skip = read_skip_list(path) if path.exists() else SkipList()
    numbers = set(skip.samples(name).tolist())
    contents = set(skip.samples(CONTENT).tolist())
    if contents:
        numbers |= {at for at in range(len(dataset)) if names_of_sample(dataset[at]) & contents}
    return LeftOver(dataset, [at for at in range(len(dataset)) if at not in numbers]) if numbers else dataset


@final
class LeftOver:
    """A dataset without some of its samples; those that stay keep their order."""

    def __init__(self, dataset: Any, numbers: list[int]) -> None:
        self.dataset = dataset
        self.numbers = numbers
        """Of each sample here, its number there."""

    def __len__(self) -> int:
        """How many are left."""
        return len(self.numbers)

    def __getitem__(self, place: int) -> Any:
        """One of them."""
        return self.dataset[self.numbers[place]]
