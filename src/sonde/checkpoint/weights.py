"""Load only the weights, for inference or fine-tuning: no trainer, no optimizer, step 0.

For example:

    load_weights("runs/x", model)                     # of the newest valid checkpoint
    load_weights("runs/x/checkpoints/step-000000001000", model)
    average_weights([folder.at(step) for step in …])  # the mean of several checkpoints' weights
"""

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from sonde.checkpoint.folder import (
    STATE_FILE,
    About,
    CheckpointFolder,
    describe_problems,
    encode_document,
    fill_checkpoint,
)
from sonde.checkpoint.state import TensorImage, split_state
from sonde.checkpoint.store import read_checkpoint
from sonde.errors import DamagedFile, RunNotFound, SettingError
from sonde.records.layout import RunLayout
from sonde.records.manifest import checkpoint_place
from sonde.records.storage import Storage, storage_at


def load_weights(path: str | os.PathLike[str], model: nn.Module) -> int:
    """Load the weights of a checkpoint into `model`; return the number of updates they were trained
    for.

    `path` is a checkpoint, a folder of checkpoints or a run; for the latter two, the newest valid
    checkpoint is used. A model with other shapes is refused and left unchanged.

    ```python
    import torch

    from sonde.checkpoint import CheckpointStore, load_weights

    model = torch.nn.Linear(3, 2)
    CheckpointStore("checkpoints").save(100, {"model": model.state_dict()})
    assert load_weights("checkpoints", torch.nn.Linear(3, 2)) == 100
    ```
    """
    found = find_checkpoint(path)
    step, weights = read_weights(found)
    check_fit(found.where, weights, model)
    target = bare(model)
    if any(isinstance(module, FSDPModule) for module in target.modules()):
        set_model_state_dict(target, dict(weights), options=StateDictOptions(full_state_dict=True))
    else:
        # the function above does not know the names of a compiled model
        target.load_state_dict(weights)
    return step


def find_checkpoint(path: str | os.PathLike[str]) -> Storage:
    """Return the checkpoint that a path or URL refers to: itself, or the newest valid one in a
    folder or run.
    """
    storage = storage_at(path)
    with contextlib.suppress(OSError), storage.open(STATE_FILE):
        return storage
    folder = CheckpointFolder(storage.where)
    if isinstance(storage.where, Path) and RunLayout(storage.where).manifest.exists():
        folder = CheckpointFolder(checkpoint_place(storage.where))
    step, rejected = folder.newest()
    if step is None:
        raise RunNotFound(
            f"there is no usable checkpoint at {path}",
            cause=describe_problems(rejected) or "nothing there looks like a checkpoint",
            hint="give a checkpoint, a folder of checkpoints, or the directory of a run",
        )
    return folder.at(step)


def read_weights(storage: Storage) -> tuple[int, dict[str, Tensor]]:
    """Return the number of updates and the weights of one checkpoint, verified."""
    step, state = read_checkpoint(storage)
    if "model" not in state:
        raise DamagedFile(
            f"the checkpoint {storage.where} holds no weights",
            cause=f"it has {', '.join(state) or 'nothing'}",
        )
    return step, state["model"]


def average_weights(checkpoints: Sequence[Storage]) -> dict[str, Tensor]:
    """Return the float64 mean of several checkpoints' weights; non-float tensors come from the last
    one.
    """
    sums: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for checkpoint in checkpoints:
        _, weights = read_weights(checkpoint)
        if last and _forms(weights) != _forms(last):
            raise SettingError(
                f"{checkpoint.where} holds other weights than {checkpoints[0].where}",
                hint="average checkpoints of one model",
            )
        for name, tensor in weights.items():
            if tensor.is_floating_point():
                sums[name] = sums[name] + tensor if name in sums else tensor.double()
        last = weights
    averaged = dict(last)
    for name, total in sums.items():
        averaged[name] = (total / len(checkpoints)).to(last[name].dtype)
    return averaged


def save_average(folder: CheckpointFolder, steps: Sequence[int]) -> Path | str:
    """Average the checkpoints after `steps` and save the result beside them; return where."""
    name = f"average-{steps[0]:012d}-{steps[-1]:012d}"
    where = folder.storage.at(name).where
    if name in folder.storage.folders():
        raise SettingError(f"{where} exists already", hint="remove it to average again")
    document, tensors, _ = split_state(
        {"model": average_weights([folder.at(step) for step in steps])}
    )
    with folder.storage.create(name) as new:
        fill_checkpoint(
            new, encode_document(steps[-1], document, About()), TensorImage().fill(tensors)
        )
    return where


def bare(model: nn.Module) -> nn.Module:
    """Return the model inside DistributedDataParallel, or the model itself."""
    return model.module if isinstance(model, DistributedDataParallel) else model


def _forms(weights: Mapping[str, Any], *, with_types: bool = False) -> dict[str, str]:
    """Return the shape of each tensor as text, and its data type if that is asked for."""
    forms = {}
    for name, tensor in weights.items():
        shape = str(list(tensor.shape))
        forms[name] = f"{shape} {tensor.dtype}" if with_types else shape
    return forms


def check_fit(
    path: Path | str, weights: Mapping[str, Tensor], model: nn.Module, *, with_types: bool = False
) -> None:
    """Raise if the weights do not fit the model, before anything is loaded, so that no model is
    half loaded.

    With `with_types`, different dtypes are refused too, for a state that must continue exactly.
    """
    there = _forms(weights, with_types=with_types)
    here = _forms(bare(model).state_dict(), with_types=with_types)
    problems = [f"the checkpoint lacks {name}" for name in here if name not in there]
    problems += [f"the model lacks {name}" for name in there if name not in here]
    problems += [
        f"{name} is {there[name]} in the checkpoint, {form} in the model"
        for name, form in here.items()
        if there.get(name, form) != form
    ]
    if problems:
        raise SettingError(
            f"the weights in {path} do not fit the model",
            cause="; ".join(problems[:10])
            + (f"; and {len(problems) - 10} more" if len(problems) > 10 else ""),
        )
