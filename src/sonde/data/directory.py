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
from sonde.data.sidecar import Sidecar, read_sidecar
from sonde.data.token_file import TokenFile
from sonde.data.tokenizer import Tokenizer
from sonde.data.tokenizer_choice import load_tokenizer
from sonde.errors import DamagedFile, SettingError, nearest


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
        """The tokenizer that made the tokens, all of them or those of one language; refused if its file was exchanged."""
        sidecars = [sidecar for of_split in self.splits.values() for sidecar in of_split]
        stamps = [sidecar.tokenizer for sidecar in sidecars if language in (None, sidecar.language)]
        if len({stamp.digest for stamp in stamps}) > 1:
            names = ", ".join(sorted({stamp.file for stamp in stamps}))
            raise SettingError(
                f"the languages in {self.path} have vocabularies of their own: {names}",
                hint="a model here has one for both; run fairseq-preprocess with --joined-dictionary",
            )
        return load_tokenizer(self.path / stamps[0].file, digest=stamps[0].digest)

    def _sidecars(self, split: str) -> tuple[Sidecar, ...]:
        if split not in self.splits:
            close = nearest(split, self.splits)
            raise SettingError(
                f"{self.path} has no split {split!r}",
                hint=f"did you mean {close}?" if close else f"it has {', '.join(self.splits)}",
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
