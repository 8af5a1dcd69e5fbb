"""The format pages of spikes are held to the code."""

import json
import re
from pathlib import Path

import numpy as np

from sonde.compat.atorch.loss_lines import read_line, worst_sample
from sonde.records.append import RecordFile
from sonde.records.layout import RunLayout
from sonde.spikes.detectors import ThresholdRule
from sonde.spikes.ledger import Ledger
from sonde.spikes.ledger_log import read_ledger
from sonde.spikes.recorder import SpikeRecorder, SpikeSettings
from sonde.spikes.spike_log import read_spikes

PAGES = Path(__file__).parents[3] / "docs" / "formats"


def example(page: str, language: str) -> str:
    found = re.search(
        rf"^```{language}\n(.*?)^```$", (PAGES / f"{page}.md").read_text(), re.MULTILINE | re.DOTALL
    )
    assert found is not None
    return found[1]


def test_the_example_records_are_read_as_one_event(tmp_path: Path) -> None:
    with RecordFile(RunLayout(tmp_path).record_file("spikes", 0)) as file:
        for line in example("spikes", "json").splitlines():
            file.append_line(f"{line}\n".encode())
    log = read_spikes(tmp_path)
    (spike,) = log.spikes
    assert (spike.event.first_step, spike.event.last_step, spike.is_over) == (300, 302, True)
    worst = spike.samples()[0]
    assert (worst.sample, worst.token_losses, log.num_bad) == (2405, (1.0, 13.0, 1.0), 0)
    assert log.datasets["train"]["kind"] == "pairs"
    (sample,) = log.samples
    assert (sample.step, sample.sample, sample.z) == (410, 3021, 16.5)


def test_the_example_records_have_the_fields_of_real_ones(tmp_path: Path) -> None:
    path = tmp_path / "s"
    with SpikeRecorder(path, settings=SpikeSettings(rule=ThresholdRule(above=5.0))) as recorder:
        recorder.observe(
            0, 9.0, sample_ids=[("train", 1)], sample_losses=[9.0], token_losses=[[9.0]]
        )
        recorder.flush()
        for step in range(1, 60):
            losses = np.random.default_rng(step).normal(3, 0.3, 32) + 9 * (
                (np.arange(32) == 5) & (step == 50)
            )
            recorder.observe(step, 3.0, sample_ids=list(range(32)), sample_losses=losses)
    real = [json.loads(line) for line in path.read_text().splitlines()]
    shown = [json.loads(line) for line in example("spikes", "json").splitlines()][1:]
    assert list(shown[-1].pop("samples")[0]) == list(real[-1].pop("samples")[0])
    assert list(shown.pop()) == list(real.pop())
    assert [list(record) for record in shown] == [list(record) for record in real]
    assert [list(record["event"]) for record in shown] == [list(record["event"]) for record in real]
    assert list(shown[0]["steps"][0]) == list(real[0]["steps"][0])
    assert shown[0]["tokens"][0].keys() == real[0]["tokens"][0].keys()


def test_the_example_journal_is_what_a_ledger_writes_and_is_read(tmp_path: Path) -> None:
    layout = RunLayout(tmp_path)
    ledger = Ledger(layout, 0)
    ledger.add(3, [("train", 7)], np.array([2.0]))
    ledger.close()
    shown = bytes.fromhex(example("ledger", "text").replace("\n", ""))
    assert layout.ledger_journal(0, 0).read_bytes() == shown
    (sample,) = read_ledger(tmp_path).worst(2)
    assert (sample.dataset, sample.sample, sample.mean, sample.last_step) == ("train", 7, 2.0, 3)


def test_the_example_line_of_atorch_is_read() -> None:
    _, iteration, loss, losses, infos = read_line(example("atorch-spikes", "text").encode(), b"\t")
    assert (iteration, loss) == (2001, 10.5)
    assert worst_sample(losses, infos, b",") == (40.05, "20-1-1385697-14158189-2")
