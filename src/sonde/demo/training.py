"""The demo's corpus and training: what `sonde prepare` and `sonde train` do, from Python."""

import contextlib
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from sonde.checkpoint.folder import CheckpointFolder
from sonde.data.binarise import Prepared, prepare
from sonde.data.parts import PrepareSettings
from sonde.data.tokenizer_files import train_subwords
from sonde.demo.scenario import Planted, Scenario
from sonde.demo.stage import DemoFolder
from sonde.records import disk
from sonde.records.atomic import write_file
from sonde.records.manifest import checkpoint_place
from sonde.train.session import train_run
from sonde.train.settings import RecipeSettings


def prepare_data(scenario: Scenario, folder: DemoFolder) -> tuple[Planted, Prepared]:
    """Train a tokenizer on the clean text, garble one document, write the text and prepare it."""
    disk.make_directories(folder.corpus)
    tokenizer = train_subwords("bpe", scenario.train.values(), scenario.vocab_size)
    tokenizer_file = folder.corpus / tokenizer.file_name
    write_file(tokenizer_file.absolute(), tokenizer.payload)
    planted = scenario.plant(tokenizer)
    language = list(scenario.train)[-1]
    text = list(scenario.train[language])
    text[planted.line - 1] = planted.after
    splits: dict[str, dict[str, Path]] = {}
    for split, texts in (("train", {**scenario.train, language: text}), ("valid", scenario.valid)):
        splits[split] = {name: folder.corpus / f"{split}.{name}" for name in texts}
        for name, path in splits[split].items():
            write_file(path.absolute(), "".join(f"{line}\n" for line in texts[name]).encode())
    planted = replace(planted, file=str(splits["train"][language]))
    planted.write(folder.planted)
    return planted, prepare(PrepareSettings(splits=splits, out=folder.data, tokenizer=str(tokenizer_file)))


def train(settings: RecipeSettings, folder: DemoFolder) -> float:
    """Train or resume to the end and return the held-out loss."""
    with out_of_sight(folder.log):
        train_run(settings, folder.run)
    return final_loss(folder.run)


def final_loss(run: Path) -> float:
    """Return the held-out loss at the end of a run."""
    checkpoints = CheckpointFolder(checkpoint_place(run))
    return float(checkpoints.document(checkpoints.steps()[-1])["metrics"]["loss"])


def train_in_large_batches(settings: RecipeSettings, folder: DemoFolder) -> RecipeSettings:
    """Train a smaller model for one epoch on the same text in short pieces, 64 per batch. Returns its settings."""
    changed = replace(
        settings,
        model_dim=64,
        ffn_dim=128,
        block_size=64,
        max_sentences=64,
        max_tokens=None,
        max_updates=None,
        max_epochs=1,
        save_every_updates=None,
        validate_every_epochs=None,
    )
    with out_of_sight(folder.log):
        train_run(changed, folder.large_batches)
    return changed


@contextlib.contextmanager
def out_of_sight(log: Path) -> Iterator[None]:
    """Let training show its progress bar on a terminal; elsewhere, redirect its output to a file."""
    if sys.stderr.isatty():
        yield
        return
    with (
        log.open("a", encoding="utf-8") as file,
        contextlib.redirect_stdout(file),
        contextlib.redirect_stderr(file),
    ):
        yield
