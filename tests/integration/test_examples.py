"""The examples run as they stand, and the settings of the larger ones are settings."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import nbclient
import nbformat
import pytest

from sonde.records.journal import read_steps
from sonde.records.manifest import read_manifest
from sonde.train.settings import read_toml, settings_from

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_a_loop_of_ones_own_learns_and_leaves_a_run(tmp_path: Path) -> None:
    assert load("own_loop").main(tmp_path / "run") < 0.2
    assert read_manifest(tmp_path / "run").status == "finished"
    assert (tmp_path / "run" / "checkpoints" / "step-000000000200").is_dir()


@pytest.mark.slow
def test_the_gpt_example_is_watched_by_eight_lines_and_records_its_steps(tmp_path: Path) -> None:
    path = EXAMPLES / "nano_gpt.py"
    code = path.read_text().split('"""', 2)[2]
    assert sum("# sonde" in line for line in code.splitlines()) <= 8
    (tmp_path / "text.txt").write_text("a text of one's own, said again and again. " * 100)
    command = [
        sys.executable,
        str(path),
        str(tmp_path / "text.txt"),
        str(tmp_path / "run"),
        "--steps",
        "6",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert list(read_steps(tmp_path / "run").by_number) == [1, 2, 3, 4, 5, 6]


@pytest.mark.slow
def test_the_trainer_example_trains_and_a_second_start_finds_nothing_left_to_do(
    tmp_path: Path,
) -> None:
    example = load("trainer")
    assert example.main(tmp_path / "run") == "max_epochs: 6 epochs were completed"
    assert example.main(tmp_path / "run") == "max_epochs: 6 epochs were completed"
    assert read_manifest(tmp_path / "run").num_starts == 2


@pytest.mark.slow
@pytest.mark.timeout(180)
@pytest.mark.filterwarnings("ignore")  # of Jupyter's own
def test_the_notebook_names_the_garbled_passage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    # nbformat has no types
    notebook = nbformat.read(EXAMPLES / "quickstart.ipynb", as_version=4)  # type: ignore[no-untyped-call]
    assert not any(cell.get("outputs") for cell in notebook.cells)
    nbclient.NotebookClient(
        notebook, timeout=170, resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [
        str(output.get("text") or output.get("data"))
        for cell in notebook.cells
        for output in cell.get("outputs", ())
    ]
    garbled = shown[-1].splitlines()[0]
    assert "garbled text" in garbled, shown
    assert any("svg" in text for text in shown)  # the curve


@pytest.mark.parametrize(
    "path", sorted(EXAMPLES.rglob("*.toml")), ids=lambda path: path.parent.name
)
def test_the_settings_of_an_example_are_settings(path: Path) -> None:
    assert settings_from({"data": "x"}, read_toml(path)).max_hours == 3
