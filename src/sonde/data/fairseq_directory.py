"""A directory that `fairseq-preprocess` wrote, read as it is; and one of ours under fairseq's names.

    train.en-de.en.bin  train.en-de.en.idx  train.en-de.de.bin  train.en-de.de.idx      a split of two languages, source first in its name
    dict.en.txt  dict.de.txt                                                            the same, where --joined-dictionary was given
    train.bin  train.idx  dict.txt                                                      text of one language (--only-source)

Such a directory carries neither checksums nor the text it was made from. `link_fairseq_names` gives a directory of ours these names beside its
own, as further names of the same files, and writes the dictionaries.
"""

import os
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from sonde.data.mmididx import read_index
from sonde.data.sidecar import FileStamp, Sidecar, TokenizerStamp, stamp_file, stamp_tokenizer
from sonde.data.token_file import bin_path, index_path
from sonde.data.tokenizer import SPECIAL_WORDS, SpecialIds, Tokenizer
from sonde.data.tokenizer_choice import load_tokenizer
from sonde.data.tokenizer_subwords import HFTokenizer
from sonde.errors import SettingError
from sonde.records.atomic import write_file

ONE_LANGUAGE: Final = "text"
"""What the language of a text is called that has no name."""
_PAIR: Final = re.compile(r"([^.]+)\.([^.-]+)-([^.-]+)\.([^.]+)\.idx")
_ALONE: Final = re.compile(r"([^.]+)\.idx")
_NOTHING: Final = FileStamp(num_bytes=0, sha256="", spot_sha256="")


class Found(NamedTuple):
    """One file of tokens."""

    prefix: Path
    """Its path without `.bin` and `.idx`."""
    sidecar: Sidecar
    """What is known of it."""


def find_fairseq_files(path: Path) -> list[Found]:
    """The files of tokens under fairseq's names; none when there are no dictionaries."""
    found = []
    stamps: dict[str, TokenizerStamp] = {}
    for index in sorted(path.glob("*.idx")):
        pair, alone = _PAIR.fullmatch(index.name), _ALONE.fullmatch(index.name)
        if pair and pair[4] in pair.group(2, 3):
            split, languages, language, dictionary = pair[1], pair.group(2, 3), pair[4], f"dict.{pair[4]}.txt"
        elif alone:
            split, languages, language, dictionary = alone[1], (ONE_LANGUAGE,), ONE_LANGUAGE, "dict.txt"
        else:
            continue
        if not (path / dictionary).is_file():
            continue
        if dictionary not in stamps:
            stamps[dictionary] = stamp_tokenizer(load_tokenizer(path / dictionary), dictionary)
        prefix = index.with_suffix("")
        found.append(Found(prefix, _described(prefix, split, language, tuple(languages), stamps[dictionary])))
    return found


def link_fairseq_names(path: Path, splits: dict[str, tuple[Sidecar, ...]], tokenizer: Tokenizer) -> list[Path]:
    """Give the files of a directory of ours fairseq's names too, and write its dictionaries; returns the new names."""
    dictionary = _dictionary(tokenizer)
    made = []
    for split, sidecars in splits.items():
        pair = "-".join(sidecar.language for sidecar in sidecars)
        for sidecar in sidecars:
            ours = path / f"{split}.{sidecar.language}"
            theirs = path / (split if len(sidecars) == 1 else f"{split}.{pair}.{sidecar.language}")
            for place in (bin_path, index_path):
                _link(place(ours), place(theirs))
                made.append(place(theirs))
            name = path / ("dict.txt" if len(sidecars) == 1 else f"dict.{sidecar.language}.txt")
            if name not in made:
                write_file(name, dictionary)
                made.append(name)
    return made


def _described(prefix: Path, split: str, language: str, languages: tuple[str, ...], stamp: TokenizerStamp) -> Sidecar:
    index = read_index(index_path(prefix), bin_path(prefix))
    return Sidecar(
        split=split,
        language=language,
        languages=languages,
        num_samples=index.num_samples,
        num_tokens=index.num_bin_bytes // index.dtype.itemsize,
        source="",
        num_source_lines=0,
        left_out={},
        tokenizer=stamp,
        bin=_spots(bin_path(prefix)),
        idx=_spots(index_path(prefix)),
        lines=_NOTHING,
    )


def _spots(path: Path) -> FileStamp:
    """The stamp of a file by spots alone: reading all of a large corpus at each opening would take minutes."""
    stamp = stamp_file(path, sha256="unknown")
    return replace(stamp, sha256=stamp.spot_sha256)


def _dictionary(tokenizer: Tokenizer) -> bytes:
    """A tokenizer's vocabulary as fairseq's dictionary: a word and a count a line, in the order of ids after the specials."""
    if tokenizer.kind == "word":
        return tokenizer.payload
    if not isinstance(tokenizer, HFTokenizer) or tokenizer.specials != SpecialIds():
        raise SettingError(
            f"fairseq has no dictionary for a tokenizer of kind {tokenizer.kind!r}",
            hint="use bpe, unigram or word, made by `sonde prepare`",
        )
    words = tokenizer.words[len(SPECIAL_WORDS) :]
    return "".join(f"{''.join(word.split()) or f'blank{number}'} 1\n" for number, word in enumerate(words)).encode()


def _link(ours: Path, theirs: Path) -> None:
    theirs.unlink(missing_ok=True)
    try:
        os.link(ours, theirs)
    except OSError:  # a file system without links
        shutil.copyfile(ours, theirs)
