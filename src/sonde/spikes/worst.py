"""The samples of a run that were worst over all epochs, with their text; what says the same is one entry. Needs no torch.

    for entry in read_worst(Path("runs/x"), 20).entries: print(entry.history.mean, entry.history.trend, entry.decoded.text)

For `sonde worst`, the report and the dashboard.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, final

from sonde.errors import SettingError
from sonde.spikes.decoding import DecodedSample, SampleDecoder
from sonde.spikes.ledger_log import SampleHistory, read_ledger
from sonde.spikes.sample_text import Decoder
from sonde.spikes.spike_log import RankedSample

_LOOKED_AT: Final = 4
"""So many times as many samples as asked for are read, to find those that say the same."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class WorstSample:
    """A sample, and others with the same text."""

    history: SampleHistory
    """How it fared."""
    decoded: DecodedSample
    """What it says; `problem` says why that is not known."""
    duplicates: tuple[SampleHistory, ...] = ()
    """Others among the worst that say the same."""


@final
@dataclass(frozen=True, kw_only=True, slots=True)
class Worst:
    """The worst samples of a run."""

    entries: tuple[WorstSample, ...]
    """Worst first."""
    num_samples: int
    """Samples that the run has a history of."""
    num_bad: int
    """Stretches of the ledger that could not be read."""

    def samples(self) -> list[RankedSample]:
        """All of them, with those that say the same."""
        found = [one for entry in self.entries for one in (entry.history, *entry.duplicates)]
        return [_ranked(one) for one in found]


def read_worst(
    run: str | Path, num: int = 20, *, directory: str | Path | None = None, tokenizer: Decoder | None = None
) -> Worst:
    """The `num` worst samples. `directory` is where the data lies now; `tokenizer` takes the place of the data's own."""
    if num < 1:
        raise SettingError(f"num is the number of samples to show, 1 or more, not {num}")
    ledger = read_ledger(Path(run))
    decoder = SampleDecoder(
        ledger.datasets, directory=None if directory is None else Path(directory), tokenizer=tokenizer
    )
    groups: dict[object, list[tuple[SampleHistory, DecodedSample]]] = {}
    for history in ledger.worst(num * _LOOKED_AT):
        decoded = decoder.decode([_ranked(history)])[0]
        text = (decoded.source_text, " ".join(decoded.text.split()))
        own = (history.dataset, history.sample)
        groups.setdefault(text if any(text) else own, []).append((history, decoded))
    entries = [
        WorstSample(history=group[0][0], decoded=group[0][1], duplicates=tuple(one for one, _ in group[1:]))
        for group in groups.values()
    ]
    return Worst(entries=tuple(entries[:num]), num_samples=len(ledger), num_bad=ledger.num_bad)


def _ranked(history: SampleHistory) -> RankedSample:
    return RankedSample(rank=0, dataset=history.dataset, sample=history.sample, loss=None, num_tokens=None, share=0.0)
