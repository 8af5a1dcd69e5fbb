"""A folder of checkpoints without torch: what is ours, what is valid, what its page says."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sonde.checkpoint.folder import About, CheckpointFolder, Keep, encode_document, read_document
from sonde.errors import DamagedFile, SettingError, SondeError
from sonde.records.storage import storage_at

PAGE = Path(__file__).parents[3] / "docs" / "formats" / "checkpoint.md"


def write(folder: CheckpointFolder, step: int, about: About | None = None) -> Path:
    folder.write(step, encode_document(step, {"a": step}, about or About()), b"tensors")
    return Path(folder.at(step).where)


def test_the_pages_example_is_what_is_written_and_read(tmp_path: Path) -> None:
    match = re.search(r"```json\n(.*?)\n```", PAGE.read_text(), re.DOTALL)
    assert match
    example = json.loads(match[1])
    about = About(
        run_id=example["run_id"], metrics=example["metrics"], distrusted=example["distrusted"]
    )
    encoded = encode_document(example["step"], example["state"], about)
    assert encoded.decode() == match[1] + "\n"
    (tmp_path / "state.json").write_bytes(encoded)
    assert read_document(storage_at(tmp_path)) == example


def test_listing_verifying_and_pruning_need_no_torch() -> None:
    code = (
        "import sys, sonde.checkpoint.folder, sonde.cli.checkpoints; sys.exit('torch' in"
        " sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0


def test_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(
        '{"format":"sonde-checkpoint","version":2,"step":1,"state":{}}'
    )
    with pytest.raises(DamagedFile, match="version 2"):
        read_document(storage_at(tmp_path))
    (tmp_path / "state.json").write_text("[]")
    with pytest.raises(DamagedFile, match="not the state"):
        read_document(storage_at(tmp_path))


def test_only_own_directories_are_listed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    write(folder, 7)
    (tmp_path / "step-8").mkdir()
    (tmp_path / "step-000000000009").write_text("a file")
    (tmp_path / "step-000000000010").symlink_to(tmp_path / "step-000000000007")
    assert folder.steps() == [7]
    assert CheckpointFolder(tmp_path / "nowhere").steps() == []


def test_a_run_prunes_its_own_and_never_what_it_cannot_read(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, run_id="mine")
    for step, run_id in ((1, "mine"), (2, "other"), (3, "mine"), (4, "mine")):
        write(folder, step, About(run_id=run_id))
    (Path(folder.at(1).where) / "state.json").write_text("torn")
    assert folder.prune(Keep(newest=1)) == [3]
    assert folder.steps() == [1, 2, 4]


def test_the_one_resumed_from_stays_until_a_newer_one_is_verified(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    write(folder, 1)
    newer = write(folder, 2)
    good = (newer / "tensors.safetensors").read_bytes()
    (newer / "tensors.safetensors").write_bytes(b"damage!")
    assert folder.prune(Keep(newest=1)) == []
    (newer / "tensors.safetensors").write_bytes(good)
    assert folder.prune(Keep(newest=1)) == [1]


def test_a_pickle_that_somebody_put_beside_is_a_problem_and_is_never_read(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    path = write(folder, 1)
    (path / "sharded").mkdir()
    marker = tmp_path / "marker"
    (path / "sharded" / ".metadata").write_bytes(f"cos\nsystem\n(S'touch {marker}'\ntR.".encode())
    assert folder.problems(1) == ["sharded/.metadata: not in the manifest"]
    assert folder.newest()[0] is None
    assert not marker.exists()


def test_a_checkpoint_that_is_not_there_cannot_be_removed(tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="no checkpoint after 5 steps"):
        CheckpointFolder(tmp_path).remove(5)


def test_a_place_that_cannot_be_written_is_refused_before_anything_is_saved(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(SondeError, match="cannot be saved"):
        CheckpointFolder(tmp_path / "file" / "folder").storage.check_space(1)
    with pytest.raises(SondeError, match="no room"):
        CheckpointFolder(tmp_path / "folder").storage.check_space(1 << 60)
