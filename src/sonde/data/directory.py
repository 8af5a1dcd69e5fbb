"""The contents of a data directory: its splits, languages and tokenizer. Another prepared format is
recognised here.

    DATA/
      one such set for each split and language:
        train.en.bin  train.en.idx  train.en.json  train.en.lines.npy
      tokenizer.json  or dict.txt, tokenizer.model, tokenizer.bytes
      bad-lines.txt   problems found in the text, if any

A directory that `fairseq-preprocess` wrote can be read too, though it has neither checksums nor the
original text:

    a split of two languages, source first:
      train.en-de.en.bin  train.en-de.en.idx  train.en-de.de.bin  train.en-de.de.idx
      dict.en.txt  dict.de.txt  (identical if --joined-dictionary was given)
    text of one language (--only-source):
      train.bin  train.idx  dict.txt

`link_fairseq_names` adds these names to one of our directories, as further names of the same files,
and writes the dictionaries.
"""

import os
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from sonde.data.mmididx import read_index
from sonde.data.token_file import (
    FileStamp,
    Sidecar,
    TokenFile,
    TokenizerStamp,
    beside,
    read_sidecar,
    stamp_file,
    stamp_tokenizer,
)
from sonde.data.tokenizer import SPECIAL_WORDS, SpecialIds, Tokenizer
from sonde.data.tokenizer_files import HFTokenizer, load_tokenizer
from sonde.errors import DamagedFile, SettingError, did_you_mean
from sonde.records.files import write_file

ONE_LANGUAGE: Final = "text"
"""Language name of a text without one."""
_PAIR: Final = re.compile(r"([^.]+)\.([^.-]+)-([^.-]+)\.([^.]+)\.idx")
_ALONE: Final = re.compile(r"([^.]+)\.idx")
_NOTHING: Final = FileStamp(num_bytes=0, sha256="", spot_sha256="")


def find_fairseq_files(path: Path) -> dict[Path, Sidecar]:
    """Return the token files with fairseq's names, by their paths without ending; empty if there
    are no dictionaries.
    """
    found = {}
    stamps: dict[str, TokenizerStamp] = {}
    for index_path in sorted(path.glob("*.idx")):
        pair = _PAIR.fullmatch(index_path.name)
        alone = _ALONE.fullmatch(index_path.name)
        if pair and pair[4] in pair.group(2, 3):
            split = pair[1]
            languages = pair.group(2, 3)
            language = pair[4]
            dictionary = f"dict.{pair[4]}.txt"
        elif alone:
            split = alone[1]
            languages = (ONE_LANGUAGE,)
            language = ONE_LANGUAGE
            dictionary = "dict.txt"
        else:
            continue
        if not (path / dictionary).is_file():
            continue
        if dictionary not in stamps:
            stamps[dictionary] = stamp_tokenizer(load_tokenizer(path / dictionary), dictionary)
        prefix = index_path.with_suffix("")
        index = read_index(index_path, beside(prefix, ".bin"))
        # Reading all of a large corpus at each opening would take minutes.
        found[prefix] = Sidecar(
            split=split,
            language=language,
            languages=tuple(languages),
            num_samples=index.num_samples,
            num_tokens=index.num_bin_bytes // index.dtype.itemsize,
            source="",
            num_source_lines=0,
            left_out={},
            tokenizer=stamps[dictionary],
            bin=stamp_file(beside(prefix, ".bin"), only_spots=True),
            idx=stamp_file(index_path, only_spots=True),
            lines=_NOTHING,
        )
    return found


