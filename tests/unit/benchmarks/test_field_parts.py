"""The field stick is as it was sealed, and has what it promises."""

import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.field import Planned, cases_of
from benchmarks.field_cases import parts
from benchmarks.field_cases.parts import (
    FIRST,
    RECORD,
    SEALED,
    TUNE,
    files_of,
    read_seals,
    seal_of,
    times_begun,
    write_seals,
)

PROJECT = Path(__file__).resolve().parents[3]
PARTS = (TUNE, *SEALED)


def everything() -> list[Planned]:
    planned: list[Planned] = []
    for part in PARTS:
        planned += cases_of(part)
    return planned


@pytest.mark.parametrize("part", SEALED)
def test_a_sealed_part_is_as_it_was_sealed(part: str) -> None:
    assert seal_of(part) == read_seals()[part]


def test_a_sealed_part_that_was_begun_is_on_record() -> None:
    record = "| 2026-11-18 | judge | begun | e653 |\n| 2026-11-18 | judge | 15 failures | e653 |\n"
    assert times_begun(record, "judge") == 1
    assert times_begun(record, "check") == 0


def test_a_part_that_was_run_keeps_its_seal_and_the_others_are_sealed_as_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashes = tmp_path / "HASHES.txt"
    hashes.write_text("".join(f"0123  {part}\n" for part in SEALED))
    record = tmp_path / "SEALED.md"
    record.write_text("| 2026-11-18 | judge | begun | 0123 |\n")
    monkeypatch.setattr(parts, "HASHES", hashes)
    monkeypatch.setattr(parts, "RECORD", record)
    write_seals()
    seals = read_seals()
    assert seals["judge"] == "0123"
    assert seals["judge2"] == seal_of("judge2")
    assert list(seals) == list(SEALED)


@pytest.mark.parametrize(
    ("builder", "covered"),
    [
        ("second_models.py", parts.SECOND),
        ("third_models.py", parts.THIRD),
        ("fourth_models.py", parts.FOURTH),
        ("fifth_models.py", parts.FIFTH),
    ],
)
def test_the_seals_of_a_set_cover_what_it_is_built_of(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, builder: str, covered: tuple[str, ...]
) -> None:
    for path in parts.FOLDER.glob("*.py"):
        shutil.copy(path, tmp_path)
    before = {part: seal_of(part) for part in SEALED}
    with (tmp_path / builder).open("a") as file:
        file.write("# changed\n")
    monkeypatch.setattr(parts, "FOLDER", tmp_path)
    changed = [part for part in SEALED if seal_of(part) != before[part]]
    assert changed == list(covered)


def test_a_part_of_the_second_set_has_none_of_the_first_sets_files() -> None:
    files = Counter(path for part in SEALED for path in files_of(part))
    assert max(files.values()) == 1


def test_the_first_set_is_spent() -> None:
    record = RECORD.read_text()
    assert all(times_begun(record, part) for part in FIRST)


def test_every_case_has_a_name_of_its_own() -> None:
    names = Counter(planned.case.name for planned in everything())
    assert max(names.values()) == 1


def test_failures_accept_an_answer_and_controls_none() -> None:
    for planned in everything():
        assert bool(planned.case.accepted) is not planned.case.is_control, planned.case.name
        assert not planned.case.accepted & planned.case.also_true, planned.case.name


def test_the_stick_has_failures_and_controls_enough_in_every_host() -> None:
    failures = [found.case for found in everything() if not found.case.is_control]
    controls = [found.case for found in everything() if found.case.is_control]
    hosts = Counter(case.host for case in failures)
    assert len(failures) >= 64
    assert len(controls) >= 32
    assert hosts["huggingface"] >= 10
    assert hosts["lightning"] >= 6


def test_the_part_to_tune_on_has_every_class_of_the_threads() -> None:
    classes = {planned.case.class_ for planned in cases_of(TUNE)}
    everywhere = {planned.case.class_ for planned in everything()}
    assert classes == everywhere


@pytest.mark.slow
def test_a_case_is_trained_by_its_file(tmp_path: Path) -> None:
    name = "one_target_in_another_unit"
    (planned,) = [found for found in cases_of(TUNE) if found.case.name == name]
    done = subprocess.run(
        [sys.executable, str(planned.file), name, str(tmp_path / "run")],
        env={"PYTHONPATH": f"{PROJECT}:{PROJECT / 'src'}", "SONDE": "off", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "iter 140: loss" in done.stdout
    assert not (tmp_path / "run").exists()
