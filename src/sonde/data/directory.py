"""What a prepared directory holds: its splits, languages and tokenizer, found by the sidecars in it.

DATA/
  train.en.bin  train.en.idx  train.en.json  train.en.lines.npy      one such set for each split and language
  tokenizer.json                                                      or dict.txt, tokenizer.model, tokenizer.bytes
  bad-lines.txt                                                       what was wrong with the text, if anything was

A directory of fairseq-preprocess is read too (fairseq_directory.py).
"""

from pathlib import Path
from typing import final

from sonde.data.fairseq_directory import Found, find_fairseq_files
from sonde.data.sidecar import Sidecar, TokenizerStamp, read_sidecar
from sonde.data.token_file import TokenFile
from sonde.data.tokenizer import Tokenizer
from sonde.data.tokenizer_choice import load_tokenizer
from sonde.errors import DamagedFile, SettingError, did_you_mean


@final
class DataDirectory:
    """A prepared directory, opened."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        """The directory."""
        found = _find_files(self.path)
        self.splits: dict[str, tuple[Sidecar, ...]] = _by_split(self.path, [one.sidecar for one in found])
        """The sidecars of each split, source language first."""
        self._prefixes = {(one.sidecar.split, one.sidecar.language): one.prefix for one in found}
        if not self.splits:
            raise SettingError(
                f"{self.path} holds no prepared data",
                hint="`sonde prepare --train FILE --out DIR` makes some; a directory of fairseq-preprocess will do too",
            )

    def languages(self, split: str) -> tuple[str, ...]:
        """The languages of a split, source first."""
        return tuple(sidecar.language for sidecar in self._sidecars(split))

    def tokens(self, split: str, language: str | None = None) -> TokenFile:
        """The sequences of one language of a split; without a name, of the only one."""
        languages = self.languages(split)
        if language is None and len(languages) == 1:
            language = languages[0]
        if language not in languages:
            raise SettingError(f"{split} has no language {language!r}", hint=f"it has {', '.join(languages)}")
        return TokenFile(self._prefixes[split, language])

    def tokenizer(self, language: str | None = None) -> Tokenizer:
        """The tokenizer of a language, without a name that of the target, which mostly is everybody's; refused if its file was exchanged."""
        stamp = self._stamp(language or self.languages(next(iter(self.splits)))[-1])
        return load_tokenizer(self.path / stamp.file, digest=stamp.digest)

    def source_tokenizer(self) -> Tokenizer | None:
        """The tokenizer of the source, where it has one of its own: fairseq-preprocess without --joined-dictionary makes two."""
        languages = self.languages(next(iter(self.splits)))
        is_shared = self._stamp(languages[0]).digest == self._stamp(languages[-1]).digest
        return None if is_shared else self.tokenizer(languages[0])

    def _stamp(self, language: str) -> TokenizerStamp:
        sidecars = [sidecar for of_split in self.splits.values() for sidecar in of_split]
        stamps = [sidecar.tokenizer for sidecar in sidecars if sidecar.language == language]
        if len({stamp.digest for stamp in stamps}) > 1:
            names = ", ".join(sorted({stamp.file for stamp in stamps}))
            raise SettingError(
                f"the splits in {self.path} were made with several tokenizers of {language}: {names}",
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


def _find_files(path: Path) -> list[Found]:
    """The files that `sonde prepare` wrote; where there are none, those of fairseq-preprocess."""
    ours = []
    for index in sorted(path.glob("*.idx")):
        sidecar = read_sidecar(index.with_suffix(""))
        if sidecar:
            ours.append(Found(path / f"{sidecar.split}.{sidecar.language}", sidecar))
    return ours or find_fairseq_files(path)


def _by_split(path: Path, sidecars_found: list[Sidecar]) -> dict[str, tuple[Sidecar, ...]]:
    found: dict[str, dict[str, Sidecar]] = {}
    for sidecar in sidecars_found:
        found.setdefault(sidecar.split, {})[sidecar.language] = sidecar
    splits = {}
    for split, sidecars in found.items():
        languages = next(iter(sidecars.values())).languages
        missing = [language for language in languages if language not in sidecars]
        if missing:
            raise DamagedFile(f"{path} lacks {split}.{missing[0]}", hint="run the same `sonde prepare` again")
        splits[split] = tuple(sidecars[language] for language in languages)
    # The order of preparation is not kept on disk; training data first, then by name.
    return dict(sorted(splits.items(), key=lambda item: (item[0] != "train", item[0])))