class DataDirectory:
    """An opened data directory.

    ```python
    from pathlib import Path

    from sonde.data import DataDirectory, PrepareSettings, prepare

    Path("corpus.txt").write_text("a few words\\n" * 200)
    splits = {"train": {"en": Path("corpus.txt")}}
    prepare(PrepareSettings(splits=splits, out=Path("data"), tokenizer="bytes"))
    data = DataDirectory("data")
    assert data.tokenizer().vocab_size > 0
    ```
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        """The directory."""
        prefixes = [index.with_suffix("") for index in sorted(self.path.glob("*.idx"))]
        sidecars = {prefix: read_sidecar(prefix) for prefix in prefixes}
        ours = {prefix: sidecar for prefix, sidecar in sidecars.items() if sidecar}
        found = ours or find_fairseq_files(self.path)
        self.splits: dict[str, tuple[Sidecar, ...]] = _by_split(self.path, found.values())
        """The sidecars of each split, source language first."""
        self._prefixes = {
            (sidecar.split, sidecar.language): prefix for prefix, sidecar in found.items()
        }
        if not self.splits:
            raise SettingError(
                f"{self.path} holds no prepared data",
                hint=(
                    "`sonde prepare --train FILE --out DIR` makes some; a directory of"
                    " fairseq-preprocess will do too"
                ),
            )

    def languages(self, split: str) -> tuple[str, ...]:
        """Return the languages of a split, source first."""
        return tuple(sidecar.language for sidecar in self._sidecars(split))

    def tokens(self, split: str, language: str | None = None) -> TokenFile:
        """Return the token file of one language of a split; `language` is optional if there is only
        one.
        """
        languages = self.languages(split)
        if language is None and len(languages) == 1:
            language = languages[0]
        if language not in languages:
            raise SettingError(
                f"{split} has no language {language!r}", hint=f"it has {', '.join(languages)}"
            )
        return TokenFile(self._prefixes[split, language])

    def verify(self) -> None:
        """Check every byte of the data against its checksums. Raises DamagedFile."""
        for split, language in self._prefixes:
            self.tokens(split, language).verify()

    def tokenizer(self, language: str | None = None) -> Tokenizer:
        """Return the tokenizer of a language, by default the target's, which is usually shared.
        Raises if its file was replaced.
        """
        stamp = self._stamp(language or self.languages(next(iter(self.splits)))[-1])
        return load_tokenizer(self.path / stamp.file, digest=stamp.digest)

    def source_tokenizer(self) -> Tokenizer | None:
        """Return the source's own tokenizer, or None if it is shared. fairseq-preprocess makes two
        without --joined-dictionary.
        """
        languages = self.languages(next(iter(self.splits)))
        is_shared = self._stamp(languages[0]).digest == self._stamp(languages[-1]).digest
        return None if is_shared else self.tokenizer(languages[0])

    def _stamp(self, language: str) -> TokenizerStamp:
        sidecars = [sidecar for of_split in self.splits.values() for sidecar in of_split]
        stamps = [sidecar.tokenizer for sidecar in sidecars if sidecar.language == language]
        if len({stamp.digest for stamp in stamps}) > 1:
            names = ", ".join(sorted({stamp.file for stamp in stamps}))
            raise SettingError(
                f"the splits in {self.path} were made with several tokenizers of {language}:"
                f" {names}",
                hint="prepare them together",
            )
        return stamps[0]

    def _sidecars(self, split: str) -> tuple[Sidecar, ...]:
        if split not in self.splits:
            raise SettingError(
                f"{self.path} has no split {split!r}",
                hint=did_you_mean(split, self.splits, f"it has {', '.join(self.splits)}"),
            )
        return self.splits[split]


def _by_split(path: Path, sidecars_found: Iterable[Sidecar]) -> dict[str, tuple[Sidecar, ...]]:
    found: dict[str, dict[str, Sidecar]] = {}
    for sidecar in sidecars_found:
        found.setdefault(sidecar.split, {})[sidecar.language] = sidecar
    splits = {}
    for split, sidecars in found.items():
        languages = next(iter(sidecars.values())).languages
        missing = [language for language in languages if language not in sidecars]
        if missing:
            raise DamagedFile(
                f"{path} lacks {split}.{missing[0]}", hint="run the same `sonde prepare` again"
            )
        splits[split] = tuple(sidecars[language] for language in languages)
    # The order of preparation is not stored on disk: training data comes first, then by name.
    return dict(sorted(splits.items(), key=lambda item: (item[0] != "train", item[0])))


def link_fairseq_names(directory: DataDirectory) -> list[Path]:
    """Add fairseq's names to the files of one of our directories and write its dictionaries.
    Returns the new names.
    """
    dictionary = _dictionary(directory.tokenizer())
    made = []
    for split, sidecars in directory.splits.items():
        pair = "-".join(sidecar.language for sidecar in sidecars)
        for sidecar in sidecars:
            ours = directory.path / f"{split}.{sidecar.language}"
            theirs = directory.path / (
                split if len(sidecars) == 1 else f"{split}.{pair}.{sidecar.language}"
            )
            for ending in (".bin", ".idx"):
                _link(beside(ours, ending), beside(theirs, ending))
                made.append(beside(theirs, ending))
            name = directory.path / (
                "dict.txt" if len(sidecars) == 1 else f"dict.{sidecar.language}.txt"
            )
            if name not in made:
                write_file(name, dictionary)
                made.append(name)
    return made


def _link(ours: Path, theirs: Path) -> None:
    theirs.unlink(missing_ok=True)
    try:
        os.link(ours, theirs)
    except OSError:  # a file system without hard links
        shutil.copyfile(ours, theirs)


def _dictionary(tokenizer: Tokenizer) -> bytes:
    """Return the vocabulary as a fairseq dictionary: one word and count per line, in the order of
    ids after the specials.
    """
    if tokenizer.kind == "word":
        return tokenizer.payload
    if not isinstance(tokenizer, HFTokenizer) or tokenizer.specials != SpecialIds():
        raise SettingError(
            f"fairseq has no dictionary for a tokenizer of kind {tokenizer.kind!r}",
            hint="use bpe, unigram or word, made by `sonde prepare`",
        )
    words = tokenizer.words[len(SPECIAL_WORDS) :]
    return "".join(
        f"{''.join(word.split()) or f'blank{number}'} 1\n" for number, word in enumerate(words)
    ).encode()
