"""Training data that is not sonde's own: a torch `DataLoader`, or any iterable that can be iterated repeatedly.

With a `state_dict` and `load_state_dict` (torchdata's `StatefulDataLoader`, or a sampler that has them) a run resumes exactly where it was. Without,
it starts the interrupted epoch over, and says so.
"""

import logging
from collections.abc import Iterator, Mapping
from typing import Any, final

import torch
from torch import Tensor

from sonde.train.task import TrainingData

_logger = logging.getLogger("sonde")


def as_training_data(data: Any) -> TrainingData:
    """The data as the trainer wants it."""
    return data if _has_state(data) else _Loader(data)


def moved(batch: Any, device: torch.device) -> Any:
    """A batch on a device: a tensor, anything with `to`, and what lists, tuples and dicts hold of them."""
    if isinstance(batch, Tensor) or hasattr(batch, "to"):
        return batch.to(device, non_blocking=True)
    if isinstance(batch, dict):
        return {name: moved(value, device) for name, value in batch.items()}
    if isinstance(batch, (list, tuple)) and not hasattr(batch, "_fields"):
        return type(batch)(moved(value, device) for value in batch)
    return batch


def _has_state(data: Any) -> bool:
    return callable(getattr(data, "state_dict", None)) and callable(getattr(data, "load_state_dict", None))


@final
class _Loader:
    """Anything iterable, and the position in it that somebody knows: its sampler, or nobody."""

    def __init__(self, data: Any) -> None:
        self._data = data
        self._num_epochs = 0
        samplers = [getattr(data, name, None) for name in ("batch_sampler", "sampler")]
        samplers.append(getattr(samplers[0], "sampler", None))
        self._samplers = list({id(sampler): sampler for sampler in samplers if sampler is not None}.values())
        self._positions = [sampler for sampler in self._samplers if _has_state(sampler)]
        if not self._positions:
            _logger.warning(
                "%s does not tell its position: a run that is resumed begins its epoch anew. One with a state_dict "
                "(torchdata's StatefulDataLoader, or a sampler that has one) resumes exactly",
                type(data).__name__,
            )

    def __iter__(self) -> Iterator[Any]:
        for sampler in self._samplers:
            if hasattr(sampler, "set_epoch"):  # torch's DistributedSampler shuffles by it
                sampler.set_epoch(self._num_epochs)
        yield from self._data
        self._num_epochs += 1

    def state_dict(self) -> dict[str, Any]:
        """Epochs completed, and what the sampler knows."""
        return {"num_epochs": self._num_epochs, "samplers": [one.state_dict() for one in self._positions]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go there."""
        self._num_epochs = state["num_epochs"]
        for one, position in zip(self._positions, state["samplers"], strict=False):
            one.load_state_dict(position)
