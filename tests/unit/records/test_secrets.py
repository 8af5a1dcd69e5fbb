"""Secrets are masked before they are written, and settings that only sound like them are not."""

from pathlib import Path

import pytest

from sonde.records.secrets import is_secret_name, mask_command, mask_config
from sonde.run import Run


@pytest.mark.parametrize(
    "name",
    [
        "api_key",
        "--api-key",
        "apiKey",
        "WANDB_API_KEY",
        "hf_token",
        "hub_token",
        "token",
        "password",
        "db.password",
        "aws_secret_access_key",
        "auth-token",
    ],
)
def test_names_that_say_so_are_secret(name: str) -> None:
    assert is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["max_tokens", "eos_token", "pad_token_id", "tokenizer", "key", "num_keys", "monkey"]
)
def test_names_of_ordinary_settings_are_not(name: str) -> None:
    assert not is_secret_name(name)


def test_a_command_keeps_its_words_without_its_secrets() -> None:
    words = ["python", "train.py", "--api-key", "abc", "--lr", "3", "--password=x"]
    words += ["postgres://me:hunter2@db/runs", "hf_" + "a" * 30, "--max-tokens", "512"]
    assert mask_command(words) == [
        *("python", "train.py", "--api-key", "***", "--lr", "3", "--password=***"),
        *("postgres://me:***@db/runs", "***", "--max-tokens", "512"),
    ]


def test_a_config_keeps_its_shape_without_its_secrets() -> None:
    config = {"lr": 0.1, "api_key": "abc", "hub": {"token": "t", "name": "x"}, "l": ["a", 1]}
    masked = {"lr": 0.1, "api_key": "***", "hub": {"token": "***", "name": "x"}, "l": ["a", 1]}
    assert mask_config(config) == masked


def test_no_file_of_a_run_holds_a_secret(tmp_path: Path) -> None:
    for rate in (0.1, 0.2):  # the second start writes the config of the first into its events
        with Run(tmp_path / "run", config={"lr": rate, "password": f"hunter{rate}"}):
            pass
    for path in (tmp_path / "run").rglob("*"):
        if path.is_file():
            assert b"hunter" not in path.read_bytes()


def test_a_run_is_readable_by_its_owner_only_unless_it_is_shared(tmp_path: Path) -> None:
    with Run(tmp_path / "own"), Run(tmp_path / "shared", shared=True):
        pass
    assert (tmp_path / "own").stat().st_mode & 0o077 == 0
    assert (tmp_path / "shared").stat().st_mode & 0o055 == 0o055
