"""Where a demo plays: its folder, and the narrator who tells it. No torch: `sonde demo` must start without it to say so.

sonde-demo/
  .sonde-demo     marks the folder as a demo's, so that the next demo may overwrite it
  corpus/         the texts, one document per line, and the tokenizer
  planted.json    what was planted, for the end of the demo
  data/           the prepared data
  run/            the run
  run-of-64/      a second one, with 64 samples in a batch
  run-untouched/  with --heal: an undisturbed run
  training.log    output of the training, if there is no terminal
  report.html     the report
  verdict.json    what was planted and what the diagnosis named
"""

import shutil
from pathlib import Path
from typing import Protocol

from sonde.errors import SettingError
from sonde.records import disk
from sonde.records.files import write_file
from sonde.spikes.decoding import DecodedSample


class Narrator(Protocol):
    """Receives the title of every act and what was found in it."""

    def act(self, title: str) -> None:
        """Called when an act begins."""

    def tell(self, text: str) -> None:
        """Called when something was found or done."""

    def show(self, sample: DecodedSample, *, calm_loss: float | None) -> None:
        """Called with the text of a sample; tokens well above `calm_loss` are the odd ones."""


class DemoFolder:
    """The paths inside a demo's folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        """The folder."""
        self.marker = root / ".sonde-demo"
        """The file that marks the folder as a demo's."""
        self.corpus = root / "corpus"
        """The texts."""
        self.planted = root / "planted.json"
        """A description of the planted document."""
        self.data = root / "data"
        """The prepared data."""
        self.run = root / "run"
        """The run."""
        self.large_batches = root / "run-of-64"
        """The run with large batches."""
        self.untouched = root / "run-untouched"
        """The undisturbed run that a healed one is compared with."""
        self.log = root / "training.log"
        """The output of the training."""
        self.report = root / "report.html"
        """The report."""
        self.verdict = root / "verdict.json"
        """What was planted and what the diagnosis named."""

    def claim(self) -> None:
        """Claim a new or empty folder, or that of an earlier demo, whose files are removed first."""
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
