"""The batches of a run of sonde's own trainer, and the corpus that they are made from.

With sonde's loader, every row has a name, tokens and a text, and rows can be left out or combined
into new batches. User-defined data is returned by position, unchanged.
"""

import contextlib
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch

from sonde.checkpoint.state import join_state
from sonde.checkpoint.store import CheckpointStore
from sonde.data.datasets import BlockDataset, PairDataset, Sample
from sonde.data.directory import DataDirectory
from sonde.data.loader import Batch, Collater, TokenLoader, left_out_of
from sonde.data.tokenizer import Tokenizer
from sonde.errors import DamagedFile, SettingError
from sonde.forensics.history import LaterSkip
from sonde.forensics.seams import BatchSource, Name, Row, RunTexts, SampleLoss
from sonde.forensics.verdict import Suspect
from sonde.spikes.decoding import find_origin
from sonde.train.rates import AnySchedule
from sonde.train.recipe import TRAIN, fingerprints
from sonde.train.settings import TrainerSettings
from sonde.train.task import Task, TrainingData, grouped


class TrainingPieces(NamedTuple):
    """The components of a training that a step needs, as a recipe returns them."""

    task: Task
    """The model with its initial weights, and its loss."""
    data: TrainingData
    """This rank's batches, from the beginning."""
    optimizer: torch.optim.Optimizer
    """The optimizer of the model's parameters."""
    schedule: AnySchedule
    """The learning rate schedule."""
    settings: TrainerSettings
    """The settings of the trainer."""
    tokenizer: Tokenizer | None = None
    """The tokenizer of the data, if it has one."""
    directory: Any = None
    """The data directory of sonde's own recipe."""


class LoaderBatches(BatchSource):
    """The batches of a training, found by their position in its data.

    An update takes `update_freq` micro-batches, fewer at the end of an epoch, as in the training
    loop. One update after another is read like in training. For any other, the data goes to the
    nearest known position and on from there.
    """

    def __init__(
        self, pieces: TrainingPieces, store: CheckpointStore, skips: Sequence[LaterSkip]
    ) -> None:
        """The data is at its beginning and skips the samples that its last start skipped; `skips`
        says from which step on.
        """
        self.data: TrainingData = pieces.data
        """The data that the training reads."""
        self._tokenizer = pieces.tokenizer
        self._directory = pieces.directory if isinstance(pieces.directory, DataDirectory) else None
        self._store = store
        self._update_freq = pieces.settings.update_freq
        self._skips = skips
        self._loader = self.data if isinstance(self.data, TokenLoader) else None
        self._left_out = (
            np.zeros(0, np.int64) if self._loader is None else self._loader.sampler.left_out
        )
        self._saved = store.folder.steps()
        self._known: dict[int, Mapping[str, Any]] = {0: dict(self.data.state_dict())}
        """Positions, by the number of updates before them."""
        self._done = 0
        """The number of updates before the position of the data."""
        self._groups: Iterator[list[Any]] | None = None

    @cached_property
    def corpus(self) -> RunTexts | None:
        """The dataset, if it is one of sonde's own."""
        loader = self._loader
        tokenizer = self._tokenizer
        if (
            tokenizer is None
            or loader is None
            or not isinstance(loader.dataset, (BlockDataset, PairDataset))
        ):
            return None
        source = None if self._directory is None else self._directory.source_tokenizer()
        return DatasetTexts(self, loader, loader.dataset, (source or tokenizer, tokenizer))

    def at(self, step: int) -> list[Any]:
        """Return the batches of a step."""
        self.go_to(step)
        return self._next()

    def go_to(self, step: int) -> None:
        """Put the data where it was before a step."""
        if self._done == step - 1 and self._done not in self._saved:
            # a checkpoint knows its position better: the run may have gone on from it with other
            # batching
            return
        known = max(done for done in self._known if done < step)
        closer = [saved for saved in self._saved if known < saved < step]
        for saved in reversed(closer):
            position = self._position_in(saved)
            if position is not None:
                self._known[saved] = position
                known = saved
                break
        self.data.load_state_dict(self._known[known])
        self._done = known
        self._groups = None
        while self._done < step - 1:
            self._next()

    def _position_in(self, step: int) -> Mapping[str, Any] | None:
        """Return the position in a checkpoint; None if it is damaged."""
        found: Mapping[str, Any] | None = None
        with contextlib.suppress(DamagedFile, KeyError, TypeError):
            position = self._store.folder.document(step)["state"]["data"]
            try:
                found = join_state(position, {})
            except DamagedFile:  # a position of the user's own data may have tensors
                found = self._store.load(step)["data"]
        return found

    def _next(self) -> list[Any]:
        """Return the batches at the position of the data, and advance it."""
        if self._done not in self._saved:
            self._known[self._done] = dict(self.data.state_dict())
        self._leave_out(self._done + 1)
        for _ in range(2):  # at the end of an epoch, continue with the next
            self._groups = self._groups or grouped(
                self.data, self._update_freq, torch.device("cpu")
            )
            for group in self._groups:
                self._done += 1
                return group
            self._groups = None
        raise SettingError("the training data gives no batches")

    def _leave_out(self, step: int) -> None:
        """Skip the samples that the run skipped at this step."""
        loader = self._loader
        if loader is None or not self._skips:
            return
        later = [
            left_out_of(loader.dataset, skip.samples)
            for skip in self._skips
            if not skip.is_in_force(step)
        ]
        loader.sampler.left_out = np.setdiff1d(
            self._left_out, np.concatenate([np.zeros(0, np.int64), *later])
        )

    def rows(self, batch: Any) -> list[Row]:
        """Return the rows of a batch of sonde's loader."""
        if not isinstance(batch, Batch) or self._loader is None:
            return []
        return [_as_row(_sample(batch, row, self._loader.collater)) for row in range(len(batch))]

    def without(self, batch: Any, names: Collection[Name]) -> Any:
        """Leave out samples as a skip list would."""
        if not isinstance(batch, Batch) or self._loader is None:
            return super().without(batch, names)
        wanted = set(names)
        kept = [row for row, name in enumerate(batch.provenance) if name not in wanted]
        if len(kept) == len(batch):
            return batch
        collater = self._loader.collater
        return collater([_sample(batch, row, collater) for row in kept])

    def fingerprints(self) -> Mapping[str, str]:
        """Return the fingerprints of the prepared directory."""
        return {} if self._directory is None else fingerprints(self._directory)

    def problems(self) -> tuple[str, ...]:
        """Return what is wrong with the files of the training split. Reads every byte (0.7 s per
        GB).
        """
        problems = list[str]()
        directory = self._directory
        if directory is not None:
            for language in directory.languages(TRAIN):
                try:
                    directory.tokens(TRAIN, language).verify()
                except DamagedFile as error:
                    problems.append(error.message)
        return tuple(problems)


