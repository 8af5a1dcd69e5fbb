"""The memory of this process and of its GPU, sampled every few seconds by the recorder's background
worker and written into the log. Costs the training nothing. Systems without /proc give no samples;
the GPU is asked by NVML, if that is installed.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from sonde.errors import SondeError
from sonde.records.files import open_regular
from sonde.spikes.memory_climb import MemorySeries

PROCESS_MEMORY: Final = "memory.process_gb"
GPU_MEMORY: Final = "memory.gpu_gb"
EVERY_SECONDS: Final = 5.0
_STATM: Final = Path("/proc/self/statm")


def bytes_of(tensor: Tensor) -> int:
    """Return how many bytes the values of a tensor take. A sparse one does not count: what it holds
    is little beside what its shape says.
    """
    return tensor.nbytes if tensor.layout is torch.strided else 0


class MemoryWatch:
    """Samples the memory of this process and of the device that it trains on."""

    def __init__(self, device: torch.device) -> None:
        self._series = MemorySeries()
        self._device = device
        self._next = time.monotonic() + EVERY_SECONDS
        self._has_gpu = device.type == "cuda"

    def sample(self, step: int) -> dict[str, float]:
        """Take a sample if the last one is some seconds old, and return it in GB by name."""
        now = time.monotonic()
        if now < self._next:
            return {}
        self._next = now + EVERY_SECONDS
        sampled = {}
        num_bytes = own_memory()
        if num_bytes is not None:
            self._series.add(step, num_bytes)
            sampled[PROCESS_MEMORY] = num_bytes / 1e9
        num_bytes = self._gpu_memory()
        if num_bytes is not None:
            sampled[GPU_MEMORY] = num_bytes / 1e9
        return sampled

    @property
    def samples(self) -> Sequence[tuple[int, int]]:
        """The samples of the process so far: step and bytes."""
        return self._series.samples

    def _gpu_memory(self) -> int | None:
        """Return the bytes that are in use on the GPU, as nvidia-smi shows them; None without
        NVML.
        """
        if not self._has_gpu:
            return None
        try:
            return torch.cuda.device_memory_used(self._device)
        except Exception:  # noqa: BLE001  no NVML, or a driver that does not answer: never asked again
            self._has_gpu = False
            return None


def own_memory() -> int | None:
    """Return the bytes in memory that are this process's own: no mapped files, no shared memory.
    None if the system does not say.
    """
    try:
        with open_regular(_STATM) as file:
            _, resident, shared, *_ = map(int, file.read().split())
    except (OSError, SondeError, ValueError):
        return None
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def device_of(model: nn.Module) -> torch.device:
    """Return the device of a model."""
    devices = [parameter.device for parameter in model.parameters()]
    return devices[0] if devices else torch.device("cpu")
