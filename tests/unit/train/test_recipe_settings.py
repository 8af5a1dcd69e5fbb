"""The recipe's settings: where they come from, what is refused, and that a run gives back what it
was started with.
"""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sonde.errors import SettingError
from sonde.run import Run
from sonde.train.settings import (
    ARCHITECTURES,
    FIXED,
    RecipeSettings,
    read_toml,
    settings_from,
    settings_of_run,
)

DATA: dict[str, Any] = {"data": "x", "max_updates": 5}


def test_reading_settings_needs_no_torch() -> None:
    code = "import sys, sonde.train.settings; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_later_sources_go_before_earlier_ones() -> None:
    settings = settings_from(DATA, {"lr": 1e-3, "warmup": 7}, {"lr": 2e-3})
    assert (settings.lr, settings.warmup, settings.max_tokens) == (
        2e-3,
        7,
        RecipeSettings(**DATA).max_tokens,
    )


def test_an_architecture_stands_for_sizes_that_can_still_be_set() -> None:
    settings = settings_from(DATA, {"arch": "tiny", "ffn_dim": 99})
    assert settings.model_dim == ARCHITECTURES["tiny"]["model_dim"]
    assert settings.ffn_dim == 99
    assert settings_from(DATA, {"model_dim": 32, "num_heads": 2}, {"arch": "base"}).model_dim == 512


@pytest.mark.parametrize("arch", ARCHITECTURES)
def test_every_architecture_can_be_built(arch: str) -> None:
    assert (
        settings_from(DATA, {"arch": arch}).model(vocab_size=10, pad=1, has_source=True).vocab_size
        == 10
    )


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"max_udpates": 3}, "max_updates"),
        ({"max-tokens": 3}, "max_tokens"),
        ({"arch": "tyni"}, "tiny"),
        ({"model_dim": "64"}, "Expected `int`"),
        ({"model_dim": 64.5}, "Expected `int`"),
        ({"norm": "mid"}, "mid"),
        ({"num_heads": 3}, "multiple"),
        ({"betas": [0.9, 1.5]}, "betas"),
        ({"min_lr": 1.0}, "peak"),
        ({"schedule": "cosine", "max_updates": None, "max_epochs": 1}, "schedule_updates"),
        ({"max_updates": None}, "no stop condition"),
        ({"data": ""}, "no data"),
        ({"timeout_seconds": 0}, "timeout_seconds"),
        ({"weight_decay": -1}, "weight_decay"),
    ],
)
def test_what_cannot_be_used_is_refused_by_name(values: dict[str, object], says: str) -> None:
    with pytest.raises(SettingError) as refused:
        settings_from(DATA, values)
    assert says in str(refused.value)


def test_a_whole_number_may_stand_where_a_fraction_is_meant() -> None:
    assert settings_from(DATA, {"lr": 1, "betas": [0, 0.5]}).betas == (0.0, 0.5)


def test_a_toml_file_is_flat_and_can_spell_none(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text('lr = 1e-3\nvalidate_every_epochs = "none"\nbetas = [0.9, 0.95]\n')
    settings = settings_from(DATA, read_toml(path))
    assert (settings.lr, settings.validate_every_epochs, settings.betas) == (
        1e-3,
        None,
        (0.9, 0.95),
    )
    path.write_text("[model]\nmodel_dim = 3\n")
    with pytest.raises(SettingError, match=r"table \[model\]"):
        read_toml(path)
    for text in ("lr = \n", f"lr = {'[' * 5000}{']' * 5000}\n"):
        path.write_text(text)
        with pytest.raises(SettingError, match="is not TOML"):
            read_toml(path)
    with pytest.raises(SettingError, match="cannot read"):
        read_toml(tmp_path / "absent.toml")


def test_the_settings_of_a_run_load_back_equal(tmp_path: Path) -> None:
    settings = settings_from(
        DATA, {"arch": "tiny", "betas": [0.8, 0.9], "clip_norm": None, "max_hours": 0.1}
    )
    with Run(tmp_path, config=settings.as_saved()):
        pass
    assert settings_of_run(tmp_path) == settings


def test_a_run_of_another_loop_is_refused(tmp_path: Path) -> None:
    with Run(tmp_path, config={"lr": 1}):
        pass
    with pytest.raises(SettingError, match="was not made by `sonde train`"):
        settings_of_run(tmp_path)


def test_the_fixed_settings_exist() -> None:
    assert {"max_updates": "max_updates" in FIXED, "seed": "seed" in FIXED} == {
        "max_updates": False,
        "seed": True,
    }
    assert RecipeSettings.__dataclass_fields__.keys() >= FIXED