class DatasetTexts(RunTexts):
    """A dataset of document blocks or pairs, with the tokenizers for source and target."""

    def __init__(
        self,
        batches: LoaderBatches,
        data: TokenLoader,
        dataset: BlockDataset | PairDataset,
        tokenizers: tuple[Tokenizer, Tokenizer],
    ) -> None:
        self._batches = batches
        self._data = data
        self._dataset = dataset
        self._source_tokenizer, self._tokenizer = tokenizers

    def decode(self, tokens: Sequence[int]) -> str:
        """Decode with the tokenizer of the data."""
        return self._tokenizer.decode(tokens)

    def decode_source(self, tokens: Sequence[int]) -> str:
        """Decode with the tokenizer of the source."""
        return self._source_tokenizer.decode(tokens)

    def some(self, num: int) -> list[Row]:
        """Return a fixed random sample."""
        numbers = random.Random(0).sample(range(len(self._dataset)), min(num, len(self._dataset)))
        return [_as_row(self._dataset[number]) for number in numbers]

    def parts(self, row: Row) -> list[tuple[int, int]]:
        """Return the documents of a block, which may contain several."""
        if not isinstance(self._dataset, BlockDataset) or row.name[1] < 0:
            return super().parts(row)
        starts = sorted({0, *self._dataset.boundaries(row.name[1])})
        return list(zip(starts, [*starts[1:], len(row.target)], strict=True))

    def suspect(self, row: Row, sample: SampleLoss, rank: int) -> Suspect:
        """Return a suspect with its document, and the file and line that it came from."""
        document = self._dataset.document(row.name[1], self.worst_part(row, sample)[0])
        file, line, _ = find_origin(self._dataset, document)
        return replace(super().suspect(row, sample, rank), document=document, file=file, line=line)

    def batch(self, rows: Sequence[Row]) -> Any:
        """Collate rows as in training."""
        samples = [Sample(_array(row.target), _array(row.source), *row.name) for row in rows]
        return self._data.collater(samples)

    def read(self, names: Sequence[Name]) -> list[Row] | None:
        """Look up samples by their numbers."""
        if any(
            name[0] != self._dataset.name or not 0 <= name[1] < len(self._dataset) for name in names
        ):
            return None
        return [_as_row(self._dataset[number]) for _, number in names]

    def likely_order_bugs(self, step: int, place: int) -> Iterator[tuple[str, Any]]:
        """Yield batches in corpus order and in the order of other epochs."""
        self._batches.go_to(step)
        sampler = self._data.sampler
        position = sampler.position
        offset = position.offset + place
        if offset < len(sampler.batches):
            yield "the batch at its place in the order of the corpus", self._numbered(offset)
            for epoch in range(1, position.epoch + 2):
                if epoch != position.epoch:
                    order = sampler.global_order(epoch)
                    yield (
                        f"its batch in the order of epoch {epoch}",
                        self._numbered(int(order[offset])),
                    )

    def _numbered(self, number: int) -> Any:
        samples = [int(sample) for sample in self._data.sampler.batches[number]]
        return self._data.collater(self._data.dataset.__getitems__(samples))


def _sample(batch: Batch, row: int, collater: Collater) -> Sample:
    """Return a row of a batch as the sample that it was made from."""
    target = _tokens(batch.target[row].numpy(), int(batch.target_lengths[row]), collater.pad_target)
    source = None
    if batch.source is not None and batch.source_lengths is not None:
        source = _tokens(
            batch.source[row].numpy(), int(batch.source_lengths[row]), collater.pad_source
        )
    return Sample(target, source, *batch.provenance[row], float(batch.weights[row]))


def _as_row(sample: Sample) -> Row:
    source = None if sample.source is None else sample.source.tolist()
    return Row((sample.dataset, sample.sample_id), sample.target.tolist(), source)


def _array(tokens: Sequence[int] | None) -> Any:
    return None if tokens is None else np.asarray(tokens, np.int64)


def _tokens(row: Any, length: int, padded: str) -> Any:
    return row[:length] if padded == "right" else row[len(row) - length :]
