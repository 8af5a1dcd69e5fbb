"""One start of a training run with the built-in recipe: join the ranks, build, train, report why it
ended.

`sonde train` calls this after reading its flags; `train_run(settings, "runs/a")` does the same from
Python.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import torch
from rich.console import Console

from sonde import ranks
from sonde.callbacks.base import Callback
from sonde.callbacks.progress import ProgressCallback
from sonde.checkpoint.folder import CheckpointFolder
from sonde.data.directory import DataDirectory
from sonde.errors import SettingError
from sonde.log.backend import Backend, Verbosity
from sonde.log.backends.json_stream import JSONStreamBackend
from sonde.log.logger import Logger
from sonde.records.host import describe_versions
from sonde.records.layout import LOG, RunLayout
from sonde.records.manifest import FINISHED, STOPPED, checkpoint_place, read_manifest
from sonde.run import Run
from sonde.train.recipe import Pieces, build, fingerprints
from sonde.train.settings import RecipeSettings


def train_run(
    settings: RecipeSettings,
    directory: str | os.PathLike[str],
    *,
    callbacks: Sequence[Callback] = (),
    start_over: bool = False,
    checkpoints: str | None = None,
) -> str:
    """Train or resume the run in a directory and return why it stopped. Under torchrun, every rank
    calls it. `checkpoints` is a folder or URL for them, if they are not in the run.

    Raises if the run's checkpoints are missing or damaged, unless `start_over` is true.
    """
    with ranks.process_group(timeout_seconds=settings.timeout_seconds) as device:
        pieces = build(settings, device=device)
        data = fingerprints(pieces.directory)
        ranks.check_agreement(
            {"settings": asdict(settings), "data": data, "versions": describe_versions()}
        )
        _check_same_data(Path(directory), data)
        if settings.verify_data:
            ranks.found_by_rank_0(pieces.directory.verify)  # its errors are raised on all ranks
        run = Run(
            directory,
            config=settings.as_saved(),
            seeds={"all": settings.seed},
            data=data,
            rank=ranks.rank(),
            world_size=ranks.world_size(),
            checkpoints=checkpoints,
        )
        with run, ranks.missing_ranks_named():
            trainer = pieces.trainer(run)
            backends: list[Backend] = [JSONStreamBackend(Verbosity.VERBOSE, run.records(LOG))]
            shown: list[Callback] = []
            if settings.output == "tcap":
                from sonde.log.backends.stdout import StdOutBackend

                backends.append(StdOutBackend())
            else:
                shown.append(ProgressCallback(_num_updates(pieces), interval=settings.log_interval))
            if settings.evaluate == "bleu":
                from sonde.train.translation import quality_callback  # only BLEU needs search

                shown.insert(0, quality_callback(settings, pieces))
            with Logger(backends, rank=run.rank) as trainer.logger:
                _say(trainer.logger, settings, _described(settings, pieces, device))
                reason = trainer.train(
                    stop=pieces.settings, callbacks=[*callbacks, *shown], start_over=start_over
                )
                _say(trainer.logger, settings, f"stopped: {reason}")
            run.close(status=STOPPED if trainer.gave_up else FINISHED, reason=reason)
    return reason


def _say(logger: Logger, settings: RecipeSettings, text: str) -> None:
    """Write `text` to the log and, in short output, to the screen."""
    logger.info(text)
    if settings.output == "short" and ranks.rank() == 0:
        Console(stderr=True, highlight=False).print(text, markup=False, soft_wrap=True)


def dry_run_facts(
    settings: RecipeSettings, directory: str | os.PathLike[str], checkpoints: str | None = None
) -> dict[str, str]:
    """Describe what a start would do beyond its settings. Nothing is written."""
    pieces = build(settings)
    data = fingerprints(pieces.directory)
    _check_same_data(Path(directory), data)
    folder = CheckpointFolder(checkpoint_place(directory, checkpoints))
    step, rejected = folder.newest()
    num_updates = -(-len(pieces.data) // settings.update_freq)
    facts = {
        "run": (
            f"{directory}: " + (f"goes on after step {step}" if step is not None else "starts anew")
        ),
        "data": _data_text(pieces.directory),
        "model": _model_text(pieces),
        "epoch": f"{len(pieces.data):,} micro-batches, {num_updates:,} steps on one rank",
    }
    if rejected:
        facts["damaged"] = (
            f"{len(rejected)} newer checkpoints do not verify and would be passed over"
        )
    return facts


def _check_same_data(directory: Path, data: dict[str, str]) -> None:
    """Raise if the data changed since the run began, because its position would refer to other
    samples.
    """
    if not RunLayout(directory).manifest.exists():
        return
    recorded = read_manifest(directory).data
    changed = [name for name in recorded if name in data and recorded[name] != data[name]]
    if changed:
        raise SettingError(
            f"{directory} was trained on other data: {', '.join(changed)} changed since",
            hint="use the data it began with, or start a new run directory",
        )


def _described(settings: RecipeSettings, pieces: Pieces, device: torch.device) -> str:
    world = ranks.world_size()
    processes = "1 rank" if world == 1 else f"{world} ranks"
    return (
        f"{_model_text(pieces)} on {_data_text(pieces.directory)}; {len(pieces.data):,} steps of"
        f" {settings.update_freq} × {world} micro-batches to go in this epoch; {device},"
        f" {processes}"
    )


def _data_text(directory: DataDirectory) -> str:
    sidecars = directory.splits["train"]
    languages = "-".join(sidecar.language for sidecar in sidecars)
    return (
        f"{directory.path} ({languages}, {sidecars[0].num_samples:,} samples,"
        f" {sidecars[-1].num_tokens:,} target tokens)"
    )


def _model_text(pieces: Pieces) -> str:
    num_parameters = sum(parameter.numel() for parameter in pieces.task.model.parameters())
    kind = "encoder-decoder" if pieces.data.collater.has_source else "language model"
    return (
        f"{kind} of {num_parameters / 1e6:.1f} M parameters, vocabulary"
        f" {pieces.tokenizer.vocab_size:,}"
    )


def _num_updates(pieces: Pieces) -> int | None:
    """Return the total number of updates for the progress bar, if updates or epochs end the run."""
    settings = pieces.settings
    ends = []
    if settings.max_updates:
        ends.append(settings.max_updates)
    if settings.max_epochs:
        num_micro_batches = math.ceil(len(pieces.data.sampler.batches) / ranks.world_size())
        ends.append(settings.max_epochs * math.ceil(num_micro_batches / settings.update_freq))
    return min(ends, default=None)
