"""The examples run as they stand, and the settings of the larger ones are settings."""

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

from sonde.records.manifest import read_manifest
from sonde.train.recipe_settings import read_toml, settings_from

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
def test_the_trainer_example_trains_and_a_second_start_finds_nothing_left_to_do(tmp_path: Path) -> None:
    example = load("trainer")
    assert example.main(tmp_path / "run") == "max_epochs: 6 epochs were completed"
    assert example.main(tmp_path / "run") == "max_epochs: 6 epochs were completed"
    assert read_manifest(tmp_path / "run").num_starts == 2


@pytest.mark.parametrize("path", sorted(EXAMPLES.rglob("*.toml")), ids=lambda path: path.parent.name)
def test_the_settings_of_an_example_are_settings(path: Path) -> None:
    assert settings_from({"data": "x"}, read_toml(path)).max_hours == 0.97
