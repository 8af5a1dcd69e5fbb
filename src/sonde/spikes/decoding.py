"""From a sample's name to its text: dataset, document, file and line of the source, the text, and the loss of every token.

What cannot be found is left empty and said in `problem`: a spike without its text is still worth reading.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias, final

from sonde.data.blocks import BlockDataset
from sonde.data.pairs import PairDataset
from sonde.data.token_file import TokenFile
from sonde.errors import SettingError, SondeError
from sonde.spikes.data_files import directory_of, open_dataset, open_in_directory
from sonde.spikes.sample_text import Decoder, sample_text, token_texts
from sonde.spikes.spike_log import RankedSample

_Opened: TypeAlias = "tuple[PairDataset | BlockDataset, Decoder, Decoder]"
"""A dataset, and the tokenizers of what is predicted and of what it is predicted from."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedSample:
    """A ranked sample and what it says."""

    ranked: RankedSample
    """Which sample, and how bad."""
    text: str = ""
    """What was to be predicted."""
    source_text: str = ""
    """What it was to be predicted from, of a pair."""
    document: int | None = None
    """The document: the sample itself, or for a block the one that its worst token lies in."""
    file: str = ""
    """The text file it was made from."""
    line: int | None = None
    """The line there, from 1."""
    token_texts: tuple[str, ...] = ()
    """The text of every token that has a loss."""
    problem: str = ""
    """Why something is missing."""


@final
class SampleDecoder:
    """Finds the text of samples. Opens every dataset once, when it is first needed."""

    def __init__(
        self,
        descriptions: Mapping[str, Mapping[str, Any]],
        *,
        directory: Path | None = None,
        tokenizer: Decoder | None = None,
        known: Mapping[tuple[str, int], str] | None = None,
    ) -> None:
        """`directory` is where the data lies now, if it was moved; `tokenizer` takes the place of the data's own.

        `known` has texts that are shown where the data cannot be opened, by dataset and number.
        """
        self._descriptions = descriptions
        self._known = known or {}
        self._directory = directory
        self._tokenizer = tokenizer
        self._opened: dict[str, _Opened | str] = {}

    def decode(self, samples: Iterable[RankedSample], *, with_tokens: bool = False) -> list[DecodedSample]:
        """The text of each sample; `with_tokens` also that of every token, for those whose tokens' losses are known."""
        return [self._decode(sample, with_tokens) for sample in samples]

    def _decode(self, ranked: RankedSample, with_tokens: bool) -> DecodedSample:
        opened = self._open(ranked.dataset)
        if isinstance(opened, str):
            text = self._known.get((ranked.dataset, ranked.sample), "") if isinstance(ranked.sample, int) else ""
            return DecodedSample(ranked=ranked, text=text, problem="" if text else opened)
        dataset, tokenizer, source_tokenizer = opened
        number = ranked.sample
        if not isinstance(number, int) or not 0 <= number < len(dataset):
            return DecodedSample(
                ranked=ranked, problem=f"{ranked.dataset} has no sample {number!r}: it has {len(dataset)}"
            )
        sample = dataset[number]
        tokens = [int(token) for token in sample.target]
        document = number if isinstance(dataset, PairDataset) else _worst_document(dataset, number, ranked)
        file, line, problem = _origin(dataset, document)
        known = ranked.token_losses if with_tokens else None
        return DecodedSample(
            ranked=ranked,
            text=sample_text(tokens, tokenizer),
            source_text=""
            if sample.source is None
            else sample_text([int(token) for token in sample.source], source_tokenizer),
            document=document,
            file=file,
            line=line,
            token_texts=tuple(token_texts(tokens[: len(known)], tokenizer)) if known else (),
            problem=problem,
        )

    def _open(self, name: str) -> "_Opened | str":
        if name not in self._opened:
            try:
                self._opened[name] = self._open_now(name)
            except (SondeError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
                # The last two: a damaged record may describe its data by anything.
                self._opened[name] = getattr(error, "message", None) or str(error)
        return self._opened[name]

    def _open_now(self, name: str) -> "_Opened":
        description = self._descriptions.get(name)
        if self._directory is not None:
            dataset = open_in_directory(name, self._directory, description)
        elif description is None:
            raise SettingError(
                f"the run does not say where the dataset {name!r} is" if name else "the samples name no dataset"
            )
        else:
            dataset = open_dataset(name, description)
        if self._tokenizer is not None:
            return dataset, self._tokenizer, self._tokenizer
        directory = directory_of(dataset)
        tokenizer = directory.tokenizer()
        return dataset, tokenizer, directory.source_tokenizer() or tokenizer


def _worst_document(dataset: BlockDataset, block: int, ranked: RankedSample) -> int:
    losses = ranked.token_losses or (0.0,)
    position = max(range(len(losses)), key=lambda place: (losses[place] != losses[place], losses[place]))
    try:
        return dataset.locate(block, position).document
    except IndexError:
        return dataset.locate(block, 0).document


def _origin(dataset: PairDataset | BlockDataset, document: int) -> tuple[str, int | None, str]:
    """File and line of a document, or why they are not known."""
    tokens: TokenFile = dataset.target if isinstance(dataset, PairDataset) else dataset.tokens
    try:
        has_documents = isinstance(dataset, BlockDataset) and len(tokens.documents)
        file, line = tokens.origin(int(tokens.documents[document]) if has_documents else document)
    except (SondeError, OSError, IndexError) as error:
        return "", None, getattr(error, "message", None) or str(error)
    return file, line, ""
