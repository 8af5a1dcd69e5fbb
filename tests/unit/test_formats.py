"""The pages in docs/formats are held to the code: their examples are what it writes, byte for byte,
and reads back.
"""

import argparse
import dataclasses
import datetime
import decimal
import fractions
import json
import pathlib
import re
from pathlib import Path

import numpy
import pytest
from checksummed import write_checksums

from sonde.records import manifest, reader, values
from sonde.records.append import RecordFile
from sonde.records.checksums import NAME, verify_checksums
from sonde.records.layout import EVENTS, LOG, RunLayout
from sonde.records.lock import Owner, read_owner
from sonde.records.manifest import Manifest, read_manifest, write_manifest
from sonde.records.reader import read_records
from sonde.records.seal import seal, unseal
from sonde.records.values import decode, encode
from sonde.run import Run

PAGES = Path(__file__).parents[2] / "docs" / "formats"
NAMES = {
    "argparse": argparse,
    "datetime": datetime,
    "decimal": decimal,
    "fractions": fractions,
    "numpy": numpy,
    "pathlib": pathlib,
}


def page(name: str) -> str:
    return (PAGES / f"{name}.md").read_text()


def examples(name: str) -> list[str]:
    return re.findall(r"^```json\n(.*?)^```$", page(name), re.MULTILINE | re.DOTALL)


def field_table(name: str) -> list[str]:
    """The names in the first column of the tables under "Fields"."""
    section = page(name).partition("## Fields")[2].partition("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def value_rows() -> list[tuple[str, str]]:
    return re.findall(r"^\| `(.+)` \| `(.+)` \|$", page("values"), re.MULTILINE)


@pytest.mark.parametrize("name", ["records", "values", "manifest", "lock", "checksums"])
def test_every_page_has_a_version_its_module_and_what_may_change(name: str) -> None:
    text = page(name)
    assert "\nVersion 1" in text
    assert "## What may change" in text
    (module,) = set(re.findall(r"(?:Written and read|Written) by `(sonde\.records\.\w+)`", text))
    assert (PAGES.parents[1] / "src" / module.replace(".", "/")).with_suffix(".py").exists()


@pytest.mark.parametrize(("source", "spelling"), value_rows())
def test_a_value_is_spelled_as_its_page_says(source: str, spelling: str) -> None:
    value = eval(source, dict(NAMES))
    assert encode(value) == spelling.encode() + b"\n"
    json.loads(spelling)


def test_spellings_that_promise_it_come_back_as_they_were() -> None:
    exact = page("values").partition("A value with a plain equivalent")[0]
    sources = re.findall(r"^\| `(.+)` \| `.+` \|$", exact, re.MULTILINE)
    assert len(sources) == 12
    for source in sources:
        value = eval(source, {})
        assert repr(decode(encode(value))) == repr(value)


def test_the_example_log_is_what_a_writer_writes_around_a_gap(tmp_path: Path) -> None:
    log, _ = examples("records")
    path = tmp_path / "log.rank0.jsonl"
    with RecordFile(path) as file:
        assert file.append({"type": "LOG", "step": 1, "data": {"loss": 5.25, "lr": 0.001}})
        assert file.append({"type": "LOG", "step": 2, "data": {"loss": float("nan"), "lr": 0.001}})
        file._next_check = 0.0
        lost = {"num_lost": 3, "errno": 28, "reason": "No space left on device"}
        file._gap = {"type": "GAP", **lost, "from": 1731705600.5, "to": 1731705609.25}
        assert file.append({"type": "LOG", "step": 6, "data": {"loss": 5.0, "lr": 0.001}})
    assert path.read_text() == log
    reading = read_records(path)
    assert [record["type"] for record in reading] == ["LOG", "LOG", "GAP", "LOG"]
    assert reading.num_bad == 0


def test_the_example_events_have_the_fields_of_real_ones(tmp_path: Path) -> None:
    with Run(tmp_path):
        pass
    real = list(read_records(RunLayout(tmp_path).record_file(EVENTS, 0)))
    shown = [json.loads(unseal(line.encode())) for line in examples("records")[1].splitlines()]
    assert [list(event) for event in shown] == [list(event) for event in real]
    assert [event["event"] for event in shown] == [event["event"] for event in real]


def test_record_files_are_named_as_the_page_says() -> None:
    assert f"records/{RunLayout(Path()).record_file(LOG, 0).name}" in page("records")
    assert f"records/{RunLayout(Path()).record_file(EVENTS, 0).name}" in page("records")


def test_the_example_manifest_is_written_as_it_stands(tmp_path: Path) -> None:
    (example,) = examples("manifest")
    (tmp_path / "run.json").write_text(example)
    read = read_manifest(tmp_path)
    assert read.settings == {"rate": 0.001, "clip": float("inf")}
    assert read.other == {}
    write_manifest(tmp_path, read)
    assert (tmp_path / "run.json").read_text() == example


def test_every_field_of_the_manifest_is_shown_and_described() -> None:
    fields = [
        "format",
        "version",
        *(field.name for field in dataclasses.fields(Manifest) if field.name != "other"),
    ]
    assert list(json.loads(examples("manifest")[0])) == [*fields, "_crc"]
    assert field_table("manifest") == fields
    assert json.loads(examples("manifest")[0])["version"] == manifest.VERSION


def test_the_example_lock_names_an_owner_and_all_its_fields(tmp_path: Path) -> None:
    (example,) = examples("lock")
    (tmp_path / "lock.json").write_text(example)
    owner = read_owner(tmp_path / "lock.json")
    assert owner is not None
    assert seal(json.dumps(dataclasses.asdict(owner)).encode() + b"\n") == example.encode()
    assert field_table("lock") == [field.name for field in dataclasses.fields(Owner)]


def test_the_example_checksum_manifest_is_what_is_written_for_its_files(tmp_path: Path) -> None:
    (example,) = examples("checksums")
    (tmp_path / "part").mkdir()
    (tmp_path / "model.bin").write_bytes(b"abc")
    (tmp_path / "part" / "rows").write_bytes(b"")
    write_checksums(tmp_path)
    assert (tmp_path / NAME).read_text() == example
    assert verify_checksums(tmp_path) == []


def test_the_sizes_that_the_pages_promise_are_those_of_the_code() -> None:
    for name in ("values", "records", "manifest"):
        assert f"{values.MAX_RECORD_BYTES >> 20} MiB" in page(name)
    assert f"{reader.MAX_LINE_BYTES >> 20} MiB" in page("records")
    assert f"more than {values._MAX_DEPTH} levels" in page("values")
