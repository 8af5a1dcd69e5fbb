"""The built-in recipe: builds everything a trainer needs from settings. Equal settings build
bitwise equal parts.

    settings = RecipeSettings(data="data/m30k", max_epochs=20)
    pieces = build(settings)
    with Run("runs/a", config=settings.as_saved(), data=fingerprints(pieces.directory)) as run:
        pieces.trainer(run).train(stop=pieces.settings)

Replaying a step or translating with a run rebuilds its parts from the settings in its manifest.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

import torch
from torch import Tensor, nn

from sonde.data.datasets import BlockDataset, TokenDataset, open_pairs
from sonde.data.directory import DataDirectory
from sonde.data.loader import Batch, Collater, LoaderSettings, TokenLoader
from sonde.data.skip_list import read_skip_list
from sonde.data.tokenizer import Tokenizer
from sonde.errors import SettingError
from sonde.models.loss import token_losses
from sonde.models.transformer import Transformer
from sonde.run import Run
from sonde.train.schedule import Schedule
from sonde.train.settings import RecipeSettings
from sonde.train.task import StepOutput
from sonde.train.trainer import Trainer

TRAIN: Final = "train"
VALID: Final = "valid"


@dataclass(eq=False)
class TransformerTask:
    """Trains a model that is called as `model(decoder_input, source)` and returns logits [B, T,
    V].
    """

    model: nn.Module
    """The model to train."""
    pad: int = 1
    """The padding id, which has no loss."""
    label_smoothing: float = 0.0
    """Share of the target's probability that is spread over the vocabulary, in training only."""

    def compute(self, batch: Batch) -> StepOutput:
        """Return the loss of one batch: label-smoothed in training, plain in evaluation."""
        logits = self.model(batch.decoder_input, batch.source)
        smoothing = self.label_smoothing if self.model.training else 0.0
        losses = token_losses(logits, batch.target, pad=self.pad, label_smoothing=smoothing)
        weighted = losses.losses * batch.weights[:, None]
        with torch.no_grad():
            lengths = batch.target_lengths.clamp_min(1)
            plain = losses.negative_log_likelihoods
            sample_losses: Tensor = plain.sum(1) / lengths
        return StepOutput(
            loss_sum=weighted.sum(),
            weight=(batch.weights * batch.target_lengths).sum(),
            sample_losses=sample_losses,
            token_losses=plain,
            token_counts=batch.target_lengths,
            sample_ids=batch.provenance,
            tensors={"sample_loss": sample_losses},
        )


def build(settings: RecipeSettings, *, device: torch.device | str = "cpu") -> "Pieces":
    """Build everything that the settings describe. With several ranks, the data is this rank's
    share.
    """
    directory = DataDirectory(settings.data)
    tokenizer = directory.tokenizer()
    task = build_task(settings, directory, tokenizer, device=device)
    data = _loader(settings, directory, tokenizer, TRAIN)
    valid_data = None
    if VALID in directory.splits:
        valid_data = partial(_from_the_start, _loader(settings, directory, tokenizer, VALID))
    elif (settings.patience or 0) > 0 or settings.target is not None:
        raise SettingError(
            f"{settings.data} has no split {VALID!r}, which patience and target need",
            hint="`sonde prepare --valid FILE` makes one",
        )
    optimizer = torch.optim.AdamW(
        task.model.parameters(),
        lr=0.0,
        betas=settings.betas,
        weight_decay=settings.weight_decay,
        fused=True,
    )
    return Pieces(
        task=task,
        data=data,
        valid_data=valid_data,
        optimizer=optimizer,
        schedule=settings.learning_rate,
        settings=settings,
        directory=directory,
        tokenizer=tokenizer,
    )


