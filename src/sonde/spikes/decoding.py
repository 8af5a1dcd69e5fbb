"""Decode a sample to its text: dataset, document, source file and line, text, and the loss of every
token.

What cannot be found is left empty and explained in `problem`, because a spike is useful even
without its text. A tokenizer is anything with `decode`: tokenizers, transformers, sentencepiece,
tiktoken, or sonde's own.

A run describes the files of its datasets as plain data, so that another process can open them:

    {"kind": "pairs",  "source": {"prefix": …, "sha256": …}, "target": {…}}
    {"kind": "blocks", "tokens": {…}, "block_size": 512, "mode": "pack"}

The digest is that of the tokens' sidecar. If it no longer matches, the data is not what was trained
on, and it is not opened.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from sonde.data.datasets import BlockDataset, PairDataset, open_pairs
from sonde.data.directory import DataDirectory
from sonde.data.skip_list import CONTENT
from sonde.data.token_file import TokenFile, beside
from sonde.errors import DamagedFile, SettingError, SondeError
from sonde.spikes.spike_log import RankedSample


class Decoder(Protocol):
    """Anything that converts a list of ids to text."""

    def decode(self, ids: Any, /) -> Any:
        """Return the text of one list of ids."""
        ...


_Dataset: TypeAlias = PairDataset | BlockDataset
_Opened: TypeAlias = tuple[_Dataset, Decoder, Decoder]
"""A dataset, and the tokenizers of its target and its source."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DecodedSample:
    """A ranked sample and its text."""

    ranked: RankedSample
    """The sample and its loss."""
    text: str = ""
    """The target text."""
    source_text: str = ""
    """The source text of a pair."""
    document: int | None = None
    """The document number: the sample itself, or for a block the document that contains the worst
    token.
    """
    file: str = ""
    """The text file that the sample was made from."""
    line: int | None = None
    """The line in that file, from 1."""
    token_texts: tuple[str, ...] = ()
    """The text of every token that has a loss."""
    problem: str = ""
    """Why something is missing."""


class SampleDecoder:
    """Finds the text of samples. Each dataset is opened once, when first needed."""

    def __init__(
        self,
        descriptions: Mapping[str, Mapping[str, Any]],
        *,
        directory: Path | None = None,
        tokenizer: Decoder | None = None,
        known: Mapping[tuple[str, int], str] | None = None,
    ) -> None:
        """`directory` is the current location of the data, if it was moved; `tokenizer` replaces
        the data's own.

        `known` has texts, by dataset and number, that are shown if the data cannot be opened.
        """
        self._descriptions = descriptions
        self._known = known or {}
        self._directory = directory
        self._tokenizer = tokenizer
        self._opened: dict[str, _Opened | str] = {}

    def decode(
        self, samples: Iterable[RankedSample], *, with_tokens: bool = False
    ) -> list[DecodedSample]:
        """Return the text of each sample. `with_tokens` adds the text of every token if its loss is
        known.
        """
        return [self._decode(sample, with_tokens) for sample in samples]

    def _decode(self, ranked: RankedSample, with_tokens: bool) -> DecodedSample:
        opened = self._open(ranked.dataset)
        if isinstance(opened, str):
            text = ""
            if isinstance(ranked.sample, int):
                text = self._known.get((ranked.dataset, ranked.sample), "")
            return DecodedSample(ranked=ranked, text=text, problem="" if text else opened)
        dataset, tokenizer, source_tokenizer = opened
        number = ranked.sample
        if not isinstance(number, int) or not 0 <= number < len(dataset):
            return DecodedSample(
                ranked=ranked,
                problem=f"{ranked.dataset} has no sample {number!r}: it has {len(dataset)}",
            )
        sample = dataset[number]
        tokens = sample.target.astype(int).tolist()
        losses = ranked.token_losses or (0.0,)
        worst = max(
            range(len(losses)), key=lambda place: (losses[place] != losses[place], losses[place])
        )
        document = dataset.document(number, min(worst, len(tokens) - 1))
        file, line, problem = find_origin(dataset, document)
        known = ranked.token_losses if with_tokens else None
        source = [] if sample.source is None else sample.source.astype(int).tolist()
        return DecodedSample(
            ranked=ranked,
            text=sample_text(tokens, tokenizer),
            source_text=sample_text(source, source_tokenizer) if source else "",
            document=document,
            file=file,
            line=line,
            token_texts=tuple(token_texts(tokens[: len(known)], tokenizer)) if known else (),
            problem=problem,
        )

    def _open(self, name: str) -> _Opened | str:
        if name not in self._opened:
            try:
                self._opened[name] = self._open_now(name)
            except (SondeError, OSError, KeyError, ValueError, TypeError, AttributeError) as error:
                # The last two: a damaged record may describe its data by anything.
                self._opened[name] = getattr(error, "message", None) or str(error)
        return self._opened[name]

    def _open_now(self, name: str) -> _Opened:
        description = self._descriptions.get(name)
        if description is not None:
            dataset = open_dataset(name, description, self._directory)
        elif self._directory is not None:
            dataset = open_pairs(self._directory, name)
        elif name == CONTENT:
            raise SettingError(
                "with decode=, sonde keeps the text of the rows that a verdict names"
            )
        elif name:
            raise SettingError(f"the run does not say where the dataset {name!r} is")
        else:
            raise SettingError("the run does not say which dataset the samples are from")
        if self._tokenizer is not None:
            return dataset, self._tokenizer, self._tokenizer
        directory = DataDirectory(dataset.target.prefix.parent)
        tokenizer = directory.tokenizer()
        return dataset, tokenizer, directory.source_tokenizer() or tokenizer


