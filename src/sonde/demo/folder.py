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
from pathlib import Path
from typing import final

from sonde.errors import SettingError
from sonde.records import disk
from sonde.records.atomic import write_file


@final
class DemoFolder:
    """The paths inside one demo's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        """The folder."""
        self.marker = root / ".sonde-demo"
        """The file that makes it a demo's folder."""
        self.corpus = root / "corpus"
        """The texts."""
        self.planted = root / "planted.json"
        """What was planted."""
        self.data = root / "data"
        """The prepared data."""
        self.run = root / "run"
        """The run."""
        self.large_batches = root / "run-of-64"
        """The run with large batches."""
        self.untouched = root / "run-untouched"
        """The run that nothing happens to, beside one that mends itself."""
        self.log = root / "training.log"
        """What the training said."""
        self.report = root / "report.html"
        """The report."""
        self.verdict = root / "verdict.json"
        """What was planted and what was named."""

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
