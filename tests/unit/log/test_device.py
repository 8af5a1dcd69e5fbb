import subprocess
import sys

import numpy as np
import torch

import sonde.log
from sonde.log.device import Copy, begin_copy
from sonde.records.values import is_tensor_type


def test_tensors_are_known_by_their_type() -> None:
    assert is_tensor_type(torch.Tensor)
    assert is_tensor_type(torch.nn.Parameter)
    assert not is_tensor_type(np.ndarray)
    assert not is_tensor_type(torch.Size)


def test_a_copy_is_begun_and_read_by_way_of_torchs_device_module() -> None:
    # torch.cpu has streams and events too, so the very code that serves a GPU runs here.
    copy = begin_copy(torch.tensor([1.0, 2.0], requires_grad=True))
    assert isinstance(copy, Copy)
    assert copy.is_ready()
    assert copy.value() == [1.0, 2.0]


def test_the_logger_imports_neither_torch_nor_rich_nor_any_tracker() -> None:
    script = """
import sys
import sonde.log
from sonde.log import JSONStreamBackend, Logger, StdOutBackend
print("sqlite3" in sys.modules or "msgspec" in sys.modules)
import sonde.log.reading
names = {"torch", "tensorboard", "wandb", "mlflow", "pandas", "polars", "pyarrow"}
print(sorted(names & set(sys.modules)))
sys.modules.pop("rich", None)
logger = Logger([StdOutBackend(), JSONStreamBackend(1, sys.argv[1])])
logger.log(1, {"loss": 1.0})
print("rich.console" in sys.modules)
"""
    command = [sys.executable, "-c", script, "/dev/null"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert (lines[0], lines[1], lines[-1]) == ("False", "[]", "False")


def test_every_public_name_of_the_room_loads() -> None:
    assert all(getattr(sonde.log, name) is not None for name in dir(sonde.log))
    assert not hasattr(sonde.log, "nothing")
