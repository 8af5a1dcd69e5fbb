"""The weights alone, for inference or fine-tuning: no trainer, no optimiser, step 0.

load_weights("runs/x", model)                          # of the newest valid checkpoint
load_weights("runs/x/checkpoints/step-000000001000", model)
average_weights([…paths…])                             # the mean of several checkpoints' weights
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from sonde.checkpoint.folder import CheckpointFolder, encode_document, read_document, write_checkpoint
from sonde.checkpoint.retention import About
from sonde.checkpoint.state import split_state
from sonde.checkpoint.store import read_state
from sonde.checkpoint.tensor_image import TensorImage
from sonde.errors import DamagedFile, RunNotFound, SettingError
from sonde.records.checksums import verify_checksums
from sonde.records.layout import RunLayout
from sonde.records.manifest import checkpoint_place


def load_weights(path: str | os.PathLike[str], model: nn.Module) -> int:
    """Give `model` the weights of a checkpoint; returns the number of updates that they were trained for.

    `path` is a checkpoint, a folder of checkpoints or a run: of the latter two the newest valid one is taken. A model of
    another shape is refused, and stays as it was.
    """
    found = find_checkpoint(Path(path))
    step, weights = read_weights(found)
    target: nn.Module = model.module if isinstance(model, DistributedDataParallel) else model
    check_fit(found, weights, target)
    if any(isinstance(module, FSDPModule) for module in target.modules()):
        set_model_state_dict(target, dict(weights), options=StateDictOptions(full_state_dict=True))
    else:
        target.load_state_dict(weights)
    return step


def find_checkpoint(path: Path) -> Path:
    """The checkpoint that a path means: itself, or the newest valid one in a folder or run."""
    if (path / "state.json").is_file():
        return path
    folder = CheckpointFolder(checkpoint_place(path) if RunLayout(path).manifest.exists() else path)
    step, rejected = folder.newest()
    if step is None:
        told = "; ".join(f"{folder.path(one.step).name}: {', '.join(one.problems)}" for one in rejected)
        raise RunNotFound(
            f"there is no usable checkpoint at {path}",
            cause=told or "nothing there looks like a checkpoint",
            hint="give a checkpoint, a folder of checkpoints, or the directory of a run",
        )
    return folder.path(step)


def read_weights(path: Path) -> tuple[int, dict[str, Tensor]]:
    """The number of updates and the weights of one checkpoint, verified."""
    problems = verify_checksums(path)
    if problems:
        raise DamagedFile(f"the checkpoint {path} cannot be used", cause="; ".join(problems))
    header = read_document(path)
    state = read_state(path, header["state"])
    if "model" not in state:
        raise DamagedFile(f"the checkpoint {path} holds no weights", cause=f"it has {', '.join(state) or 'nothing'}")
    return int(header["step"]), state["model"]


def average_weights(paths: Sequence[Path]) -> dict[str, Tensor]:
    """The mean of the weights of several checkpoints, in float64; what is not floating-point comes from the last."""
    if not paths:
        raise SettingError("there is nothing to average: no checkpoint was given")
    sums: dict[str, Tensor] = {}
    last: dict[str, Tensor] = {}
    for path in paths:
        _, weights = read_weights(path)
        if last and _forms(weights) != _forms(last):
            raise SettingError(f"{path} holds other weights than {paths[0]}", hint="average checkpoints of one model")
        for name, tensor in weights.items():
            if tensor.is_floating_point():
                sums[name] = sums[name] + tensor if name in sums else tensor.double()
        last = weights
    return {
        name: (sums[name] / len(paths)).to(tensor.dtype) if name in sums else tensor for name, tensor in last.items()
    }


def save_average(folder: CheckpointFolder, steps: Sequence[int]) -> Path:
    """Average the checkpoints after `steps`, and save the result beside them; returns its directory."""
    weights = average_weights([folder.path(step) for step in steps])
    path = folder.directory / f"average-{steps[0]:012d}-{steps[-1]:012d}"
    if path.exists():
        raise SettingError(f"{path} exists already", hint="remove it to average again")
    document, tensors, _ = split_state({"model": weights})
    write_checkpoint(path, encode_document(steps[-1], document, About()), TensorImage().fill(tensors))
    return path


def _forms(weights: Mapping[str, Any], *, types: bool = False) -> dict[str, object]:
    return {name: tensor.dtype if types else list(tensor.shape) for name, tensor in weights.items()}


def check_fit(path: Path, weights: Mapping[str, Tensor], model: nn.Module, *, with_types: bool = False) -> None:
    """Refuse weights that a model has no place for, before anything is loaded: half a model is worse than none.

    `with_types` also refuses other types than the model has: for a state that is to go on as it was.
    """
    target = model.module if isinstance(model, DistributedDataParallel) else model
    there, here = dict(weights), target.state_dict()
    problems = [f"the checkpoint lacks {name}" for name in here if name not in there]
    problems += [f"the model lacks {name}" for name in there if name not in here]
    for types in (False, True) if with_types else (False,):
        theirs, ours = _forms(there, types=types), _forms(here, types=types)
        problems += [
            f"{name} is {theirs[name]} in the checkpoint, {ours[name]} in the model"
            for name in ours
            if name in theirs and theirs[name] != ours[name]
        ]
    if problems:
        raise SettingError(
            f"the weights in {path} do not fit the model",
            cause="; ".join(problems[:10]) + (f"; and {len(problems) - 10} more" if len(problems) > 10 else ""),
        )
