"""The batches of a run of sonde's own trainer, and the corpus that they are made from.

With sonde's loader, every row has a name, tokens and a text, and rows can be left out or combined into new batches.
User-defined data is returned by position, unchanged.
"""

import contextlib
import random
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

import numpy as np
from typing_extensions import override

from sonde.checkpoint.folder import CheckpointFolder
from sonde.checkpoint.state import join_state
from sonde.data.datasets import BlockDataset, PairDataset, Sample
from sonde.data.loader import Batch, Collater, TokenLoader, left_out_of
from sonde.data.tokenizer import Tokenizer
from sonde.errors import DamagedFile, SettingError
from sonde.forensics.history import LaterSkip
from sonde.forensics.losses import SampleLoss
from sonde.forensics.recipe_of_run import TrainingPieces
from sonde.forensics.seams import Batches, Corpus, Name, Row
from sonde.forensics.surroundings import damaged_data
from sonde.forensics.verdict import Suspect
from sonde.spikes.decoding import SampleDecoder, describe_dataset
from sonde.spikes.spike_log import RankedSample
from sonde.texts.duplicates import occurrences
from sonde.train.recipe import TRAIN, Pieces, fingerprints
from sonde.train.task import TrainingData, grouped

_MAX_CORPUS = 50_000_000
"""The maximum number of tokens that are searched for a text."""
_MAX_TEXT = 400


class LoaderBatches(Batches):
    """Batches by their position in the training data, for the next update or any other.

    An update takes `update_freq` micro-batches, fewer at the end of an epoch, as in the training loop. To find those of
    another update, the data goes to the nearest checkpoint's position and on from there; a `TokenLoader` skips batches
    without reading them. Afterwards the position is restored.
    """

    def __init__(
        self,
        pieces: TrainingPieces,
        folder: CheckpointFolder,
        *,
        update_freq: int,
        skips: Sequence[LaterSkip] = (),
    ) -> None:
        """The data is at its beginning and skips the samples that its last start skipped; `skips` says from which step on."""
        self.data: TrainingData = pieces.data
        """The data that the training reads."""
        self._pieces = pieces
        self._folder = folder
        self._update_freq = update_freq
        self._skips = skips
        self._loader = self.data if isinstance(self.data, TokenLoader) else None
        self._left_out = np.zeros(0, np.int64) if self._loader is None else self._loader.sampler.left_out
        self._known: dict[int, Mapping[str, Any]] = {0: dict(self.data.state_dict())}
        self._groups: Iterator[list[Any]] | None = None

    @cached_property
    @override
    def corpus(self) -> Corpus | None:
        """The dataset, if it is one of sonde's own."""
        pieces, loader, tokenizer = self._pieces, self._loader, getattr(self._pieces, "tokenizer", None)
        if tokenizer is None or loader is None or not isinstance(loader.dataset, (BlockDataset, PairDataset)):
            return None
        source = pieces.directory.source_tokenizer() if isinstance(pieces, Pieces) else None
        return DatasetCorpus(loader, loader.dataset, (source or tokenizer, tokenizer))

    @override
    def take(self, step: int) -> list[Any]:
        """Return the batches of the next update and advance the position."""
        self._leave_out(step)
        for _ in range(2):  # at the end of an epoch, continue with the next
            if self._groups is None:
                self._groups = grouped(self.data, self._update_freq)
            for group in self._groups:
                return group
            self._groups = None
        raise SettingError("the training data gives no batches")

    @override
    def at(self, step: int) -> list[Any]:
        """Return the batches of any update without changing the position."""
        before = dict(self.data.state_dict())
        self._groups = None
        try:
            done = self._go_near(step - 1)
            while done < step - 1:
                self._pass_over()
                done += 1
            self._known[done] = dict(self.data.state_dict())
            self._leave_out(step)
            for group in grouped(self.data, self._update_freq):
                return group
        finally:
            self.data.load_state_dict(before)
        raise SettingError("the training data gives no batches")

    @override
    def moved(self, num_updates: int) -> None:
        """Read the position from the data, which was restored with the state."""
        self._groups = None
        self._known[num_updates] = dict(self.data.state_dict())

    def _leave_out(self, step: int) -> None:
        """Skip the samples that the run skipped at this step."""
        loader = self._loader
        if loader is None or not self._skips:
            return
        later = [left_out_of(loader.dataset, one.samples) for one in self._skips if not one.is_in_force(step)]
        loader.sampler.left_out = np.setdiff1d(self._left_out, np.concatenate([np.zeros(0, np.int64), *later]))

    def _go_near(self, num_updates: int) -> int:
        """Go to the nearest known earlier position, and return its number of updates."""
        known = max(done for done in self._known if done <= num_updates)
        for step in reversed([one for one in self._folder.steps() if known < one <= num_updates]):
            with contextlib.suppress(DamagedFile, KeyError, TypeError):
                self._known[step] = join_state(self._folder.document(step)["state"]["data"], {})
                known = step
                break
        self.data.load_state_dict(self._known[known])
        return known

    def _pass_over(self) -> None:
        """Advance by one update."""
        loader = self._loader
        if loader is None:
            next(grouped(self.data, self._update_freq), None)
            return
        epoch = loader.position.epoch
        for _ in range(self._update_freq):
            loader.sampler.advance()
            if loader.position.epoch != epoch:
                return

    @override
    def rows(self, batch: Any) -> list[Row]:
        """Return the rows of a batch of sonde's loader."""
        if not isinstance(batch, Batch) or self._loader is None:
            return []
        return [_as_row(_sample(batch, row, self._loader.collater)) for row in range(len(batch))]

    @override
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

    @override
    def fingerprints(self) -> Mapping[str, str]:
        """Return the fingerprints of the prepared directory."""
        return fingerprints(self._pieces.directory) if isinstance(self._pieces, Pieces) else {}

    @override
    def problems(self) -> tuple[str, ...]:
        """Return what is wrong with the files of the training split."""
        return damaged_data(self._pieces.directory, TRAIN) if isinstance(self._pieces, Pieces) else ()


