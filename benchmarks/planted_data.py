"""Rewriting single samples of a prepared directory in place: the same lengths, other tokens; the
sidecars say nothing of it.

A document is rewritten to its last token, so that every sample keeps its place and its size, and a
training's position stays good.
"""

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import numpy as np

from sonde.data.datasets import BlockDataset, PairDataset
from sonde.data.directory import DataDirectory
from sonde.data.token_file import TokenFile, beside, read_sidecar, stamp_file, write_sidecar
from sonde.train.recipe import build
from sonde.train.settings import RecipeSettings

_SAME: Final = 0.6
"""A target that shares more than this part of its tokens with its source says the same."""
_CUT: Final = 1.6
"""A target is cut plainly when the whole of it is so many times as long."""


class PlantedData:
    """The data of one training, opened for writing."""

    def __init__(self, settings: RecipeSettings, path: Path, *, own_language: str = "") -> None:
        self.own_language = own_language
        self._pieces = build(settings)
        self._settings = settings
        self.dataset = self._pieces.data.dataset
        self.tokenizer = self._pieces.tokenizer
        self._path = path
        self._changed: dict[Path, np.ndarray] = {}
        self._donors: set[int] = set()

    @property
    def directory(self) -> DataDirectory:
        """The directory, read anew."""
        return DataDirectory(self._path)

    def batch(self, step: int) -> list[int]:
        """The samples of an update, in order."""
        sampler = self._pieces.data.sampler
        num_batches = len(sampler.batches)
        epoch, offset = divmod(step - 1, num_batches)
        order = sampler.global_order(epoch + 1)
        return [int(sample) for sample in sampler.batches[int(order[offset])]]

    def rows_of(self, step: int, num: int, generator: random.Random) -> list[int]:
        """Some samples of an update."""
        samples = self.batch(step)
        return generator.sample(samples, min(num, len(samples)))

    def text(self, sample: int) -> str:
        """The text of a sample's target."""
        return self.tokenizer.decode(self.dataset[sample].target)

    def any_token(self, generator: random.Random) -> int:
        """A token that is a piece of text, not too common."""
        return generator.randrange(300, self.tokenizer.vocab_size)

    def put_text(self, sample: int, text: str) -> None:
        """Give a sample another text, cut or repeated to its length."""
        tokens = self.tokenizer.encode_batch([text]).tokens[:-1]
        self.put_tokens(sample, [int(token) for token in tokens])

    def put_tokens(self, sample: int, tokens: Sequence[int]) -> None:
        """Give a sample other tokens, cut or repeated to its length; where a document ended, it
        still does.
        """
        file, start, length = self._place(sample)
        flat = self._writable(file)
        eos = self.tokenizer.specials.eos
        repeated = (list(tokens) * (length // max(len(tokens), 1) + 1))[:length]
        part = flat[start : start + length]
        kept = part == eos if isinstance(self.dataset, PairDataset) else np.zeros(length, bool)
        part[:] = np.where(kept, part, np.array(repeated, flat.dtype))

    def copy_row(self, sample: int, others: Sequence[int]) -> None:
        """Make other samples say what one says, source and target."""
        for file in self._files():
            flat = self._writable(file)
            start, length = self._span(file, sample)
            own = flat[start : start + length].copy()
            for other in others:
                first, size = self._span(file, other)
                eos = self.tokenizer.specials.eos
                repeated = np.resize(own[:-1] if own[-1] == eos and size != length else own, size)
                flat[first : first + size] = repeated
                if isinstance(self.dataset, PairDataset):
                    flat[first + size - 1] = eos

    def turn_targets(self, samples: Sequence[int]) -> list[int]:
        """Give samples the targets of others of the same length; returns those that got
        another's.
        """
        groups: dict[int, list[int]] = {}
        for sample in samples:
            groups.setdefault(len(self.dataset[sample].target), []).append(sample)
        turned = []
        for group in groups.values():
            if len(group) > 1:
                targets = [
                    [int(token) for token in self.dataset[sample].target] for sample in group
                ]
                for sample, tokens in zip(group, [*targets[1:], targets[0]], strict=True):
                    self.put_tokens(sample, tokens)
                turned += group
        return turned

    def cross(self, sample: int, *, both: bool) -> bool:
        """Give a target the tokens of its source, cut or repeated to its length; with `both`, the
        source those of the target too.

        False where the two are the same anyway, as names are.
        """
        found = self.dataset[sample]
        assert found.source is not None
        source, target = (
            [int(token) for token in side[:-1]] for side in (found.source, found.target)
        )
        if len({*source} & {*target}) > _SAME * len({*target}):
            return False
        self.put_tokens(sample, source)
        if both:
            file = self._files()[0]
            start, length = self._span(file, sample)
            self._writable(file)[start : start + length - 1] = np.resize(
                np.array(target), length - 1
            )
        return True

    def truncate(self, sample: int) -> bool:
        """Give a sample a source as long as its own and the beginning of a target that is far
        longer; False when the corpus has none.
        """
        files = self._files()
        sizes = [np.asarray(file.sizes) for file in files]
        longer = np.flatnonzero(
            (sizes[0] == sizes[0][sample]) & (sizes[1] >= _CUT * sizes[1][sample])
        )
        donor = next(
            (int(candidate) for candidate in longer if int(candidate) not in self._donors), None
        )
        if donor is None:
            return False
        self._donors.add(donor)  # another one for each: the same twice would be a duplicate too
        for file in files:
            start, length = self._span(file, sample)
            first, _ = self._span(file, donor)
            self._writable(file)[start : start + length - 1] = np.array(
                file.flat[first : first + length - 1]
            )
        return True

    def write(self) -> None:
        """Bring it to the disk, with sidecars that fit."""
        for prefix, flat in self._changed.items():
            path = beside(prefix, ".bin")
            path.write_bytes(flat.tobytes())
            sidecar = read_sidecar(prefix)
            assert sidecar is not None
            write_sidecar(prefix, replace(sidecar, bin=stamp_file(path)))

    def _files(self) -> list[TokenFile]:
        if isinstance(self.dataset, PairDataset):
            return [self.dataset.source, self.dataset.target]
        assert isinstance(self.dataset, BlockDataset)
        return [self.dataset.target]

    def _place(self, sample: int) -> tuple[TokenFile, int, int]:
        file = self._files()[-1]
        return file, *self._span(file, sample)

    def _span(self, file: TokenFile, sample: int) -> tuple[int, int]:
        if isinstance(self.dataset, BlockDataset):
            start = sample * self.dataset.block_size
            return start, min(self.dataset.block_size, file.num_tokens - start)
        starts, sizes = file.spans(np.array([sample]))
        return int(starts[0]), int(sizes[0])

    def _writable(self, file: TokenFile) -> np.ndarray:
        return self._changed.setdefault(file.prefix, np.array(file.flat))
