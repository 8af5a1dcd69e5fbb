"""The reference of the API: the examples in docstrings run as they stand, and the names that people
construct say what each argument means.
"""

import importlib
import inspect
import re
import subprocess
import sys
from pathlib import Path

import api_page
import pytest

import sonde

HOSTS = ("sonde.integrations.huggingface", "sonde.integrations.lightning")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
CONSTRUCTED = (
    "sonde.CheckpointCallback",
    "sonde.EvaluatorCallback",
    "sonde.JSONStreamBackend",
    "sonde.Logger",
    "sonde.PrecisionDebugger",
    "sonde.Recorder",
    "sonde.Run",
    "sonde.SimpleLossLoggerCallback",
    "sonde.SpikeCallback",
    "sonde.SpikeRecorder",
    "sonde.StdOutBackend",
    "sonde.TokenLossSpike",
    "sonde.Trainer",
    "sonde.WandbCallback",
    "sonde.alerts.Alerts",
    "sonde.callbacks.NanGuard",
    "sonde.callbacks.ProgressCallback",
    "sonde.integrations.huggingface.SondeCallback",
    "sonde.integrations.lightning.SondeCallback",
)


def value_of(name: str) -> object:
    module, _, attribute = name.rpartition(".")
    return getattr(importlib.import_module(module), attribute)


def public_names() -> list[str]:
    names = [f"sonde.{name}" for name in dir(sonde) if name not in api_page.PACKAGES]
    for package in api_page.PACKAGES:
        names += [f"sonde.{package}.{name}" for name in api_page.names_of(package)]
    return [*names, *(f"{host}.SondeCallback" for host in HOSTS)]


def examples() -> dict[str, str]:
    """The examples of all public names; a name that stands in two packages counts once."""
    found = {}
    for name in public_names():
        value = value_of(name)
        if inspect.isclass(value) or inspect.isfunction(value):
            blocks = BLOCK.findall(inspect.getdoc(value) or "")
            if blocks:
                found[f"{value.__module__}.{value.__name__}"] = "\n".join(blocks)
    return found


EXAMPLES = examples()


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs_as_it_stands(name: str, tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(EXAMPLES[name])
    done = subprocess.run(
        [sys.executable, "example.py"], cwd=tmp_path, capture_output=True, text=True, timeout=110
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", CONSTRUCTED)
def test_a_name_that_people_construct_has_an_example_and_says_what_each_argument_means(
    name: str,
) -> None:
    value = value_of(name)
    assert inspect.isclass(value)
    assert f"{value.__module__}.{value.__name__}" in EXAMPLES
    maker = value.__init__ if "__init__" in vars(value) else value.__new__
    _, _, described = (inspect.getdoc(maker) or "").partition("Args:\n")
    told = re.findall(r"^    (\w+): \S", described, re.MULTILINE)
    arguments = list(inspect.signature(maker).parameters)[1:]
    assert told == arguments