def find_origin(dataset: _Dataset, document: int) -> tuple[str, int | None, str]:
    """Return the file and line of a document, or why they are unknown."""
    try:
        return *dataset.origin(document), ""
    except (SondeError, OSError, IndexError) as error:
        return "", None, getattr(error, "message", None) or str(error)


def describe_datasets(datasets: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Describe the files of each dataset, except datasets that are not sonde's own."""
    described: dict[str, dict[str, Any]] = {}
    for name, dataset in datasets.items():
        if isinstance(dataset, PairDataset):
            described[name] = {
                "kind": "pairs",
                "source": _describe(dataset.source),
                "target": _describe(dataset.target),
            }
        elif isinstance(dataset, BlockDataset):
            tokens = _describe(dataset.target)
            described[name] = {
                "kind": "blocks",
                "tokens": tokens,
                "block_size": dataset.block_size,
                "mode": dataset.mode,
            }
    return described


def open_dataset(
    name: str, description: Mapping[str, Any], directory: Path | None = None
) -> _Dataset:
    """Open a described dataset, whose files may be in another directory now. Raises SettingError or
    DamagedFile if that fails.
    """
    kind = description.get("kind")
    if kind == "pairs":
        source, target = (_open(description[side], directory) for side in ("source", "target"))
        return PairDataset(source, target, name=name)
    if kind == "blocks":
        tokens = _open(description["tokens"], directory)
        return BlockDataset(tokens, description["block_size"], name=name, mode=description["mode"])
    raise SettingError(f"the dataset {name} is of a kind this sonde does not know: {kind!r}")


def _describe(tokens: TokenFile) -> dict[str, Any]:
    digest = tokens.sidecar.bin.sha256 if tokens.sidecar else None
    return {"prefix": str(tokens.prefix.absolute()), "sha256": digest}


def _open(description: Mapping[str, Any], directory: Path | None) -> TokenFile:
    prefix = Path(description["prefix"])
    prefix = prefix if directory is None else directory / prefix.name
    if not beside(prefix, ".idx").exists():
        raise SettingError(f"there is no data at {prefix}: say where it is now with --data DIR")
    tokens = TokenFile(prefix)
    digest = description.get("sha256")
    if digest is not None and tokens.sidecar is not None and tokens.sidecar.bin.sha256 != digest:
        raise DamagedFile(
            f"{prefix} is not the data that was trained on",
            cause=f"its SHA-256 is {tokens.sidecar.bin.sha256[:12]}…, the run says {digest[:12]}…",
        )
    return tokens


def sample_text(tokens: Sequence[int], tokenizer: Decoder) -> str:
    """Return the text of a sample. The tokenizer receives one list of plain ints, which all
    tokenizers accept.
    """
    return str(tokenizer.decode(list(tokens)))


def token_texts(tokens: Sequence[int], tokenizer: Decoder) -> list[str]:
    """Return the text of every token, such that they concatenate to the whole text if the tokenizer
    allows it.

    A token's text is what it adds to the text of the few tokens before it, so spaces are where they
    are in the text, and a character made of several byte tokens appears with the last of them.
    """
    texts: list[str] = []
    context = 0
    before = ""
    for place in range(len(tokens)):
        now = sample_text(tokens[context : place + 1], tokenizer)
        if now.endswith("\ufffd") and place + 1 < len(tokens):
            texts.append("")  # part of a character: wait for the rest
            continue
        if now.startswith(before):
            added = now[len(before) :]
        else:
            added = sample_text(tokens[place : place + 1], tokenizer)
        texts.append(added)
        # Text already returned is decoded again as context for the next token, but never more than
        # a few tokens of it.
        context = max(context, place)
        before = sample_text(tokens[context : place + 1], tokenizer)
    return texts
