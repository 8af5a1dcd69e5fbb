"""docs/formats/verdict.md is held to the code: its example is what is written, and its tables name
every field and cause.
"""

import json
import re
from dataclasses import fields
from pathlib import Path

from sonde.forensics.causes import CAUSES
from sonde.forensics.verdict import (
    FORMAT,
    VERSION,
    Cause,
    Experiment,
    ModuleStatistics,
    ReplayResult,
    Suspect,
    Verdict,
    read_verdict,
    write_verdict,
)
from sonde.records.seal import unseal_document

PAGE = (Path(__file__).parents[3] / "docs" / "formats" / "verdict.md").read_text()


def names(kind: type) -> list[str]:
    return [field.name for field in fields(kind)]


def first_column(heading: str) -> list[str]:
    table = PAGE.partition(f"| {heading} | is |")[2].partition("\n\n")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def test_the_example_is_read_and_written_again_as_it_stands(tmp_path: Path) -> None:
    (example,) = re.findall(r"^```json\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    document = json.loads(example)
    path = tmp_path / "forensics" / f"verdict-{document['step']}.json"
    path.parent.mkdir()
    path.write_text(example)
    verdict = read_verdict(tmp_path, document["step"])
    path.unlink()
    assert write_verdict(tmp_path, verdict) == path
    assert json.loads(unseal_document(path.read_bytes())) == document
    assert (document["format"], document["version"]) == (FORMAT, VERSION)


def test_the_tables_name_every_field_and_every_cause() -> None:
    assert first_column("field") == ["format", "version", *names(Verdict)]
    assert first_column("field of a cause") == names(Cause)
    assert first_column("cause") == list(CAUSES)
    for kind in (Suspect, Experiment, ModuleStatistics, ReplayResult):
        assert [name for name in names(kind) if f"`{name}`" not in PAGE] == []