def build_task(
    settings: RecipeSettings,
    directory: DataDirectory,
    tokenizer: Tokenizer,
    *,
    device: torch.device | str = "cpu",
) -> TransformerTask:
    """Build the model with its initial weights, and its loss. Torch's global generator is left
    unchanged.
    """
    source = directory.source_tokenizer()
    model_settings = settings.model(
        vocab_size=tokenizer.vocab_size,
        source_vocab_size=None if source is None else source.vocab_size,
        pad=tokenizer.specials.pad,
        has_source=has_source(directory),
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = Transformer(model_settings)
    return TransformerTask(
        model.to(device), pad=tokenizer.specials.pad, label_smoothing=settings.label_smoothing
    )


def has_source(directory: DataDirectory) -> bool:
    """Return whether the data has two languages (translation) or one (language model)."""
    languages = directory.languages(TRAIN)
    if len(languages) > 2:
        raise SettingError(
            f"{directory.path} has {len(languages)} languages: {', '.join(languages)}",
            hint="the recipe takes one (a language model) or two (translation)",
        )
    return len(languages) == 2


def fingerprints(directory: DataDirectory) -> dict[str, str]:
    """Return digests of the token files and the tokenizer, for the manifest."""
    sidecars = [sidecar for of_split in directory.splits.values() for sidecar in of_split]
    files = {f"{sidecar.split}.{sidecar.language}": sidecar.bin.sha256 for sidecar in sidecars}
    return {
        **files,
        "tokenizer": "+".join(dict.fromkeys(sidecar.tokenizer.digest for sidecar in sidecars)),
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class Pieces:
    """What the recipe built from its settings, ready for a `Trainer` or for separate use."""

    task: TransformerTask
    """The model and its loss."""
    data: TokenLoader
    """Training batches of this rank."""
    valid_data: Callable[[], Iterable[Batch]] | None
    """Returns held-out batches of this rank, from the start at each call; None if there are
    none.
    """
    optimizer: torch.optim.Optimizer
    """The optimizer: AdamW over all parameters."""
    schedule: Schedule
    """The learning rate schedule."""
    settings: RecipeSettings
    """The settings that it was built from; they include the stop conditions."""
    directory: DataDirectory
    """The data directory."""
    tokenizer: Tokenizer
    """The tokenizer; the target's if source and target have separate ones."""

    def trainer(self, run: Run | None = None) -> Trainer:
        """Return a trainer made of these parts."""
        trainer = Trainer(
            self.task,
            self.data,
            self.optimizer,
            schedule=self.schedule,
            run=run,
            valid_data=self.valid_data,
            settings=self.settings,
        )
        trainer.plateau = self.settings.plateau
        return trainer


def _loader(
    settings: RecipeSettings, directory: DataDirectory, tokenizer: Tokenizer, split: str
) -> TokenLoader:
    is_training = split == TRAIN
    is_pairs = has_source(directory)
    dataset: TokenDataset
    if is_pairs:
        dataset = open_pairs(directory, split)
    else:
        dataset = BlockDataset(directory.tokens(split), settings.block_size, name=split)
    skip_list = None
    if settings.skip_list and is_training:
        skip_list = read_skip_list(Path(settings.skip_list))
    if skip_list is not None and len(skip_list.samples(split)) >= len(dataset) > 0:
        raise SettingError(
            f"{settings.skip_list} leaves out all {len(dataset):,} samples of {split}"
        )
    loader = TokenLoader(
        dataset,
        Collater.of(tokenizer.specials, has_source=is_pairs),
        LoaderSettings(
            max_tokens=settings.max_tokens,
            max_sentences=settings.max_sentences,
            multiple_of=settings.multiple_of,
            seed=settings.seed,
            shuffle=is_training,
            num_workers=settings.num_workers if is_training else 0,
            pin_memory=torch.cuda.is_available(),
        ),
        skip_list=skip_list,
    )
    if is_training and not len(loader.sampler.batches):
        raise SettingError(
            f"there is nothing to train on in {directory.path}: {len(dataset):,} samples, none of"
            " them in a batch",
            hint="an empty text makes no samples, and one longer than max_tokens is left out",
        )
    return loader


def _from_the_start(loader: TokenLoader) -> TokenLoader:
    loader.sampler.set_epoch(1)
    return loader