class DatasetCorpus(Corpus):
    """A dataset of document blocks or pairs, with the tokenizers for source and target."""

    def __init__(
        self, data: TokenLoader, dataset: BlockDataset | PairDataset, tokenizers: tuple[Tokenizer, Tokenizer]
    ) -> None:
        self._data = data
        self._dataset = dataset
        self._source_tokenizer, self._tokenizer = tokenizers

    @override
    def decode(self, tokens: Sequence[int]) -> str:
        """Decode with the tokenizer of the data."""
        return self._tokenizer.decode(tokens)

    @override
    def decode_source(self, tokens: Sequence[int]) -> str:
        """Decode with the tokenizer of the source."""
        return self._source_tokenizer.decode(tokens)

    @override
    def some(self, num: int) -> list[Row]:
        """Return a fixed random sample."""
        numbers = random.Random(0).sample(range(len(self._dataset)), min(num, len(self._dataset)))
        return [_as_row(self._dataset[number]) for number in numbers]

    @override
    def parts(self, row: Row) -> list[tuple[int, int]]:
        """Return the documents of a block, which may contain several."""
        if not isinstance(self._dataset, BlockDataset) or row.name[1] < 0:
            return super().parts(row)
        starts = sorted({0, *self._dataset.boundaries(row.name[1])})
        return list(zip(starts, [*starts[1:], len(row.target)], strict=True))

    @override
    def suspect(self, row: Row, sample: SampleLoss, rank: int) -> Suspect:
        """Return a suspect with its document, and the file and line that it came from."""
        dataset, number = row.name
        ranked = RankedSample(
            rank=rank,
            dataset=dataset,
            sample=number,
            loss=sample.loss,
            num_tokens=sample.num_tokens,
            share=0.0,
            token_losses=self._by_document(row, sample),
        )
        description = describe_dataset(self._dataset)
        found = SampleDecoder({} if description is None else {dataset: description}).decode([ranked])[0]
        text = found.text if not found.source_text else f"{found.source_text} → {found.text}"
        return Suspect(
            dataset=dataset,
            sample=number,
            document=found.document,
            rank=rank,
            loss=sample.loss,
            file=found.file,
            line=found.line,
            text=text[:_MAX_TEXT],
        )

    @override
    def batch(self, rows: Sequence[Row]) -> Any:
        """Collate rows as in training."""
        samples = [Sample(_array(one.target), _array(one.source), *one.name) for one in rows]
        return self._data.collater(samples)

    @override
    def read(self, names: Sequence[Name]) -> list[Row] | None:
        """Look up samples by their numbers."""
        if any(name[0] != self._dataset.name or not 0 <= name[1] < len(self._dataset) for name in names):
            return None
        return [_as_row(self._dataset[number]) for _, number in names]

    @override
    def occurrences(self, tokens: Sequence[int]) -> int:
        """Count the occurrences among all target tokens."""
        file = self._dataset.target if isinstance(self._dataset, PairDataset) else self._dataset.tokens
        return occurrences(tokens, file.flat[:_MAX_CORPUS])

    @override
    def mistakes(self, step: int, place: int) -> Iterator[tuple[str, Any]]:
        """Yield batches in corpus order and in the order of other epochs."""
        position, sampler = self._data.position, self._data.sampler
        offset = position.offset + place
        if offset < len(sampler.batches):
            yield "the batch at its place in the order of the corpus", self._numbered(offset)
            for epoch in range(1, position.epoch + 2):
                if epoch != position.epoch:
                    order = sampler.global_order(epoch)
                    yield f"its batch in the order of epoch {epoch}", self._numbered(int(order[offset]))

    def _numbered(self, number: int) -> Any:
        samples = [int(sample) for sample in self._data.sampler.batches[number]]
        return self._data.collater(self._data.dataset.__getitems__(samples))

    def _by_document(self, row: Row, sample: SampleLoss) -> tuple[float, ...] | None:
        """Return token losses adjusted so that the highest lies in the document with the highest mean loss."""
        losses = sample.token_losses
        if losses is None or not isinstance(self._dataset, BlockDataset):
            return losses
        means: list[float] = []
        for start, end in self.parts(row):
            part = losses[start:end]
            # A few tokens may have a high loss by chance, so shrink the means of short documents.
            means += [sum(part) / (len(part) + 4)] * len(part)
        return tuple(means)


def _sample(batch: Batch, row: int, collater: Collater) -> Sample:
    """Return a row of a batch as the sample that it was made from."""
    target = _tokens(batch.target[row].numpy(), int(batch.target_lengths[row]), collater.pad_target)
    source = None
    if batch.source is not None and batch.source_lengths is not None:
        source = _tokens(batch.source[row].numpy(), int(batch.source_lengths[row]), collater.pad_source)
    return Sample(target, source, *batch.provenance[row], float(batch.weights[row]))


def _as_row(sample: Sample) -> Row:
    source = None if sample.source is None else sample.source.tolist()
    return Row((sample.dataset, sample.sample_id), sample.target.tolist(), source)


def _array(tokens: Sequence[int] | None) -> Any:
    return None if tokens is None else np.asarray(tokens, np.int64)


def _tokens(row: Any, length: int, padded: str) -> Any:
    return row[:length] if padded == "right" else row[len(row) - length :]
