"""The folder of a demo: what is in it, and how it is taken into use without touching anything else.

sonde-demo/
  .sonde-demo     says that a demo made this folder, so that the next one may start over
  corpus/         the texts, one document a line, and the tokenizer
  planted.json    what was planted; for the end of the story
  data/           the prepared data
  run/            the run
  run-of-64/      a second one, with 64 samples in a batch
  run-untouched/  with --heal: the run that nothing happens to
  training.log    what the training said, where there is no terminal
  report.html     the report
  verdict.json    what was planted and what was named
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import final

from sonde.errors import SettingError
from sonde.records import disk
from sonde.records.atomic import write_file


@final
@dataclass(frozen=True, slots=True)
class DemoFolder:
    """The paths inside one demo's folder."""

    root: Path

    @property
    def marker(self) -> Path:
        """The file that makes it a demo's folder."""
        return self.root / ".sonde-demo"

    @property
    def corpus(self) -> Path:
        """The texts."""
        return self.root / "corpus"

    @property
    def planted(self) -> Path:
        """What was planted."""
        return self.root / "planted.json"

    @property
    def data(self) -> Path:
        """The prepared data."""
        return self.root / "data"

    @property
    def run(self) -> Path:
        """The run."""
        return self.root / "run"

    @property
    def large_batches(self) -> Path:
        """The run with large batches."""
        return self.root / "run-of-64"

    @property
    def untouched(self) -> Path:
        """The run that nothing happens to, beside one that mends itself."""
        return self.root / "run-untouched"

    @property
    def log(self) -> Path:
        """What the training said."""
        return self.root / "training.log"

    @property
    def report(self) -> Path:
        """The report."""
        return self.root / "report.html"

    @property
    def verdict(self) -> Path:
        """What was planted and what was named."""
        return self.root / "verdict.json"

    def claim(self) -> None:
        """Take a new or empty folder into use, or one of an earlier demo, whose own files are removed first."""
        if self.root.exists() and not self.marker.is_file() and (not self.root.is_dir() or any(self.root.iterdir())):
            raise SettingError(
                f"{self.root} exists and no demo of sonde made it",
                hint="name another folder with --out, or remove it yourself",
            )
        for path in (self.corpus, self.data, self.run, self.large_batches, self.untouched):
            shutil.rmtree(path, ignore_errors=True)
        for path in (self.planted, self.log, self.report, self.verdict):
            path.unlink(missing_ok=True)
        disk.make_directories(self.root)
        write_file(self.marker.absolute(), b"made by `sonde demo`, which may start over in this folder\n")
